"""A trial's files on disk: JSON records and measurements; what is wrong with them, by name."""

import os
import pathlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from analysis.load.files import csv_reader, json_records, measurements
from analysis.load.files.measurements import Columns, Measurements
from sweeps.records import layout

Result = TypeVar("Result")
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
        read = measurements.only_evaluations(read)
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

    def losses(self) -> Columns:
        """Returns the rows of measurements.csv, none where it is missing."""
        try:
            return csv_reader.read(self.directory / layout.MEASUREMENTS).columns
        except FileNotFoundError:
            return {}

    def _read(self, file: str) -> Measurements | None:
        read = self.ahead if file == layout.EVAL_MEASUREMENTS else None
        if read is None:
            try:
                read = csv_reader.read(self.directory / file)
            except OSError as error:
                read = error
        if isinstance(read, FileNotFoundError):
            return None
        if isinstance(read, OSError):
            self.problems.append(f"unreadable: {self.name}/{file}: {read}")
            return None
        for problem in read.problems:
            kind = next(kind for kind in csv_reader.KINDS if problem.startswith(kind))
            rest = problem.removeprefix(kind).lstrip(": ")
            self.problems.append(f"{kind}: {self.name}/{file}: {rest}")
        return read


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


def fabricated(name: str, meta: dict[str, Any]) -> tuple[str, ...]:
    """Returns a sentence where a trial's meta_data_0.json says that its data was the made-up data
    with which AlgoPerf's workloads are tried."""
    if not meta.get("workload.attnperf_tiny"):
        return ()
    return (f"fabricated: {name}: its data is that of `algoperf_data`; nothing follows from it",)
