"""The paper's BERT on Wikipedia."""

from sweeps.studies import ConfigDict, family
from sweeps.studies.c4_lm import paper_lm


def wikipedia_bert_2b_paper(config: ConfigDict) -> None:
    """The paper's BERT pair: a 2.2 B masked language model, standard against LASER.

    Command:  python -m sweeps run --config=wikipedia_bert_2b_paper \\
                  --config.data_dir=$DATA/wikipedia
    Devices:  256 TPU v5e chips, parameters divided over 16 of them (mesh.fsdp).
              Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
    Time:     3 tuning trials and 2 to compare, each of 160,000 steps of 1024 sequences of 512
              tokens: about 11 h each, as compiled.
    Result:   the paper prints MLM error rates of 0.2145 (standard) and 0.2125 (LASER).

    The paper prints neither steps, batch, tokenizer nor hyperparameters of this run: these are ours
    (AdamW at 1e-3, 3e-4 and 1e-4 on standard attention; spaces/bert_adamw.json).
    """
    paper_lm(
        config,
        "wikipedia_bert_2b",
        "bert_mlm_error",
        fsdp=16,
        protocol="tune_then_compare",
        space="bert_adamw",
        points=3,
    )


get_config = family("wikipedia_bert", globals())
