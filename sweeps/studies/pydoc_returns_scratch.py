"""What pydoc_returns is to be measured by: the same questions, model and budget, random weights.

Command:  python -m sweeps run --config=pydoc_returns_scratch
Time:     about two minutes on two CPU cores.
Result:   a table of errors of the decoded answers: see docs/downstream.md.
"""

from sweeps.studies import ConfigDict, pydoc_returns


def get_config() -> ConfigDict:
    """Returns the study's configuration."""
    config = pydoc_returns.get_config()
    config.name = "pydoc_returns_scratch"
    config.finetune_from = ""
    return config
