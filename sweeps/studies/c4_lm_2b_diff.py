"""The paper's Differential Transformer pair: Diff against Diff + LASER, 2.2 B, 24 B tokens.

Command:  python -m sweeps run --config=c4_lm_2b_diff --config.data_dir=$DATA/c4
          (after c4_lm_234m_paper, whose selected point it takes)
Devices:  256 TPU v5e chips, parameters divided over 16 of them (mesh.fsdp).
          Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
Time:     2 trials of 22,888 steps (24 B tokens): about 6 h each, by `plan`.
Result:   the paper prints downstream accuracies alone for this pair (about 1 point in the mean);
          this study reports the loss, which is another quantity. The paper does not say whether
          it keeps Diff's norm per head: --config.diff_head_norm=False leaves it out.
"""

from sweeps.studies import ConfigDict, paper_lm


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = paper_lm("c4_lm_2b", "c4_lm_2b_diff", fsdp=16)
    config.paper_note = (
        "The paper prints downstream accuracies for its Differential Transformer pair, no loss: "
        "nothing of it can stand beside this table."
    )
    config.variants = ("diff", "diff_laser")
    config.baseline = "diff"
    config.steps = 22_888
    config.eval_every = 2_289
    return config
