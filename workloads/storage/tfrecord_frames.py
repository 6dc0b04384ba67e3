"""The frame around a TFRecord payload: its checksums, and where in a file each frame lies.

A record on disk is `length` (uint64), its checksum (uint32), the payload, its checksum (uint32),
all little-endian. Checksums are CRC-32C, rotated by 15 bits and offset by a constant.
Format: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

import os
import struct

import google_crc32c
import numpy as np

from workloads.base.errors import DataError

HEADER = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
FRAME_BYTES = HEADER.size + CHECKSUM.size
_MASK_DELTA = 0xA282EAD8

DEFAULT_REPAIR = (
    "copy the file again from where it came, or prepare the directory again with "
    "`python -m workloads prepare NAME`; `python -m workloads check NAME --data_dir DIR` tells "
    "whether it is whole"
)


class Where:
    """The place of a record, kept cheaply until an error has to name it."""

    __slots__ = ("number", "offset", "path", "repair")

    def __init__(self, path: str, number: int, offset: int, repair: str) -> None:
        self.path, self.number, self.offset, self.repair = path, number, offset, repair

    def error(self, problem: str) -> DataError:
        """The DataError that says what is wrong with this record."""
        return DataError(
            f"{self.path}: record {self.number} at byte {self.offset} {problem}", self.repair
        )


def masked_crc32c(data: bytes) -> int:
    """CRC-32C of `data` as TFRecord stores it: rotated right by 15 bits, plus 0xA282EAD8."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def framed(payload: bytes) -> bytes:
    """`payload` as it stands in a file: length, checksum, payload, checksum."""
    length = struct.pack("<Q", len(payload))
    header = HEADER.pack(len(payload), masked_crc32c(length))
    return b"".join((header, payload, CHECKSUM.pack(masked_crc32c(payload))))


def payload_of(frame: bytes, size: int, where: Where) -> bytes:
    """The payload of a frame that should be `size` bytes long; DataError if anything is off."""
    if len(frame) != size:
        raise where.error(f"is cut off: {len(frame)} of {size} bytes could be read")
    if payload_length(frame[: HEADER.size], where) != size - FRAME_BYTES:
        raise where.error("has a length other than the file's index says")
    payload = frame[HEADER.size : -CHECKSUM.size]
    if masked_crc32c(payload) != CHECKSUM.unpack_from(frame, size - CHECKSUM.size)[0]:
        raise where.error("is corrupt: the checksum of its content does not match")
    return payload


def payload_length(header: bytes, where: Where) -> int:
    """Length in bytes that a header states; DataError if it is cut off or its checksum is wrong."""
    if len(header) != HEADER.size:
        raise where.error(f"is cut off: {len(header)} of the {HEADER.size} header bytes are there")
    length, checksum = HEADER.unpack(header)
    if masked_crc32c(header[:8]) != checksum:
        raise where.error("is corrupt: the checksum of its length does not match")
    return length


def scan_offsets(path: str, repair: str = DEFAULT_REPAIR) -> np.ndarray:
    """Byte offset of every record, and the file's size as the last entry: int64 `[records + 1]`.

    Reads the headers alone (a few µs per record). Raises DataError where a header's checksum is
    wrong or a record ends after the file does.
    """
    with open(path, "rb", buffering=0) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        offsets = [0]
        while offsets[-1] < size:
            where = Where(path, len(offsets) - 1, offsets[-1], repair)
            length = payload_length(os.pread(descriptor, HEADER.size, offsets[-1]), where)
            offsets.append(offsets[-1] + length + FRAME_BYTES)
            if offsets[-1] > size:
                raise where.error(f"is cut off: it ends at byte {offsets[-1]}, the file at {size}")
    return np.asarray(offsets, dtype=np.int64)
