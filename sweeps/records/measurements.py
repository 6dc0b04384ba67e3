"""Measurements: each attempt appends to its own file; the trial's CSVs are written from them.

One JSON object a line, written by a single append: a process killed while writing leaves at most
one incomplete last line, which is not a measurement. Rows: {"kind": "train", "global_step", "loss",
"grad_norm", ...} for the update that was number global_step (from 0, as AlgoPerf logs it), with the
speed of `sweeps.training.live` where it was measured, and
{"kind": "eval", "global_step", <split>/<metric> ..., times} after that many updates; so are those
of {"kind": "diagnostics", "global_step", "histogram_edges_log10", "examples", "layers": [{"layer",
"index", ...}, ...]}, a recording each, so that it is whole or not there.

These files are the only record. The CSVs are derived from them, whole, at each evaluation and when
an attempt is preempted; a resumed driver writes those anew that a finished trial lacks (`restore`).

Recordings go into a file of their own, diagnostics.jsonl. Its first line: {"format":
"attnperf-diagnostics-1", "histogram_edges_log10": [...], "examples": n}; then a line for each
recorded step and layer: {"global_step", "preemption_count", "layer": path, "index": its place in
the model from 0, ...}, the numbers those of `attention.verification.layer_statistics.summary`.
"""

import csv
import io
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from attention.common.files import quoted
from sweeps.records import layout, lease

FILE = "measurements.jsonl"
RESUMED = "resumed.json"
DIAGNOSTICS = "diagnostics"  # a kind of row
_SHARED = ("histogram_edges_log10", "examples")
_FIRST = ("global_step", "grad_norm", "loss")
_OF_TRAIN_ROWS = ("kind", "preemption_count", *_FIRST)
# A CSV's end that is read to judge it; a line takes some 500 bytes.
_TAIL = 1 << 14

Row = dict[str, Any]


class Writer:
    """Appends to an attempt's measurements; complete lines, flushed to disk on `sync`."""

    def __init__(self, attempt: pathlib.Path) -> None:
        self._descriptor = os.open(attempt / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, rows: list[Row]) -> None:
        """Writes rows, a line each. Raises OSError on a full disk, here and not at close."""
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        while data:
            data = data[os.write(self._descriptor, data) :]

    def sync(self) -> int:
        """Blocks until all rows are on disk; returns the file's bytes, for a checkpoint to name."""
        os.fsync(self._descriptor)
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


def _read(attempt: pathlib.Path) -> tuple[list[Row], int]:
    """Returns the rows before the first incomplete or damaged line, and the byte they end at."""
    try:
        content = (attempt / FILE).read_bytes()
    except FileNotFoundError:
        return [], 0
    rows: list[Row] = []
    end = 0
    for line in content.split(b"\n")[:-1]:
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict) or not {"kind", "global_step"} <= row.keys():
            break
        rows.append(row)
        end += len(line) + 1
    return rows, end


def curve(trial_directory: pathlib.Path) -> list[Row]:
    """Returns the trial's rows: attempt k's, cut where attempt k + 1 resumed, in order of steps.

    Each row gets the `preemption_count` of its attempt (k − 1). What follows a damaged line is left
    out: no checkpoint counts on it (`lacking`), so that a later attempt measures it again. Raises
    ValueError where the record of an attempt's start is damaged.
    """
    rows: list[Row] = []
    for number in range(1, lease.latest(trial_directory) + 1):
        attempt = trial_directory / layout.ATTEMPTS / str(number)
        try:
            resumed = layout.record(attempt / RESUMED, global_step=int)["global_step"]
        except FileNotFoundError:  # it ended before it could begin to train
            continue
        rows = [row for row in rows if _is_kept(row, resumed)]
        rows += [{**row, "preemption_count": number - 1} for row in _read(attempt)[0]]
    return rows


def _is_kept(row: Row, resumed: int) -> bool:
    """Whether a row stands once a later attempt resumed after that many updates.

    Diagnostics of step 0 come before the first update: an attempt from the start makes them anew.
    """
    after = row["kind"] == "eval" or (row["kind"] == DIAGNOSTICS and resumed > 0)
    return bool(row["global_step"] < resumed + after)


def evaluations(trial_directory: pathlib.Path) -> list[Row]:
    """Returns the trial's evaluations, in order of steps. Raises as `curve`."""
    return [row for row in curve(trial_directory) if row["kind"] == "eval"]


