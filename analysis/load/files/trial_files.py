"""A trial's files on disk: JSON records and measurements; what is wrong with them, by name.

Of eval_measurements.csv: rows that evaluate nothing, nan, inf, columns that are not there.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from analysis.load.files import csv_reader, json_records
from analysis.load.files.curves import ATTEMPT, STEP, Columns, CurveFile, Measurements
from sweeps.records import layout

Result = TypeVar("Result")
# Counts, which are no metric.
COUNTS = ("num_examples",)
# What runs in Python itself cannot be shared: a third thread gained nothing on two cores.
THREADS = min(2, os.cpu_count() or 1)
# Files that are parsed together: Arrow takes 0.36 ms for one of 200 lines, 0.15 ms each for many.
CHUNK = 32


@dataclass
class TrialFiles:
    """The files of the trial `name`; what cannot be read is collected in `problems`."""

    directory: pathlib.Path
    name: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # What was read of eval_measurements.csv already, together with other trials' files.
    ahead: Measurements | OSError | None = None

    def json(self, file: str) -> dict[str, Any]:
        """Returns the JSON object in `file`, empty where it is missing or damaged."""
        return self.json_if_there(file) or {}

    def json_if_there(self, file: str) -> dict[str, Any] | None:
        """Returns the JSON object in `file`, None where it is missing, empty where damaged; of its
        known keys only those that hold what they should."""
        before = len(self.problems)
        record = json_records.read(self.directory / file, f"{self.name}/{file}", self.problems)
        return {} if record is None and len(self.problems) > before else record

    def evaluations(self) -> Measurements | None:
        """Returns the evaluations of eval_measurements.csv, None where it is missing."""
        read = self._read(layout.EVAL_MEASUREMENTS)
        if read is None:
            return None
        read = only_evaluations(read)
        self.notes += [f"{self.name}: {note}" for note in read.notes]
        return read

    def check_losses(self) -> None:
        """Reads measurements.csv for what is wrong with it alone; a file may be long."""
        read = self._read(layout.MEASUREMENTS)
        notes = read.notes if read else ()
        self.notes += [f"{self.name}/{layout.MEASUREMENTS}: {note}" for note in notes]

    def has(self, file: str) -> bool:
        """Returns whether there is such a file."""
        return (self.directory / file).is_file()

    def names_damage(self, file: str) -> bool:
        """Returns whether a problem with `file` has been named already."""
        return any(f"{self.name}/{file}: " in problem for problem in self.problems)

    def evaluation_curves(self, read: Measurements) -> Columns:
        """Returns `read.columns` as columns that may leave memory and come back."""
        curves = CurveFile(self.directory / layout.EVAL_MEASUREMENTS, load_evaluations)
        curves.accept(read.columns)
        return curves

    def loss_curves(self) -> Columns:
        """Returns the rows of measurements.csv, which is read when they are asked for."""
        return CurveFile(self.directory / layout.MEASUREMENTS, load_rows)

    def _read(self, file: str) -> Measurements | None:
        try:
            read = self._measurements(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems.append(f"unreadable: {self.name}/{file}: {error}")
            return None
        for problem in read.problems:
            kind = next(kind for kind in csv_reader.KINDS if problem.startswith(kind))
            rest = problem.removeprefix(kind).lstrip(": ")
            self.problems.append(f"{kind}: {self.name}/{file}: {rest}")
        return read

    def _measurements(self, file: str) -> Measurements:
        if file != layout.EVAL_MEASUREMENTS or self.ahead is None:
            return csv_reader.read(self.directory / file)
        if isinstance(self.ahead, OSError):
            raise self.ahead
        return self.ahead


def read_each(
    places: Sequence[tuple[pathlib.Path, str]], read: Callable[[int, TrialFiles], Result]
) -> list[Result]:
    """Returns `read(index, files)` for the trials at `places`, directories and names, in order.

    Their evaluations' files are parsed together, CHUNK at a time; reading and Arrow's parsing leave
    Python's lock to another thread. Raises what `read` raises.
    """

    def of_chunk(start: int) -> list[Result]:
        chunk = places[start : start + CHUNK]
        ahead = csv_reader.read_each([path / layout.EVAL_MEASUREMENTS for path, _ in chunk])
        files = [TrialFiles(*place, ahead=each) for place, each in zip(chunk, ahead, strict=True)]
        return [read(start + number, each) for number, each in enumerate(files)]

    starts = range(0, len(places), CHUNK)
    if len(starts) < 2 or THREADS < 2:
        return [result for start in starts for result in of_chunk(start)]
    with ThreadPoolExecutor(THREADS) as threads:
        return [result for results in threads.map(of_chunk, starts) for result in results]


def load_evaluations(path: pathlib.Path) -> Columns:
    """Returns the evaluations in the file `path`. Raises FileNotFoundError."""
    return only_evaluations(csv_reader.read(path)).columns


def load_rows(path: pathlib.Path) -> Columns:
    """Returns every row of the file `path`, none where it is missing."""
    try:
        return csv_reader.read(path).columns
    except FileNotFoundError:
        return {}


def only_evaluations(read: Measurements) -> Measurements:
    """Returns the rows that evaluate something, and a note on those that do not: a file may hold
    rows that only log the loss. An evaluation whose metrics are all nan, empty cells in AlgoPerf's
    logs, is still one: its numbers of examples are there. Of a split without examples AlgoPerf
    reports made-up figures (finewebedu_lm: a test perplexity of 1), which are left out, too."""
    read = _without_splits_of_nothing(read)
    results = [name for name in read.columns if name.partition("/")[0] in layout.SPLITS]
    if not results or any(name not in read.empty for name in results):
        return read
    nothing = np.all([read.empty[name] for name in results], axis=0)
    if not nothing.any():
        return read
    note = f"mixed rows: {nothing.sum()} of {len(nothing)} evaluate nothing and are left out"
    return dataclasses.replace(
        read,
        columns={name: values[~nothing] for name, values in read.columns.items()},
        empty={name: cells[~nothing] for name, cells in read.empty.items()},
        notes=(*read.notes, note),
    )


def splits_of_nothing(columns: Columns) -> list[str]:
    """Returns the splits whose every count of examples is 0."""
    found = []
    for split in layout.SPLITS:
        count = columns.get(f"{split}/{COUNTS[0]}", np.zeros(0))
        stated = count[~np.isnan(count)]
        if stated.size and not stated.any():
            found.append(split)
    return found


def _without_splits_of_nothing(read: Measurements) -> Measurements:
    nothing = splits_of_nothing(read.columns)
    if not nothing:
        return read

    def kept(columns: Columns) -> Columns:
        return {
            name: cells
            for name, cells in columns.items()
            if name.partition("/")[0] not in nothing or not is_metric(name)
        }

    notes = (f"{split}: no examples, and its figures are left out" for split in nothing)
    return dataclasses.replace(
        read, columns=kept(read.columns), empty=kept(read.empty), notes=(*read.notes, *notes)
    )


def is_metric(name: str) -> bool:
    """Returns whether a column is a metric's: `validation/loss`, `test/wer`."""
    split, _, rest = name.partition("/")
    return split in layout.SPLITS and bool(rest) and rest not in COUNTS


