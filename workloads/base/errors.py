"""Errors of data on disk that is not what a workload needs, and errors in words."""

import errno
import os
from pathlib import Path

from attention import files

_ADVICE = {
    errno.ELOOP: "a loop of symbolic links; remove it, or give another path",
    errno.ENOTDIR: "it lies below a file, where a directory is needed; give another path",
    errno.EEXIST: "a file lies where a directory is needed; remove it, or give another path",
    errno.EISDIR: "it is a directory, and a file is needed; give another path",
    errno.ENAMETOOLONG: "a name on it is longer than the file system takes; give a shorter one",
    errno.EACCES: "this user may not; give another path, or ask its owner for permission",
    errno.EPERM: "this user may not; give another path, or ask its owner for permission",
    errno.EROFS: "it cannot be written there; give another path",
    errno.ENOENT: "it does not exist; is the path right?",
    errno.ENOSPC: "no room is left there; make some, or give another path",
    errno.EDQUOT: "this user's quota is used up there; make room, or give another path",
}


class DataError(ValueError):
    """Data is missing, half prepared, damaged, or of another data set.

    The message names the directory and the file, what was found and what was expected, and ends
    with the command that repairs it. It holds text only, so it survives the way from a worker
    process.
    """

    def __init__(self, problem: str, repair: str = "") -> None:
        super().__init__(f"{problem}\nTo repair: {repair}" if repair else problem)


def repair_commands(
    workload: str, data_dir: str | os.PathLike[str], source: str = "", where: str = ""
) -> str:
    """The commands that make a workload's data and check it.

    source: what stands for the path in `--from`, if that is needed; where: what that path holds.
    """
    directory = f"{workload} --data_dir={files.quoted(data_dir)}"
    option = f" --from={source}" if source else ""
    explained = f", where {source} holds {where}" if where else ""
    return (
        f"python -m workloads prepare {directory}{option}{explained}; then "
        f"python -m workloads check {directory}"
    )


def check_layout(data_dir: Path, what: str, part: str | Path, below: str) -> None:
    """Raises DataError where AlgoPerf's layout of a data set lies `below` a directory, not in it.

    part: a file or folder of the layout.
    """
    if (data_dir / below).is_dir() and not (data_dir / part).exists():
        raise DataError(
            f"{data_dir} holds no {what} itself; AlgoPerf's layout is below it",
            f"give --data_dir {data_dir / below}",
        )


def message(error: BaseException) -> str:
    """Returns what an error says to a person: an OSError's path and remedy, not its number."""
    if not isinstance(error, OSError):
        return str(error)
    where = error.filename2 or error.filename
    if where is None:  # e.g. our own sentence on a full disk
        return error.strerror or str(error)
    return f"{where}: {_ADVICE[error.errno]}" if error.errno in _ADVICE else str(error)
