"""The Diff pair, small: Diff against Diff + LASER x 5 seeds on Python's own documentation.

Command:  make evidence   (or: python -m sweeps run --config=pydoc_lm_diff)
Time:     about 10 minutes on two CPU cores.
Result:   docs/evidence.md; a stand-in for c4_lm_2b_diff.
"""

from attention import table
from sweeps.studies import ConfigDict, pydoc_lm_demo


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = pydoc_lm_demo.get_config()
    config.name = "pydoc_lm_diff"
    config.variants = table.DIFF_ROWS
    config.baseline = config.tuning_variant = "diff"
    config.seeds = 5
    return config
