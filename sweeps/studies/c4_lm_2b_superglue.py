"""The paper's SuperGLUE table: the 2.2 B models fine-tuned on COPA, WiC, WSC and RTE, ten epochs.

The paper says neither batch, rate, mixture nor prompt. Ours: one model learns the four tasks mixed,
in lm-eval's T5 prompts, 32 questions a batch, one of three rates chosen on standard attention by
the questions that are held out of training. --config.workload=c4_lm_2b:superglue_rte and the like
have one model for a task; --config.finetune_from= has random weights to compare with.

Command:  python -m sweeps run --config=c4_lm_2b_superglue --config.data_dir=$DATA/c4
          (after c4_lm_2b_paper, in the same experiment_dir, and
          python -m workloads prepare downstream --from=TREE --data_dir=$DATA/c4)
Devices:  those of c4_lm_2b_paper, or fewer: --config.mesh.fsdp=N.
Time:     5 trials of 2,495 steps of 32 sequences: 2.4 h on 32 TPU v5e chips, by `plan`, for rows
          of 1024 tokens; these questions need fewer.
Result:   not run: the benchmark's data are to be had by a network alone.
"""

from sweeps.studies import ConfigDict, paper_lm


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = paper_lm("c4_lm_2b:superglue", "c4_lm_2b_superglue", fsdp=8)
    config.finetune_from = "c4_lm_2b_paper"
    config.matmul_precision = "float32"
    config.protocol = "tune_then_compare"
    config.space = "finetuning_adamw"
    config.points = 3
    config.eval_every = 250
    config.downstream = "superglue"
    return config
