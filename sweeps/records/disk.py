"""A disk that is full: recognised whoever reports it, and named with the room that is needed."""

import errno
import os
import pathlib
import re

_CODES = (errno.ENOSPC, errno.EDQUOT)
_OF_TENSORSTORE = re.compile(rf"os_error_code='({errno.ENOSPC}|{errno.EDQUOT})'")


class FullError(OSError):
    """A disk is full; the message names it, its free space and what is needed."""

    def __init__(self, directory: pathlib.Path, needs: str) -> None:
        try:
            disk = os.statvfs(directory)
            free = f"{size(disk.f_bavail * disk.f_frsize)} free, or a quota is used up"
        except OSError:
            free = "its free space is unknown"
        super().__init__(
            f"disk full: No space left on device for {directory} ({free}); {needs}. Make room and "
            "resume the study: nothing is lost"
        )
        self.errno = errno.ENOSPC


def is_full(problem: BaseException | None) -> bool:
    """Whether an error, or one of its causes, is that of a full disk or a quota."""
    while problem is not None:
        if isinstance(problem, OSError) and problem.errno in _CODES:
            return True
        if _OF_TENSORSTORE.search(str(problem)):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def named(problem: Exception, directory: pathlib.Path) -> str:
    """Returns an error as text; a full disk's with its directory and what to do."""
    if is_full(problem) and not isinstance(problem, FullError):
        problem = FullError(directory, "its small files take some kB")
    return str(problem) if is_full(problem) else f"{type(problem).__name__}: {problem}"


def size(count: float) -> str:
    """Returns bytes in the unit that people use: '3.1 MB'."""
    thousands = min(4, max(1, (len(str(int(count))) - 1) // 3))
    return f"{count / 1000**thousands:.1f} {('kB', 'MB', 'GB', 'TB')[thousands - 1]}"
