"""Evidence on images, small: eight attention rows x 12 seeds on digits_vit, after tuning NAdamW.

Command:  make evidence   (or: python -m sweeps run --config=digits_vit_evidence)
Time:     about 18 minutes on two CPU cores (8 tuning trials, then 96; 500 steps each).
Result:   docs/evidence.md, with the questions it was asked before it was run. 400 test images: one
          is 0.25 points.
"""

from sweeps.studies import ConfigDict, digits_vit_demo


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = digits_vit_demo.get_config()
    config.name = "digits_vit_evidence"
    config.seeds = 12
    return config
