"""Language model, small: standard against LASER x 3 seeds on Python's own documentation.

Command:  make demo   (or: python -m sweeps run --config=pydoc_lm_demo)
Time:     about 4 minutes on two CPU cores, data included.
Result:   a table of test losses in nats per token, below the smoothed bigram's: a stand-in, not
          evidence about C4.

One point of AdamW, chosen beforehand on standard attention (spaces/pydoc_adamw.json);
pydoc_lm_evidence tunes.
"""

from sweeps.studies import ConfigDict, base


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = base()
    config.name = "pydoc_lm_demo"
    config.workload = "pydoc_lm"
    config.optimizer = "adamw"
    config.protocol = "grid"
    config.space = "pydoc_adamw"
    config.points = 1
    config.seeds = 3
    config.eval_every = 600
    return config
