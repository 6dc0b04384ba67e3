"""Curves of many files, the ones used last, in a bounded number of bytes."""

import collections
import pathlib
import threading
from collections.abc import Callable

from analysis.files.rows import Columns

# 2,000 files of 200 rows and 20 columns of float64: a table of any usual study is read once.
LIMIT = 64 * 1024 * 1024


class CurveCache:
    """Maps a file to its columns; forgets those used longest ago beyond `limit` bytes.

    Threads may share one. A file larger than the limit is handed out and not kept.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.size = 0
        self._kept: collections.OrderedDict[pathlib.Path, Columns] = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: pathlib.Path, load: Callable[[], Columns]) -> Columns:
        """Returns the columns of `path`, by `load()` where they are not kept."""
        with self._lock:
            if path in self._kept:
                self._kept.move_to_end(path)
                return self._kept[path]
        columns = load()
        self.put(path, columns)
        return columns

    def put(self, path: pathlib.Path, columns: Columns) -> None:
        """Keeps `columns` as those of `path`."""
        with self._lock:
            self.size += _bytes(columns) - _bytes(self._kept.pop(path, {}))
            self._kept[path] = columns
            while self.size > self.limit:
                _, forgotten = self._kept.popitem(last=False)
                self.size -= _bytes(forgotten)


def _bytes(columns: Columns) -> int:
    return sum(values.nbytes for values in columns.values())


SHARED = CurveCache()
