"""TFRecord files by record number, without TensorFlow; every byte that is read is checked.

A record on disk is `length` (uint64), its checksum (uint32), the payload, its checksum (uint32),
all little-endian. Checksums are CRC-32C, rotated by 15 bits and offset by a constant.
Format: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details

Offsets of the records are scanned once per file and kept in the user's cache
(`attention.common.machine`). An entry is named by the file's absolute path, size and time of
modification, so a changed file never meets a stale index; an entry that does not fit the file is
scanned anew.
"""

import functools
import hashlib
import itertools
import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import google_crc32c
import numpy as np

from attention.common import machine
from attention.common.files import replacing
from workloads.base.errors import DataError
from workloads.storage import npy

HEADER = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
# Returns the error of a record's problem; the record's place is bound.
Where = Callable[[str], DataError]
FRAME_BYTES = HEADER.size + CHECKSUM.size
_MASK_DELTA = 0xA282EAD8
_STREAM_BYTES = 2**20


def _damage(path: str, number: int, offset: int, repair: str, problem: str) -> DataError:
    return DataError(f"{path}: record {number} at byte {offset} {problem}", repair)


def masked_crc32c(data: bytes) -> int:
    """CRC-32C of `data` as TFRecord stores it: rotated right by 15 bits, plus 0xA282EAD8."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def framed(payload: bytes) -> bytes:
    """`payload` as it stands in a file: length, checksum, payload, checksum."""
    header = HEADER.pack(len(payload), masked_crc32c(struct.pack("<Q", len(payload))))
    return b"".join((header, payload, CHECKSUM.pack(masked_crc32c(payload))))


def payload_of(frame: bytes, size: int, where: Where) -> bytes:
    """The payload of a frame that should be `size` bytes long; DataError if anything is off."""
    if len(frame) != size:
        raise where(f"is cut off: {len(frame)} of {size} bytes could be read")
    if payload_length(frame[: HEADER.size], where) != size - FRAME_BYTES:
        raise where("has a length other than the file's index says")
    payload = frame[HEADER.size : -CHECKSUM.size]
    if masked_crc32c(payload) != CHECKSUM.unpack_from(frame, size - CHECKSUM.size)[0]:
        raise where("is corrupt: the checksum of its content does not match")
    return payload


def payload_length(header: bytes, where: Where) -> int:
    """Length in bytes that a header states; DataError if it is cut off or its checksum is wrong."""
    if len(header) != HEADER.size:
        raise where(f"is cut off: {len(header)} of the {HEADER.size} header bytes are there")
    length, checksum = HEADER.unpack(header)
    if masked_crc32c(header[:8]) != checksum:
        raise where("is corrupt: the checksum of its length does not match")
    return length


def scan_offsets(path: str, repair: str = "") -> np.ndarray:
    """Byte offset of every record, and the file's size as the last entry: int64 `[records + 1]`.

    Reads the headers alone (a few µs per record). Raises DataError where a header's checksum is
    wrong or a record ends after the file does.
    """
    with open(path, "rb", buffering=0) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        offsets = [0]
        while offsets[-1] < size:
            where = functools.partial(_damage, path, len(offsets) - 1, offsets[-1], repair)
            length = payload_length(os.pread(descriptor, HEADER.size, offsets[-1]), where)
            offsets.append(offsets[-1] + length + FRAME_BYTES)
            _check_end(offsets[-1], size, where)
    return np.asarray(offsets, dtype=np.int64)


def _check_end(end: int, size: int, where: Where) -> None:
    """Raises DataError for a record that ends after its file, of `size` bytes."""
    if end > size:
        raise where(f"is cut off: it ends at byte {end}, the file at {size}")


def cached_offsets(path: str, repair: str = "") -> np.ndarray:
    """What `scan_offsets(path)` returns, from the cache where it has it.

    Raises DataError as the scan does. A cache that cannot be written costs a scan in every
    process; `logging.warning` says so once.
    """
    status = os.stat(path)
    place = f"{os.path.abspath(path)}\0{status.st_size}\0{status.st_mtime_ns}"
    name = hashlib.sha256(os.fsencode(place)).hexdigest()
    entry = machine.cache_folder() / "tfrecord_index" / name[:2] / f"{name}.npy"
    cached = _load(entry, status.st_size)
    if cached is not None:
        return cached
    scanned = scan_offsets(path, repair)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry) as new, new.open("wb") as file:
            np.save(file, scanned)
    except OSError as problem:
        _warn_once(machine.cache_folder(), str(problem))
    return scanned


def _load(entry: Path, size: int) -> np.ndarray | None:
    try:
        offsets = npy.read(entry)
        # An index that is wrong within a file is noticed by the records' checksums.
        return offsets if offsets.dtype == np.int64 and offsets[-1] == size else None
    except (DataError, IndexError):
        return None


@functools.cache
def _warn_once(directory: Path, problem: str) -> None:
    logging.warning(
        "The cache of record positions %s cannot be written (%s): every process scans the data "
        "files anew. Set ATTNPERF_CACHE to a folder that can be written.",
        directory,
        problem,
    )


def write_tfrecord(path: str | os.PathLike[str], records: Iterable[bytes]) -> None:
    """Write `records` to `path` atomically."""
    with replacing(path) as new, new.open("wb") as file:
        for record in records:
            file.write(framed(record))


def stream(path: str, repair: str = "") -> Iterator[bytes]:
    """The records of a file in order, each checked, without an index."""
    offset = 0
    with open(path, "rb", buffering=_STREAM_BYTES) as file:
        end = os.fstat(file.fileno()).st_size
        for number in itertools.count():
            header = file.read(HEADER.size)
            if not header:
                return
            where = functools.partial(_damage, path, number, offset, repair)
            size = payload_length(header, where) + FRAME_BYTES
            _check_end(offset + size, end, where)
            yield payload_of(header + file.read(size - HEADER.size), size, where)
            offset += size


class TFRecordFile:
    """One TFRecord file as a sequence of payloads (bytes). Picklable, safe in threads.

    The index of offsets is read at first use (`cached_offsets`). The file is opened for every
    record: 5 µs on a local disk, where an image of ImageNet takes some ms to decode. ImageNet has
    1024 shards, as many as the files that a process may usually keep open. `repair` is the advice
    that errors end with.
    """

    def __init__(self, path: str | os.PathLike[str], repair: str = "") -> None:
        self.path = os.path.abspath(path)
        self._repair = repair

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """Byte offset of every record, and the file's size at the end: int64 `[records + 1]`."""
        return cached_offsets(self.path, self._repair)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> bytes:
        """Payload of one record.

        Raises DataError, with record number and byte offset, where it is cut off or a checksum
        does not match; IndexError beyond the last record.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"{self.path}: record {number} asked, the file has {len(self)}")
        start, end = int(self.offsets[number]), int(self.offsets[number + 1])
        with open(self.path, "rb", buffering=0) as file:
            frame = os.pread(file.fileno(), end - start, start)
        where = functools.partial(_damage, self.path, number, start, self._repair)
        return payload_of(frame, end - start, where)
