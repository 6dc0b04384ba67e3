"""Evidence on speech, small: the six rows of the evidence study, each tuned for itself.

Command:  make evidence-tuned   (or: python -m sweeps run --config=spoken_digits_conformer_tuned)
Time:     about 27 minutes on two CPU cores (18 tuning trials, then 120; 400 steps each).
Result:   docs/evidence.md. The same budget of points for each row, which the paper's protocol gives
          to standard attention alone.
"""

from sweeps.studies import ConfigDict, spoken_digits_conformer_evidence


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = spoken_digits_conformer_evidence.get_config()
    config.name = "spoken_digits_conformer_tuned"
    config.protocol = "tune_each"
    return config
