"""Evidence on text, small: the eight rows of the evidence study, each tuned for itself.

Command:  make evidence-tuned   (or: python -m sweeps run --config=pydoc_lm_tuned)
Time:     about 58 minutes on two CPU cores (24 tuning trials, then 96; 3,000 steps each).
Result:   docs/evidence.md. The same budget of points for each row, which the paper's protocol gives
          to standard attention alone.
"""

from sweeps.studies import ConfigDict, pydoc_lm_evidence


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = pydoc_lm_evidence.get_config()
    config.name = "pydoc_lm_tuned"
    config.downstream = ""
    config.protocol = "tune_each"
    return config
