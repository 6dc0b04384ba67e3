"""Reads logs of modded-nanogpt, and of trainers that print its lines.

A log has lines such as `step:125/1480 val_loss:4.5832 train_time:7071ms step_avg:56.57ms`, or with
`train_time:7.071s`, among lines of training steps and the trainer's source code. A log is a run, or
several runs one after another, as in track 3 of modded-nanogpt's records.
"""

import math
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from analysis.load import results
from analysis.load.records import VISIBLE, StudyRuns

SUFFIXES = (".txt", ".log")
LINE = re.compile(
    rb"step:(\d+)/(\d+) (?:val_loss:(-?(?:\d+\.\d+|nan|inf)) )?"
    rb".*?train_time:(\d+(?:\.\d+)?)(m?s) "
)


def find(root: pathlib.Path) -> bool:
    """Returns whether a log lies in the directory `root` or in one of its folders."""
    return any(any(_lines(path)) for path in _files(root))


def read(root: pathlib.Path, whole: bool = False) -> StudyRuns:
    """Returns the study of the logs in `root` and in its folders, the variants. A run whose log
    ends before its last step is unfinished."""
    return results.read_folders(root, "modded-nanogpt", _files(root), _runs)


def _files(root: pathlib.Path) -> list[pathlib.Path]:
    return sorted(
        path
        for pattern in (VISIBLE, f"{VISIBLE}/{VISIBLE}")
        for path in root.glob(pattern)
        if path.suffix in SUFFIXES and path.is_file()
    )


def _lines(path: pathlib.Path) -> Iterator[Sequence[bytes]]:
    """Yields the groups of LINE, line by line: logs may be large."""
    with path.open("rb") as file:
        yield from (match.groups() for line in file if (match := LINE.match(line)))


def _runs(path: pathlib.Path) -> list[list[dict[str, Any]]]:
    """Returns the evaluations of the runs in a log, `seconds` being the training time until then.
    A step below the one before begins another run."""
    runs: list[list[dict[str, Any]]] = []
    last = math.inf
    for step, steps, loss, time, unit in _lines(path):
        if int(step) < last:
            runs.append([])
        last = int(step)
        if loss:
            runs[-1].append(
                {
                    "metric": "loss",
                    "value": float(loss),
                    "step": last,
                    "budget_steps": int(steps),
                    # No time has passed at step 0, which states none.
                    "seconds": float(time) / (1000 if unit == b"ms" else 1) or None,
                }
            )
    return runs
