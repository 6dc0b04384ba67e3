"""Masked language model, small: standard against LASER x 3 seeds on Python's own documentation.

Command:  python -m sweeps run --config=pydoc_bert_demo
Time:     about 7 minutes on two CPU cores, data included.
Result:   a table of errors at masked positions; a stand-in for wikipedia_bert_2b_paper.
"""

import ml_collections

from sweeps.study import config as configs


def get_config() -> ml_collections.ConfigDict:
    """Returns the study's configuration."""
    config = configs.base()
    config.name = "pydoc_bert_demo"
    config.workload = "pydoc_bert"
    config.optimizer = "adamw"
    config.protocol = "grid"
    config.space = "pydoc_bert_adamw"
    config.points = 1
    config.seeds = 3
    config.eval_every = 800
    return config
