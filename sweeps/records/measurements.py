"""Measurements: each attempt appends to its own file; the trial's CSVs are published from them.

One JSON object a line, written by a single append: a process killed while writing leaves at most
one incomplete last line, which is not a measurement. Rows: {"kind": "train", "global_step", "loss",
"grad_norm", ...} for the update that was number global_step (from 0, as AlgoPerf logs it), with the
speed of `sweeps.training.live` where it was measured, and
{"kind": "eval", "global_step", <split>/<metric> ..., times} after that many updates; so are those
of {"kind": "diagnostics", "global_step", "histogram_edges_log10", "examples", "layers": [{"layer",
"index", ...}, ...]}, a recording each, so that it is whole or not there.

The CSVs are written anew at evaluations, at once or not at all. Between two of them an attempt
appends its train rows to measurements.csv as complete lines (`LiveCsv`), which is what writing it
anew would give; what a killed process left there is written anew with the next attempt's first row.

Recordings go into a file of their own, diagnostics.jsonl. Its first line: {"format":
"attnperf-diagnostics-1", "histogram_edges_log10": [...], "examples": n}; then a line for each
recorded step and layer: {"global_step", "preemption_count", "layer": path, "index": its place in
the model from 0, ...}, the numbers those of `attention.verification.diagnostics.summary`.
"""

import csv
import io
import json
import os
import pathlib
from typing import Any, Protocol

from sweeps.records import layout, lease

FILE = "measurements.jsonl"
RESUMED = "resumed.json"
DIAGNOSTICS = "diagnostics"  # a kind of row
_SHARED = ("histogram_edges_log10", "examples")
_FIRST = ("global_step", "grad_norm", "loss")
_OF_TRAIN_ROWS = ("kind", "preemption_count", *_FIRST)
# A CSV's end that is read to judge it; a line takes some 500 bytes.
_TAIL = 1 << 14


class Writer:
    """Appends to an attempt's measurements; complete lines, flushed to disk on `sync`."""

    def __init__(self, attempt: pathlib.Path) -> None:
        self._descriptor = os.open(attempt / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Writes rows, a line each. Raises OSError on a full disk, here and not at close."""
        _append(self._descriptor, "".join(json.dumps(row) + "\n" for row in rows))

    def sync(self) -> None:
        """Blocks until all rows are on disk: call it before a checkpoint that counts on them."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


def _append(descriptor: int, text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(descriptor, data) :]


class LiveCsv:
    """A trial's CSVs while an attempt writes them."""

    def __init__(self, attempt: lease.Attempt) -> None:
        self._attempt = attempt
        self._columns: list[str] = []

    def publish(self) -> None:
        """Writes the CSVs anew from the attempts' own files."""
        self._columns = publish(self._attempt.trial_directory)

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Adds train rows that are in the attempt's own file already to measurements.csv.

        Writes it anew where this attempt has not yet, a column is new, or the file is gone. Raises
        OSError on a full disk.
        """
        rows = [{**row, "preemption_count": self._attempt.number - 1} for row in rows]
        known = {"kind", *self._columns}
        if all(row.keys() <= known for row in rows):
            path = self._attempt.trial_directory / layout.MEASUREMENTS
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
            except FileNotFoundError:
                pass
            else:
                try:
                    _append(descriptor, _to_csv(rows, self._columns, header=False))
                finally:
                    os.close(descriptor)
                return
        self.publish()


def damages(trial_directory: pathlib.Path) -> list[str]:
    """Returns a sentence on each attempt's first damaged line, an incomplete last one aside."""
    attempts = range(1, lease.latest(trial_directory) + 1)
    found = (_until_damage(trial_directory / layout.ATTEMPTS / str(k))[1] for k in attempts)
    return [damage for damage in found if damage is not None]


def _until_damage(attempt: pathlib.Path) -> tuple[list[dict[str, Any]], str | None]:
    """Returns the rows before the first damaged line, and what is wrong with that line.

    An incomplete last line is left out and is no damage.
    """
    path = attempt / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], None
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        row = _row(line)
        if row is None:
            return rows, f"{path}, line {number}: not a measurement: {line[:80]!r}"
        rows.append(row)
    return rows, None


