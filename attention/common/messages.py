"""Errors in words. Standard library only."""

import errno

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


def message(error: BaseException) -> str:
    """Returns what an error says to a person: an OSError's path and remedy, not its number."""
    if not isinstance(error, OSError):
        return str(error)
    where = error.filename2 or error.filename
    if where is None:  # e.g. our own sentence on a full disk
        return error.strerror or str(error)
    return f"{where}: {_ADVICE[error.errno]}" if error.errno in _ADVICE else str(error)
