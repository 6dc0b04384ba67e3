"""The main job, small: eight attention rows × 3 seeds on digits_vit, after tuning NAdamW.

Command:  make demo   (or: python -m sweeps run --config=digits_vit_demo)
Time:     about 9 minutes on two CPU cores (8 tuning trials, then 24; 500 steps each).
Result:   an error table with intervals. On digits every variant ends near 2.5 to 4 % test error and
          no row can be told from another with three seeds: a stand-in, not evidence about ImageNet.

8 points of the paper's NAdamW space on standard attention, the best by validation, then that point
for all rows: the paper's protocol. 400 images each for validation and test (one image is 0.25
points).
"""

from attention import table
from sweeps.studies import ConfigDict, base


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = base()
    config.name = "digits_vit_demo"
    config.workload = "digits_vit"
    config.variants = table.PAPER_ROWS
    config.points = 8
    config.seeds = 3
    config.eval_every = 100
    config.log_every = 10
    return config