def lacking(trial_directory: pathlib.Path, step: int, sizes: Mapping[str, int]) -> str | None:
    """Returns why a checkpoint of `step` updates does not count, None if it does.

    sizes: the bytes of measurements that it counts on, by the number of the attempt. They must be
    whole, and no attempt after those may have resumed at an earlier step: the checkpoint is then
    one that a job finished after it was superseded, of updates whose rows were replaced.
    """
    folder = trial_directory / layout.ATTEMPTS
    for number, size in sizes.items():
        _, end = _read(folder / number)
        if end < size:
            return f"{folder / number / FILE} has {end} of the {size} bytes that it counts on"
    for later in range(max(map(int, sizes)) + 1, lease.latest(trial_directory) + 1):
        resumed = layout.read_record(folder / str(later) / RESUMED).get("global_step", step)
        if resumed < step:
            return f"attempt {later} has begun again at step {resumed}"
    return None


def publish(trial_directory: pathlib.Path) -> list[Row]:
    """Writes the CSVs, and diagnostics.jsonl where there are any, from the attempts, atomically.

    Returns the evaluations, as `evaluations` does.
    """
    everything = curve(trial_directory)
    if recorded := [row for row in everything if row["kind"] == DIAGNOSTICS]:
        first = {"format": layout.DIAGNOSTICS_FORMAT}
        lines = [first | {name: recorded[-1][name] for name in _SHARED}]
        for row in recorded:
            place = {name: row[name] for name in ("global_step", "preemption_count")}
            lines += [place | layer for layer in row["layers"]]
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        layout.write_atomically(trial_directory / layout.DIAGNOSTICS, text)
    rows = [row for row in everything if row["kind"] != DIAGNOSTICS]
    evals = [row for row in rows if row["kind"] == "eval"]
    # AlgoPerf sorts its columns; the step comes first here, for people.
    columns = sorted({name for row in evals for name in row} - {"kind", "global_step"})
    if evals:
        text = _to_csv(evals, ["global_step", *columns])
        layout.write_atomically(trial_directory / layout.EVAL_MEASUREMENTS, text)
    logged = dict.fromkeys(name for row in rows if row["kind"] == "train" for name in row)
    live = [name for name in logged if name not in (*_OF_TRAIN_ROWS, *columns)]
    if "preemption_count" not in columns:
        columns.append("preemption_count")
    text = _to_csv(rows, [*_FIRST, *live, *columns])
    layout.write_atomically(trial_directory / layout.MEASUREMENTS, text)
    return evals


def restore(trial_directory: pathlib.Path, steps: int) -> None:
    """Writes the CSVs of a trial of `steps` updates that is done anew where one is not whole.

    Raises ValueError, and writes nothing, if the attempts lack the last evaluation: the CSVs
    may be all there is.
    """
    if are_whole(trial_directory, steps):
        return
    evals = evaluations(trial_directory)
    if not evals or evals[-1]["global_step"] != steps:
        raise ValueError(
            f"{trial_directory} is done, but its CSVs are not whole and its attempts lack the "
            f"evaluation after update {steps}. Move it away (mv {quoted(trial_directory)} "
            f"{quoted(f'{trial_directory}.damaged')}) and run this again: it is trained anew"
        )
    publish(trial_directory)


def are_whole(trial_directory: pathlib.Path, steps: int) -> bool:
    """Whether both CSVs are there and end with the evaluation after update `steps`.

    Only their ends are read. Raises OSError if the file server fails.
    """
    names = (layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS)
    return all(_last_step(trial_directory / name) == b"%d" % steps for name in names)


def _last_step(path: pathlib.Path) -> bytes | None:
    """Returns the first cell of a CSV's last line, None if that line is not whole."""
    try:
        with path.open("rb") as file:
            header = file.readline(_TAIL)
            file.seek(max(len(header), file.seek(0, os.SEEK_END) - _TAIL))
            *_, last, rest = file.read().split(b"\n")
    except (FileNotFoundError, ValueError):  # the latter: fewer lines than a header and a row
        return None
    is_whole = not rest and last.count(b",") == header.count(b",")
    return last.partition(b",")[0] if is_whole else None


def _to_csv(rows: list[Row], columns: list[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
