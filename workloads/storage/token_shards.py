"""One file of token records: a NumPy array uint16 `[records, length]`, written as a stream.

Why not array_record: rows of one size need no index, and a memory map reads one with a page fault,
through a page cache that all worker processes share; array_record unpacks and copies each (and
adds 16 bytes and a call into C++). Damage is found by size at opening, by SHA-256 in a full check.
"""

import functools
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from attention.files import replacing
from workloads.base.errors import DataError

DTYPE = np.dtype("<u2")
MAX_VOCAB_SIZE = 2**16


def file_name(split: str, shard: int, shards: int) -> str:
    """`<split>-00000-of-00001.npy`."""
    return f"{split}-{shard:05d}-of-{shards:05d}.npy"


class ShardWriter:
    """Appends rows to an open file; `records` counts them. Made by `writing`."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file, self._length = file, length
        self.records = 0
        self._header_bytes = file.write(self._header())

    def write(self, rows: np.ndarray) -> None:
        """Append rows `[n, length]`; ValueError for another shape or dtype."""
        if rows.dtype != DTYPE or rows.shape[1:] != (self._length,):
            raise ValueError(
                f"rows are {rows.dtype} {list(rows.shape)}; {DTYPE} [n, {self._length}] is needed"
            )
        self._file.write(np.ascontiguousarray(rows).data)
        self.records += len(rows)

    def finish(self) -> None:
        """Write the number of rows into the header."""
        header = self._header()
        if len(header) != self._header_bytes:
            raise RuntimeError(f"header grew to {len(header)} bytes from {self._header_bytes}")
        self._file.seek(0)
        self._file.write(header)

    def _header(self) -> bytes:
        shape = (self.records, self._length)
        text = f"{{'descr': '{DTYPE.str}', 'fortran_order': False, 'shape': {shape}, }}"
        # 128 bytes hold any number of rows; NumPy's own headers are padded to multiples of 64.
        return np.lib.format.magic(1, 0) + (118).to_bytes(2, "little") + _padded(text, 118)


def _padded(text: str, size: int) -> bytes:
    return text.ljust(size - 1).encode("latin1") + b"\n"


@contextmanager
def writing(path: Path, length: int) -> Iterator[ShardWriter]:
    """A writer whose file appears under `path` when the block ends well, and not otherwise."""
    with replacing(path) as new, new.open("wb") as file:
        writer = ShardWriter(file, length)
        yield writer
        writer.finish()


def check_file(path: Path, records: int, length: int, repair: str) -> None:
    """DataError unless the header and the file's size say uint16 `[records, length]`."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            start, size = file.tell(), os.fstat(file.fileno()).st_size
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} cannot be read: {problem}", repair) from problem
    if (version, shape, fortran, dtype) != ((1, 0), (records, length), False, DTYPE):
        raise DataError(
            f"{path} holds {dtype} {list(shape)}; {DTYPE} [{records}, {length}] is expected", repair
        )
    expected = start + records * length * DTYPE.itemsize
    if size != expected:
        raise DataError(f"{path} has {size} bytes; {expected} are expected", repair)


@functools.lru_cache(maxsize=4096)
def _mapped(path: str, identity: tuple[int, ...]) -> Any:
    del identity  # part of the key: a file that was replaced is mapped anew
    return np.load(path, mmap_mode="r", allow_pickle=False)


def row(path: str, identity: tuple[int, ...], number: int) -> np.ndarray:
    """A copy of one row, uint16 `[length]`; the file stays mapped in this process."""
    return np.array(_mapped(path, identity)[number])


def identity(path: str) -> tuple[int, ...]:
    """What tells a file from one that replaced it."""
    status = os.stat(path)
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def sha256(path: Path) -> str:
    """SHA-256 of the file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