def _row(line: bytes) -> dict[str, Any] | None:
    """Returns the row in a line, None where it holds none."""
    try:
        row = json.loads(line.decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        return None
    return row if isinstance(row, dict) and {"kind", "global_step"} <= row.keys() else None


def curve(trial_directory: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the trial's rows: attempt k's, cut where attempt k + 1 resumed, in order of steps.

    Each row gets the `preemption_count` of its attempt (k − 1). What follows a damaged line is left
    out: no attempt resumes behind it (`sweeps.training.checkpoints`), so that a later one measured
    it again.
    """
    rows: list[dict[str, Any]] = []
    for number in range(1, lease.latest(trial_directory) + 1):
        attempt = trial_directory / layout.ATTEMPTS / str(number)
        resumed = layout.read_json_if_there(attempt / RESUMED)
        if resumed is not None:
            rows = [row for row in rows if _is_kept(row, resumed["global_step"])]
            own, _ = _until_damage(attempt)
            rows += [{**row, "preemption_count": number - 1} for row in own]
    return rows


def _is_kept(row: dict[str, Any], resumed: int) -> bool:
    """Whether a row stands once a later attempt resumed after that many updates.

    Diagnostics of step 0 come before the first update: an attempt from the start makes them anew.
    """
    after = row["kind"] == "eval" or (row["kind"] == DIAGNOSTICS and resumed > 0)
    return bool(row["global_step"] < resumed + after)


class Budget(Protocol):
    """How often a trial measures, in updates: the part of `sweeps.study.trial.Trial` asked here."""

    @property
    def steps(self) -> int:
        """Updates in all; the last one is evaluated, too."""

    @property
    def eval_every(self) -> int:
        """Between evaluations."""

    @property
    def log_every(self) -> int:
        """Between losses."""

    @property
    def first_logged(self) -> int:
        """The update, from 0, whose loss is the first."""


def missing(rows: list[dict[str, Any]], step: int, budget: Budget) -> str | None:
    """Returns the first measurement that should be there once `step` updates are done, or None."""
    losses = {row["global_step"] for row in rows if row["kind"] == "train"}
    evaluations = {row["global_step"] for row in rows if row["kind"] == "eval"}
    due = [*range(budget.eval_every, step + 1, budget.eval_every)]
    due += [budget.steps] * (step == budget.steps)
    for update in range(budget.first_logged, step, budget.log_every):
        if update not in losses:
            return f"loss of update {update}"
    for done in due:
        if done not in evaluations:
            return f"evaluation after {done} updates"
    return None


def unsound(trial_directory: pathlib.Path, steps: int) -> str | None:
    """Returns what the CSVs of a trial that is done lack, None where they are whole.

    Whole is what `publish` leaves after the last of `steps` updates: both files, each with the
    evaluation after that update in a last line which is complete. Only their ends are read. Raises
    OSError where one cannot be read for now: that is no damage.
    """
    files = (trial_directory / name for name in (layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS))
    return next((found for path in files if (found := lacking(path, steps)) is not None), None)


def lacking(path: pathlib.Path, steps: int) -> str | None:
    """Returns what one of the two CSVs lacks, as `unsound`."""
    try:
        problem = ends_early(_last_step(path), steps)
    except (FileNotFoundError, NotADirectoryError):
        return f"no {path.name}"
    except IsADirectoryError:
        problem = "it is a directory"
    except ValueError as error:
        problem = str(error)
    return problem and f"{path.name}: {problem}"


def ends_early(last_step: int | None, steps: int) -> str | None:
    """Returns what a done trial of `steps` updates lacks whose last evaluation is `last_step`."""
    if last_step is None:
        return "it has no complete evaluation"
    return f"it ends at step {last_step} of {steps}" if last_step < steps else None


def _last_step(path: pathlib.Path) -> int | None:
    """Raises ValueError where the last line is no row below the header."""
    with path.open("rb") as file:
        header = file.readline(_TAIL)
        file.seek(max(len(header), file.seek(0, os.SEEK_END) - _TAIL))
        body = file.read()
    names = header.rstrip(b"\r\n").split(b",")
    if not body:
        return None
    cells = body.rstrip(b"\r\n").rpartition(b"\n")[2].split(b",")
    if not body.endswith(b"\n") or len(cells) != len(names):
        raise ValueError("its last line is cut short")
    try:
        return int(cells[names.index(b"global_step")])
    except ValueError:
        raise ValueError("its last line has no global_step") from None


def publish(trial_directory: pathlib.Path) -> list[str]:
    """Writes the CSVs, and diagnostics.jsonl where there are any, from the attempts, atomically.

    Returns the columns of measurements.csv.
    """
    everything = curve(trial_directory)
    if recorded := [row for row in everything if row["kind"] == DIAGNOSTICS]:
        _publish_diagnostics(trial_directory, recorded)
    rows = [row for row in everything if row["kind"] != DIAGNOSTICS]
    evals = [row for row in rows if row["kind"] == "eval"]
    # AlgoPerf sorts its columns; the step comes first here, for people.
    columns = sorted({name for row in evals for name in row} - {"kind", "global_step"})
    if evals:
        text = _to_csv(evals, ["global_step", *columns])
        layout.write_atomically(trial_directory / layout.EVAL_MEASUREMENTS, text)
    # Of train rows in their own order: attempts of before there were live figures have none.
    logged = dict.fromkeys(name for row in rows if row["kind"] == "train" for name in row)
    live = [name for name in logged if name not in (*_OF_TRAIN_ROWS, *columns)]
    if "preemption_count" not in columns:
        columns.append("preemption_count")
    columns = [*_FIRST, *live, *columns]
    layout.write_atomically(trial_directory / layout.MEASUREMENTS, _to_csv(rows, columns))
    return columns


def republish(trial_directory: pathlib.Path, budget: Budget) -> bool:
    """Writes the CSVs of a trial that is done anew; returns whether its attempts hold every row.

    Where one is missing nothing is written: what is left of the CSVs may be all there is. Raises
    OSError where they cannot be read or written for now.
    """
    try:
        if missing(curve(trial_directory), budget.steps, budget) is not None:
            return False
    except (ValueError, KeyError, TypeError):  # e.g. a damaged record of an attempt
        return False
    publish(trial_directory)
    return True


def _publish_diagnostics(trial_directory: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    lines = [{"format": layout.DIAGNOSTICS_FORMAT} | {name: rows[-1][name] for name in _SHARED}]
    for row in rows:
        place = {name: row[name] for name in ("global_step", "preemption_count")}
        lines += [place | layer for layer in row["layers"]]
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    layout.write_atomically(trial_directory / layout.DIAGNOSTICS, text)


def _to_csv(rows: list[dict[str, Any]], columns: list[str], header: bool = True) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
