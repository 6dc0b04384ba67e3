"""A smoke test of speech: standard against LASER, one seed, on spoken digits.

Command:  python -m sweeps run --config=spoken_digits_conformer_quick
Time:     about a minute and a half on two CPU cores, data included.
Result:   a WER table with n = 1, hence no interval and no verdict; WER 1: 150 steps are few.
"""

from sweeps.studies import ConfigDict, spoken_digits_conformer_demo


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = spoken_digits_conformer_demo.get_config()
    config.name = "spoken_digits_conformer_quick"
    config.seeds = 1
    config.steps = 150
    config.eval_every = 75
    return config
