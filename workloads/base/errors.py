"""Errors of a workload's data on disk."""

import os
from pathlib import Path

from attention.common import files


class DataError(ValueError):
    """Data is missing, half prepared, damaged, or of another data set.

    The message names the directory, the file, the content and the expected content. It ends with
    the command that repairs the data. It is text only, so that a worker process can send it.
    """

    def __init__(self, problem: str, repair: str = "") -> None:
        super().__init__(f"{problem}\nTo repair: {repair}" if repair else problem)


def repair_commands(
    workload: str, data_dir: str | os.PathLike[str], source: str = "", where: str = ""
) -> str:
    """Returns the commands that make a workload's data and check it.

    source: placeholder of the path in `--from`, '' without that option. where: its content.
    """
    directory = f"{workload} --data_dir={files.quoted(data_dir)}"
    option = f" --from={source}" if source else ""
    explained = f", where {source} holds {where}" if where else ""
    return (
        f"python -m workloads prepare {directory}{option}{explained}; then "
        f"python -m workloads check {directory}"
    )


def check_layout(data_dir: Path, what: str, part: str | Path, below: str) -> None:
    """Raises DataError if AlgoPerf's layout of a data set lies `below` a directory, not in it.

    part: a file or folder of the layout.
    """
    if (data_dir / below).is_dir() and not (data_dir / part).exists():
        raise DataError(
            f"{data_dir} holds no {what} itself; AlgoPerf's layout is below it",
            f"give --data_dir {data_dir / below}",
        )
