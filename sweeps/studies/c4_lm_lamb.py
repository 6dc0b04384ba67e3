"""The paper's optimizer ablation: the 301 M language model trained with LAMB.

Command:  python -m sweeps run --config=c4_lm_lamb --config.data_dir=$DATA/c4
Devices:  64 TPU v5e chips, parameters divided over 8 of them (mesh.fsdp).
          Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
Time:     3 tuning trials and 2 to compare, each of 160,000 steps: about 32 h each, by `plan`.
Result:   the paper prints test losses of 2.758 (standard) and 2.741 (LASER), and train losses of
          2.749 and 2.736.

The paper does not print LAMB's hyperparameters: three learning rates (0.01, 0.003, 0.001) with
weight decay 0.1 are tried on standard attention (spaces/lamb.json).
"""

from sweeps.studies import ConfigDict, paper_lm


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = paper_lm("c4_lm", "c4_lm_lamb", "lm_lamb")
    config.optimizer = "lamb"
    config.protocol = "tune_then_compare"
    config.space = "lamb"
    config.points = 3
    return config
