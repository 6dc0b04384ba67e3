"""TFRecord files by record number, without TensorFlow; every byte that is read is checked."""

import functools
import os
import resource
from collections.abc import Iterable, Iterator

import numpy as np

from attention.files import replacing
from workloads.storage import tfrecord_frames, tfrecord_index


def write_tfrecord(path: str | os.PathLike[str], records: Iterable[bytes]) -> int:
    """Write `records` to `path` atomically; returns how many there were."""
    count = 0
    with replacing(path) as new, new.open("wb") as file:
        for record in records:
            file.write(tfrecord_frames.framed(record))
            count += 1
    return count


class TFRecordFile:
    """One TFRecord file as a sequence of payloads (bytes). Picklable, safe in threads.

    The index of offsets is read at first use (`workloads.storage.tfrecord_index` caches it on
    disk). The file is opened per process, on demand, and read by `os.pread`, which shares no
    position. `repair` is the advice that errors end with.
    """

    def __init__(
        self, path: str | os.PathLike[str], repair: str = tfrecord_frames.DEFAULT_REPAIR
    ) -> None:
        self.path = os.path.abspath(path)
        self._repair = repair
        self._offsets: np.ndarray | None = None
        self._identity: tuple[int, ...] = ()

    @property
    def offsets(self) -> np.ndarray:
        """Byte offset of every record, and the file's size at the end: int64 `[records + 1]`."""
        if self._offsets is None:
            status = os.stat(self.path)
            self._identity = (status.st_ino, status.st_size, status.st_mtime_ns)
            self._offsets = tfrecord_index.offsets(self.path, self._repair)
        return self._offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[bytes]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> bytes:
        """Payload of one record.

        Raises DataError, with record number and byte offset, where it is cut off or a checksum
        does not match; IndexError beyond the last record.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"{self.path}: record {number} asked, the file has {len(self)}")
        start, end = int(self.offsets[number]), int(self.offsets[number + 1])
        frame = _opened(self.path, self._identity).read(start, end)
        where = tfrecord_frames.Where(self.path, number, start, self._repair)
        return tfrecord_frames.payload_of(frame, end - start, where)


class _OpenFile:
    """A descriptor that closes when its last user lets go, even if the cache dropped it before."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`; `self` keeps the descriptor open meanwhile."""
        return os.pread(self._descriptor, end - start, start)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def _files_kept_open() -> int:
    """A quarter of the process's limit: ImageNet has 1024 shards, the usual limit is 1024 files."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2048 if limit == resource.RLIM_INFINITY else max(8, min(limit // 4, 2048))


@functools.lru_cache(maxsize=_files_kept_open())
def _opened(path: str, identity: tuple[int, ...]) -> _OpenFile:
    del identity  # part of the key: a file that was replaced is opened anew
    return _OpenFile(path)
