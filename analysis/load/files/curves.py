"""Columns of CSV files: they stay there until they are asked for, and some rows are remembered."""

import collections
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sweeps.study import selection as rule

STEP, ATTEMPT = "global_step", "preemption_count"
# From here on a float64, as which cells are read, does not hold every whole number.
LARGEST = 2**53
# A column's name to its array [rows]; a file's columns may be loaded when they are asked for.
Columns = Mapping[str, np.ndarray]
Mode = Literal["min", "max"]
Load = Callable[[pathlib.Path], Columns]


@dataclass(frozen=True, eq=False)
class Measurements:
    """What a file held.

    `columns` maps a column's name to a float64 array [rows], by ascending step; `global_step` is
    int64; an empty cell is nan, and `empty` maps the columns that have one to a bool array [rows]:
    AlgoPerf's own files write nan as an empty cell, ours write `nan`. `problems` names what is
    damaged, each beginning with one of `csv_reader.KINDS`; `notes` what was put in order.
    """

    columns: Columns
    empty: Columns = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


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


class ChangedFileError(ValueError):
    """A file's rows are no longer those that were read first; the message names it."""


class CurveFile(Mapping[str, np.ndarray]):
    """A file's columns as a mapping: a name to a read-only array [rows].

    The file is read when an array is first asked for (or the names, where `read` has not been told
    them) and again whenever `cache` has forgotten it. Rows that a running trial has added since
    are left out, so that every array has as many rows as the first. What a table needs of a curve
    (`best`, `row`, the last row) is remembered, so that a study's table reads each file once.
    """

    def __init__(self, path: pathlib.Path, load: Load, cache: CurveCache = SHARED) -> None:
        self._path, self._load, self._cache = path, load, cache
        self._names: tuple[str, ...] | None = None
        self._last_step: int | None = None
        self._rows = 0
        self._best: dict[tuple[str, Mode], int | None] = {}
        self._row: dict[int, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._columns()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def __contains__(self, name: object) -> bool:
        return name in self._known()

    @property
    def rows(self) -> int:
        """Returns how many rows there are."""
        self._known()
        return self._rows

    @property
    def last_step(self) -> int | None:
        """Returns the last row's step, None where there is no row."""
        self._known()
        return self._last_step

    def accept(self, columns: Columns) -> None:
        """Takes `columns` as what the file holds: whoever has read it need not read it again."""
        steps = columns.get(STEP, np.empty(0))
        self._names, self._rows = tuple(columns), len(steps)
        self._last_step = int(steps[-1]) if len(steps) else None
        for values in columns.values():
            values.setflags(write=False)
        self._cache.put(self._path, columns)
        if self._rows:
            self._row[self._rows - 1] = _values(columns, self._rows - 1)

    def best(self, name: str, mode: Mode) -> int | None:
        """Returns `best_index` of this file's column, remembered."""
        if (name, mode) not in self._best:
            self._best[name, mode] = index = _best(self[name], mode)
            if index is not None:
                self.row(index)
        return self._best[name, mode]

    def row(self, index: int) -> dict[str, float]:
        """Returns `row` of this file, remembered."""
        if index not in self._row:
            self._row[index] = _values(self._columns(), index)
        values = dict(zip(self._known(), self._row[index].tolist(), strict=True))
        return values | {STEP: int(values[STEP])}

    def _known(self) -> tuple[str, ...]:
        if self._names is None:
            self._columns()
        return self._names or ()

    def _columns(self) -> Columns:
        # What the cache keeps of this path may be of an earlier reading of it.
        if self._names is None:
            return self._loaded()
        return self._cache.get(self._path, self._loaded)

    def _loaded(self) -> Columns:
        columns = self._load(self._path)
        if self._names is None:
            self.accept(columns)
            return columns
        return self._as_first_read(columns)

    def _as_first_read(self, columns: Columns) -> Columns:
        steps = columns.get(STEP, np.empty(0))
        rows = int(np.searchsorted(steps, self._last_step or 0, side="right"))
        last = int(steps[rows - 1]) if rows else None
        if (rows, last, tuple(columns)) != (self._rows, self._last_step, self._names):
            raise ChangedFileError(f"{self._path}: it was rewritten while it was read; run again")
        first = {name: values[:rows] for name, values in columns.items()}
        for values in first.values():
            values.setflags(write=False)
        return first


def best_index(columns: Columns, name: str, mode: Mode) -> int | None:
    """Returns the index of the largest (`max`) or smallest value of a column, the first on ties,
    None where no value is finite. Raises KeyError where there is no such column."""
    if isinstance(columns, CurveFile):
        return columns.best(name, mode)
    return _best(columns[name], mode)


def row(columns: Columns, index: int) -> dict[str, float]:
    """Returns one row, a column's name to its value; `global_step` is an int."""
    if isinstance(columns, CurveFile):
        return columns.row(index)
    return {name: values[index].item() for name, values in columns.items()}


def last_step(columns: Columns) -> int | None:
    """Returns the last row's step, None where there is no row."""
    if isinstance(columns, CurveFile):
        return columns.last_step
    steps = columns.get(STEP, np.empty(0))
    return int(steps[-1]) if len(steps) else None


def last_row(columns: Columns) -> dict[str, float] | None:
    """Returns the last row as `row` does, None where there is none."""
    rows = columns.rows if isinstance(columns, CurveFile) else len(columns.get(STEP, ()))
    return row(columns, rows - 1) if rows else None


def _values(columns: Columns, index: int) -> np.ndarray:
    return np.array([values[index] for values in columns.values()], dtype=np.float64)


def _best(values: np.ndarray, mode: Mode) -> int | None:
    return rule.best_index(values.tolist(), mode)
