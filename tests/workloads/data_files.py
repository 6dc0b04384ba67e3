"""Files of data directories that a test compares or damages."""

import os
from pathlib import Path

LOCK = ".prepare.lock"


def contents(directory: Path) -> dict[str, bytes]:
    """Returns every file below a directory, but for the lock of its preparation."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != LOCK
    }


def flip(path: Path, place: int = -1) -> None:
    """Changes a bit of the byte at `place`."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    """Takes the last byte away."""
    path.write_bytes(path.read_bytes()[:-1])


def open_below(directory: Path) -> list[str]:
    """Returns the files below a directory that this process holds open."""
    descriptors = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    paths = [os.readlink(path) for path in descriptors]
    return [path for path in paths if path.startswith(str(directory))]
