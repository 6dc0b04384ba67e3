"""A disk that is full: recognised whoever says it, and said with where and how much is needed."""

import errno
import os
import pathlib
import re

# What a reason in a trial's status.json begins with then.
_FULL = "disk full: "
_CODES = (errno.ENOSPC, errno.EDQUOT)
_OF_TENSORSTORE = re.compile(rf"os_error_code='({errno.ENOSPC}|{errno.EDQUOT})'")


class FullError(OSError):
    """A disk is full; the message says which, and what is needed."""

    def __init__(self, directory: pathlib.Path, needs: str) -> None:
        super().__init__(errno.ENOSPC, _sentence(directory, needs))

    def __str__(self) -> str:
        return str(self.args[1])


def is_full(problem: BaseException | None) -> bool:
    """Whether a full disk, or a quota, is what an error or one of its causes speaks of."""
    while problem is not None:
        if isinstance(problem, OSError) and problem.errno in _CODES:
            return True
        if _OF_TENSORSTORE.search(str(problem)):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def is_reason(reason: str | None) -> bool:
    """Whether a full disk is the reason that a status, or a worker's event, gives."""
    return str(reason).startswith(_FULL)


def named(problem: Exception, directory: pathlib.Path) -> str:
    """Returns an error in words; of a full disk where, and what to do."""
    if isinstance(problem, FullError):
        return str(problem)
    if is_full(problem):
        return _sentence(directory, "its small files take some kB")
    return f"{type(problem).__name__}: {problem}"


def _sentence(directory: pathlib.Path, needs: str) -> str:
    try:
        found = os.statvfs(directory)
        free = f"{size(found.f_bavail * found.f_frsize)} free, or a quota is used up"
    except OSError:
        free = "nobody can say how much is free"
    return (
        f"{_FULL}No space left on device for {directory} ({free}); {needs}. Make room and resume "
        "the study: nothing is lost"
    )


def size(count: int) -> str:
    """Returns bytes as people say it: '3.1 MB'."""
    value, units = float(count), ["kB", "MB", "GB", "TB"]
    value /= 1000
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.1f} {units[0]}"
