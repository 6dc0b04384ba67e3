"""The paper's scaling set, 1.1 B parameters.

Model dim 2048: the paper's caption prints 1024, which would be 570 M parameters.

The set is c4_lm_234m_paper, c4_lm_paper, c4_lm_435m_paper, this study and c4_lm_2b_paper, each with
a table of its own: python -m analysis table EXPERIMENT_DIR prints all.

Command:  python -m sweeps run --config=c4_lm_1b_paper --config.data_dir=$DATA/c4
          (after c4_lm_234m_paper, whose selected point it takes)
Devices:  128 TPU v5e chips, parameters divided over 8 of them (mesh.fsdp).
          Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
Time:     2 trials of 160,000 steps: about 32 h each, by `plan`.
Result:   the paper prints no loss for this size, only that LASER needs 15.65 % fewer parameters
          for a test loss of 2.347, which cannot be recomputed from what it prints.
"""

from sweeps.studies import ConfigDict, paper_lm


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    return paper_lm("c4_lm_1b", "c4_lm_1b_paper", "lm_scaling")
