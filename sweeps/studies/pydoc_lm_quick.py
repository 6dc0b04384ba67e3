"""A smoke test of the language model: standard against LASER, one seed, 800 steps.

Command:  python -m sweeps run --config=pydoc_lm_quick
Time:     about a minute on two CPU cores, data included.
Result:   a table of losses with n = 1, hence no interval and no verdict.
"""

from sweeps.studies import ConfigDict, pydoc_lm_demo


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = pydoc_lm_demo.get_config()
    config.name = "pydoc_lm_quick"
    config.seeds = 1
    config.steps = 800
    config.eval_every = 400
    return config
