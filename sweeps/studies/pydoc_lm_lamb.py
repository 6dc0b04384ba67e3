"""The LAMB ablation, small: standard against LASER x 3 seeds on Python's own documentation.

Command:  python -m sweeps run --config=pydoc_lm_lamb
Time:     about 7 minutes on two CPU cores.
Result:   a table of test losses; a stand-in for c4_lm_lamb.
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
    return config
