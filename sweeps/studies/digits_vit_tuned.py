"""Evidence on images, small: the eight rows of the evidence study, each tuned for itself.

Command:  make evidence-tuned   (or: python -m sweeps run --config=digits_vit_tuned)
Time:     about 27 minutes on two CPU cores (64 tuning trials, then 96; 500 steps each).
Result:   docs/evidence.md. The same budget of points for each row, which the paper's protocol gives
          to standard attention alone.
"""

from sweeps.studies import ConfigDict, digits_vit_evidence


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = digits_vit_evidence.get_config()
    config.name = "digits_vit_tuned"
    config.protocol = "tune_each"
    return config
