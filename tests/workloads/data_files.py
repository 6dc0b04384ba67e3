"""Files of data directories that a test compares or damages."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

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


def written(content: bytes | str) -> Callable[[Path], object]:
    """Returns a damage that replaces a file's content."""
    encoded = content.encode() if isinstance(content, str) else content
    return lambda path: path.write_bytes(encoded)


def saved(array: np.ndarray) -> Callable[[Path], object]:
    """Returns a damage that puts another array into an .npy file."""
    return lambda path: np.save(path, array)


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """Returns a damage that changes the object in a JSON file."""

    def edit(path: Path) -> None:
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return edit
