"""The paper's 7.7 B pair: standard against LASER on 44 B tokens.

Command:  python -m sweeps run --config=c4_lm_8b_paper --config.data_dir=$DATA/c4
          (after c4_lm_234m_paper, whose selected point it takes)
Devices:  256 TPU v5e chips, parameters divided over 16 of them (mesh.fsdp), and
          heads, MLP and vocabulary over 2 (mesh.tensor), 11.0 GB each; mesh.tensor=1 takes 15.5.
          Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
Time:     2 trials of 41,962 steps (44 B tokens): about 26 h each, by `plan`.
Result:   the paper prints downstream accuracies alone for this size; this study reports the
          loss, which is another quantity.

Activations are in bfloat16 and parameters in float32, our choice: the paper does not say.
"""

from sweeps.studies import ConfigDict, paper_lm


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = paper_lm("c4_lm_8b", "c4_lm_8b_paper", fsdp=16)
    config.paper_note = (
        "The paper prints downstream accuracies for its 7.7 B model, no loss: nothing of it can "
        "stand beside this table."
    )
    config.steps = 41_962
    config.eval_every = 2_099
    config.compute_dtype = "bfloat16"
    config.mesh.tensor = 2
    return config
