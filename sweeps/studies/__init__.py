"""Studies that come with the package: a file per family, a function per study.

The study FAMILY:ARGUMENT is the function FAMILY_ARGUMENT, and that is its name on disk and in
tables. The function sets the keys that differ from their defaults (`sweeps/study/keys.py`).
`python -m sweeps studies` lists all.
"""

from collections.abc import Callable, Mapping

from ml_collections import ConfigDict as ConfigDict

from attention import table as variants_table
from sweeps.study.config import base


def family(
    name: str, functions: Mapping[str, Callable[[ConfigDict], None]]
) -> Callable[[str], ConfigDict]:
    """Returns the `get_config` of a family: it takes the argument of one of its studies.

    `get_config` raises ValueError naming the family's studies where there is no such one.
    """

    def get_config(argument: str) -> ConfigDict:
        config = base()
        config.name = f"{name}_{argument}"
        if config.name not in functions:
            members = [member for member in functions if member.startswith(f"{name}_")]
            raise ValueError(variants_table.unknown("study", config.name, members))
        functions[config.name](config)
        return config

    return get_config
