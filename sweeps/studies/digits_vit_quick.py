"""A smoke test of the whole road: standard against LASER, one seed, 100 steps on digits_vit.

Command:  python -m sweeps run --config=digits_vit_quick
Time:     under a minute on two CPU cores.
Result:   a table with n = 1, hence no interval and no verdict; errors near 0.5.
"""

from sweeps.studies import ConfigDict, base


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = base()
    config.name = "digits_vit_quick"
    config.workload = "digits_vit"
    config.variants = ("standard", "laser")
    config.points = 2
    config.seeds = 1
    config.steps = 100
    config.log_every = 10
    return config
