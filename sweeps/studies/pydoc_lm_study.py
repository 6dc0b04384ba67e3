"""Language model, small, all eight rows x 3 seeds, after tuning.

Command:  make study   (or: python -m sweeps run --config=pydoc_lm_study)
Time:     about 16 minutes on two CPU cores, and some seconds a model for its questions.
Result:   a table of test losses in nats per token with intervals: a stand-in, not evidence about
          C4.
"""

from attention import table
from sweeps.studies import ConfigDict, pydoc_lm_demo


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = pydoc_lm_demo.get_config()
    config.name = "pydoc_lm_study"
    config.variants = table.PAPER_ROWS
    config.protocol = "tune_then_compare"
    config.points = 3
    # What the models can do: python -m sweeps evaluate experiments/pydoc_lm_study --suite=pydoc
    # --checkpoints=5 says it of earlier checkpoints, too.
    config.downstream = "pydoc"
    config.keep_checkpoints = 5
    return config
