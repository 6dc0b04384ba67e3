"""The paper's language-model table, row 1, and its tuning: 15 AdamW points on the 16-layer model.

Command:  python -m sweeps run --config=c4_lm_234m_paper --config.data_dir=$DATA/c4
Devices:  64 TPU v5e chips, parameters divided over 8 of them (mesh.fsdp).
          Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
Time:     15 tuning trials and 2 to compare, each of 160,000 steps (167.8 B tokens): about 19 h a
          trial by `plan`, so 312 h; the tuning is the expensive part.
Result:   the paper prints C4 test losses of 2.681 (standard) and 2.673 (LASER).

The other language-model studies take the point that this one selects: run it first, with the same
--config.experiment_dir. The paper does not print its warmup: here 5 % of the steps. Learning rates
of 0.1 and 0.01 are in its grid and may diverge: a loss that is not finite ends a trial at its next
evaluation. One seed, so no interval and no verdict: --config.seeds=3 gives them.
"""

from sweeps.studies import TUNING_STUDY, ConfigDict, paper_lm


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = paper_lm("c4_lm_234m", TUNING_STUDY, "lm_test_loss")
    config.protocol = "tune_then_compare"
    config.space = "paper_adamw"
    config.points = 15
    return config
