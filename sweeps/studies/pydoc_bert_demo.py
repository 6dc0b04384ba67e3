"""Masked language model, small: standard against LASER x 3 seeds on Python's own documentation.

Command:  python -m sweeps run --config=pydoc_bert_demo
Time:     about 7 minutes on two CPU cores, data included.
Result:   a table of errors at masked positions; a stand-in for wikipedia_bert_2b_paper.
"""

from sweeps.studies import ConfigDict, pydoc_lm_demo


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = pydoc_lm_demo.get_config()
    config.name = "pydoc_bert_demo"
    config.workload = "pydoc_bert"
    config.space = "pydoc_bert_adamw"
    config.eval_every = 800
    return config
