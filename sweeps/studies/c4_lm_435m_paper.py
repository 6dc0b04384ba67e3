"""The paper's language-model table, row 3: 435 M parameters, 32 layers, MLP 4096.

Command:  python -m sweeps run --config=c4_lm_435m_paper --config.data_dir=$DATA/c4
          (after c4_lm_234m_paper, whose selected point it takes)
Devices:  64 TPU v5e chips, parameters divided over 8 of them (mesh.fsdp).
          Of several hosts by slurm.nodes or kubernetes.hosts; --config.mesh.fsdp=N for fewer.
Time:     2 trials of 160,000 steps (167.8 B tokens): about 37 h each, by `plan`.
Result:   the paper prints C4 test losses of 2.575 (standard) and 2.555 (LASER).
"""

from sweeps.studies import ConfigDict, paper_lm


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    return paper_lm("c4_lm_435m", "c4_lm_435m_paper", "lm_test_loss")
