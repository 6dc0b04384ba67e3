"""Records in JSON files, whose keys and types msgspec checks."""

from pathlib import Path
from typing import TypeVar

import msgspec

from attention.common import files
from workloads.base.errors import DataError

Record = TypeVar("Record")


def read(path: Path, kind: type[Record], repair: str) -> Record:
    """Returns the record of a JSON file.

    Raises DataError, with `repair`, if the file is missing, damaged, or of another kind.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} cannot be read: {problem}", repair) from problem


def write(path: Path, record: msgspec.Struct, indent: int = 2) -> None:
    """Writes a record as a JSON file, which appears whole."""
    files.write(path, msgspec.json.format(msgspec.json.encode(record), indent=indent) + b"\n")
