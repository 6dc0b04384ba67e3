"""The shards of a TFDS split, in either of its file formats: by record number, or as a stream."""

import bisect
import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from workloads.base.errors import DataError
from workloads.storage import tfrecord, tfrecord_frames

_STREAM_BYTES = 2**20


class RecordFiles(Protocol):
    """Serialized examples by number, over all shards of a split."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> bytes: ...


def open_shards(
    file_format: str,
    shards: Sequence[str],
    lengths: Sequence[int],
    repair: str,
) -> RecordFiles:
    """The records of all shards. Raises DataError for another file format."""
    _check_format(file_format, shards, repair)
    if file_format == "tfrecord":
        return _TFRecordShards(shards, lengths, repair)
    return _ArrayRecordShards(shards, lengths, repair)


def stream(file_format: str, path: str, repair: str) -> Iterator[bytes]:
    """The records of one shard in order, each checked, without an index.

    Raises DataError where a record is damaged or the file format cannot be read.
    """
    _check_format(file_format, (path,), repair)
    return (
        _stream_tfrecord(path, repair) if file_format == "tfrecord" else _stream_array(path, repair)
    )


def _check_format(file_format: str, shards: Sequence[str], repair: str) -> None:
    if file_format not in ("tfrecord", "array_record"):
        raise DataError(
            f"{os.path.dirname(shards[0])}: file format {file_format!r} cannot be read; tfrecord "
            "and array_record can",
            repair,
        )


def _stream_tfrecord(path: str, repair: str) -> Iterator[bytes]:
    offset = 0
    with open(path, "rb", buffering=_STREAM_BYTES) as file:
        for number in itertools.count():
            header = file.read(tfrecord_frames.HEADER.size)
            if not header:
                return
            where = tfrecord_frames.Where(path, number, offset, repair)
            length = tfrecord_frames.payload_length(header, where)
            rest = file.read(length + tfrecord_frames.CHECKSUM.size)
            size = length + tfrecord_frames.FRAME_BYTES
            yield tfrecord_frames.payload_of(header + rest, size, where)
            offset += size


def _stream_array(path: str, repair: str) -> Iterator[bytes]:
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    try:
        source = ArrayRecordDataSource([path])
        for number in range(len(source)):
            yield source[number]
    except (RuntimeError, ValueError, IndexError) as problem:
        raise DataError(f"{path} cannot be read: {problem}", repair) from problem


class _TFRecordShards:
    def __init__(self, shards: Sequence[str], lengths: Sequence[int], repair: str) -> None:
        self._files = [tfrecord.TFRecordFile(path, repair) for path in shards]
        self._lengths = lengths
        self._starts = list(itertools.accumulate(lengths, initial=0))
        self._repair = repair

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> bytes:
        shard = bisect.bisect_right(self._starts, number) - 1
        file = self._files[shard]
        if len(file) != self._lengths[shard]:
            raise DataError(
                f"{file.path} has {len(file)} records, dataset_info.json says "
                f"{self._lengths[shard]}",
                self._repair,
            )
        return file[number - self._starts[shard]]


class _ArrayRecordShards:
    def __init__(self, shards: Sequence[str], lengths: Sequence[int], repair: str) -> None:
        self._shards, self._lengths, self._repair = shards, lengths, repair

    def __len__(self) -> int:
        return sum(self._lengths)

    def __getitem__(self, number: int) -> bytes:
        try:
            return self._source[number]
        except (RuntimeError, ValueError, IndexError) as problem:
            where = f"{os.path.dirname(self._shards[0])}: record {number} of the split"
            raise DataError(f"{where} cannot be read: {problem}", self._repair) from problem

    @functools.cached_property
    def _source(self) -> Any:
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        source = ArrayRecordDataSource(list(self._shards))
        if len(source) != len(self):
            raise ValueError(f"the shards hold {len(source)} records, not {len(self)}")
        return source

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_source"}
