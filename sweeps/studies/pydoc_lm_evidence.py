"""Evidence on text, small: eight attention rows x 12 seeds on Python's documentation, after tuning.

Command:  make evidence   (or: python -m sweeps run --config=pydoc_lm_evidence)
Time:     about 50 minutes on two CPU cores (3 tuning trials, then 96; 3,000 steps each), its
          models' questions included.
Result:   docs/evidence.md, with the questions it was asked before it was run: test losses in nats
          per token, and what the models can do. A stand-in, not evidence about C4.
"""

from attention import table
from sweeps.studies import ConfigDict, pydoc_lm_demo


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = pydoc_lm_demo.get_config()
    config.name = "pydoc_lm_evidence"
    config.variants = table.PAPER_ROWS
    config.protocol = "tune_then_compare"
    config.points = 3
    config.seeds = 12
    config.downstream = "pydoc"
    return config
