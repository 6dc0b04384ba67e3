"""A trial's files on disk: JSON records and measurements; what is wrong with them, by name."""

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.files import checked, evaluations, measurements
from analysis.files.curve_files import CurveFile
from analysis.files.measurements import KINDS, Measurements
from analysis.files.rows import Columns
from sweeps.records import layout


@dataclass
class TrialFiles:
    """The files of the trial `name`; what cannot be read is collected in `problems`."""

    directory: pathlib.Path
    name: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # What somebody has read of eval_measurements.csv already, together with other trials' files.
    ahead: Measurements | OSError | None = None

    def json(self, file: str) -> dict[str, Any]:
        """Returns the JSON object in `file`, empty where it is missing or damaged."""
        return self.json_if_there(file) or {}

    def json_if_there(self, file: str) -> dict[str, Any] | None:
        """Returns the JSON object in `file`, None where it is missing, empty where damaged; of its
        known keys only those that hold what they should."""
        before = len(self.problems)
        record = checked.read(self.directory / file, f"{self.name}/{file}", self.problems)
        return {} if record is None and len(self.problems) > before else record

    def evaluations(self) -> Measurements | None:
        """Returns the evaluations of eval_measurements.csv, None where it is missing."""
        read = self._read(layout.EVAL_MEASUREMENTS)
        if read is None:
            return None
        read = evaluations.only(read)
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
        curves = CurveFile(self.directory / layout.EVAL_MEASUREMENTS, evaluations.load)
        curves.accept(read.columns)
        return curves

    def loss_curves(self) -> Columns:
        """Returns the rows of measurements.csv, which is read when they are asked for."""
        return CurveFile(self.directory / layout.MEASUREMENTS, evaluations.load_all)

    def _read(self, file: str) -> Measurements | None:
        try:
            read = self._measurements(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems.append(f"unreadable: {self.name}/{file}: {error}")
            return None
        for problem in read.problems:
            kind = next(kind for kind in KINDS if problem.startswith(kind))
            rest = problem.removeprefix(kind).lstrip(": ")
            self.problems.append(f"{kind}: {self.name}/{file}: {rest}")
        return read

    def _measurements(self, file: str) -> Measurements:
        if file != layout.EVAL_MEASUREMENTS or self.ahead is None:
            return measurements.read(self.directory / file)
        if isinstance(self.ahead, OSError):
            raise self.ahead
        return self.ahead


def read_ahead(directories: Sequence[pathlib.Path]) -> list[Measurements | OSError]:
    """Returns the evaluations' files of these directories, as TrialFiles takes them."""
    return measurements.read_each([path / layout.EVAL_MEASUREMENTS for path in directories])
