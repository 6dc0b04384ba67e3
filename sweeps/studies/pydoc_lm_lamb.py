"""The LAMB ablation, small: standard against LASER x 5 seeds on Python's own documentation.

Command:  make evidence   (or: python -m sweeps run --config=pydoc_lm_lamb)
Time:     about 10 minutes on two CPU cores.
Result:   docs/evidence.md; a stand-in for c4_lm_lamb.
"""

from sweeps.studies import ConfigDict, pydoc_lm_demo


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = pydoc_lm_demo.get_config()
    config.name = "pydoc_lm_lamb"
    config.optimizer = "lamb"
    config.protocol = "tune_then_compare"
    config.space = "lamb"
    config.points = 3
    config.seeds = 5
    return config