def non_finite(read: Measurements, empty_is_nan: bool) -> list[str]:
    """Returns where metrics are nan or inf, columns of the same evaluations together:
    `validation/loss, test/loss at step 300 (3 evaluations)`.

    `empty_is_nan`: AlgoPerf's logs are written by pandas, which writes nan as an empty cell; in
    ours an empty cell is a metric that was not measured. A column without any value is missing.
    """
    alike: dict[bytes, list[str]] = {}
    for name, values in read.columns.items():
        empty = read.empty.get(name)
        if not is_metric(name) or (empty is not None and empty.all()):
            continue
        wrong = ~np.isfinite(values)
        if empty is not None and not empty_is_nan:
            wrong &= ~empty
        if wrong.any():
            alike.setdefault(wrong.tobytes(), []).append(name)
    steps = read.columns.get(STEP, np.empty(0))
    return [_where(names, np.frombuffer(key, dtype=bool), steps) for key, names in alike.items()]


def _where(names: list[str], wrong: np.ndarray, steps: np.ndarray) -> str:
    count = int(wrong.sum())
    number = "1 evaluation" if count == 1 else f"{count} evaluations"
    first = steps[np.argmax(wrong)]
    return f"{', '.join(sorted(names))} at step {first} ({number})"


def absent(read: Measurements, metric: str) -> list[str]:
    """Returns the columns that an evaluation should have and that are not there or hold nothing:
    the metric's on each split but validation, without which nothing can be chosen and which is
    named elsewhere, and the count of preemptions."""
    nothing = splits_of_nothing(read.columns)
    wanted = [
        f"{split}/{metric}"
        for split in layout.SPLITS
        if split != "validation" and split not in nothing
    ]
    return [name for name in (*wanted, ATTEMPT) if not _holds(read, name)]


def _holds(read: Measurements, name: str) -> bool:
    empty = read.empty.get(name)
    return name in read.columns and (empty is None or not empty.all())


def fabricated(name: str, meta: dict[str, Any]) -> tuple[str, ...]:
    """Returns a sentence where a trial's meta_data_0.json says that its data was the made-up data
    with which AlgoPerf's workloads are tried."""
    if not meta.get("workload.attnperf_tiny"):
        return ()
    return (f"fabricated: {name}: its data is that of `algoperf_data`; nothing follows from it",)
