"""The Diff pair, small: Diff against Diff + LASER x 3 seeds on Python's own documentation.

Command:  python -m sweeps run --config=pydoc_lm_diff
Time:     about 7 minutes on two CPU cores.
Result:   a table of test losses; a stand-in for c4_lm_2b_diff.
"""

from attention import table
from sweeps.studies import ConfigDict, pydoc_lm_demo


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = pydoc_lm_demo.get_config()
    config.name = "pydoc_lm_diff"
    config.variants = table.DIFF_ROWS
    config.baseline = config.tuning_variant = "diff"
    return config
