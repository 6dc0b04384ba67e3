"""Studies that come with the package: a file per family, a function per study.

The study FAMILY:ARGUMENT is the function FAMILY_ARGUMENT, and that is its name on disk and in
tables. The function sets the keys that differ from their defaults (`sweeps/study/keys.py`).
`python -m sweeps studies` lists all.
"""

from collections.abc import Callable, Mapping

from ml_collections import ConfigDict as ConfigDict

from attention import table as variants_table
from sweeps.study.config import base


def member(
    family: str, argument: str, functions: Mapping[str, Callable[[ConfigDict], None]]
) -> ConfigDict:
    """Returns the configuration of a family's study, with its name.

    Raises ValueError naming the family's studies where there is no such one.
    """
    name = f"{family}_{argument}"
    if name not in functions:
        members = [member for member in functions if member.startswith(f"{family}_")]
        raise ValueError(variants_table.unknown("study", name, members))
    config = base()
    config.name = name
    functions[name](config)
    return config
