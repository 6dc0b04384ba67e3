"""Whether a study lost nothing: its trials against those of another run of the same study.

What faults must not change: every trial's end, none counted twice, every curve the other's bit for
bit. Standard library only; used by `python -m tests.sweeps.chaos.soak` and by tests of faults.
"""

import collections
import csv
import pathlib
from collections.abc import Iterable

from sweeps.records import layout, lease, status

# What bit equality is judged on: neither times nor how often a trial was interrupted.
EXACT = ("global_step", "loss", "grad_norm", *(f"{split}/" for split in layout.SPLITS))

Rows = list[dict[str, str]]


def rows(trial_directory: pathlib.Path, name: str) -> Rows:
    """Returns the rows of a trial's CSV file, the columns of EXACT alone, as text."""
    with (trial_directory / name).open(newline="", encoding="utf-8") as file:
        return [
            {column: value for column, value in row.items() if column.startswith(EXACT)}
            for row in csv.DictReader(file)
        ]


def curves(trial_directory: pathlib.Path) -> tuple[Rows, Rows]:
    """Returns a trial's evaluations and its measurements."""
    return (
        rows(trial_directory, layout.EVAL_MEASUREMENTS),
        rows(trial_directory, layout.MEASUREMENTS),
    )


def problems(study: pathlib.Path, other: pathlib.Path) -> list[str]:
    """Returns a line per trial that `study` lost, counted twice or measured otherwise than `other`.

    Raises OSError and ValueError where `other`, which nothing disturbed, cannot be read.
    """
    planned, expected = _planned(study), _planned(other)
    lines = [f"{path}: not planned" for path in sorted(expected - planned)]
    lines += [f"{path}: planned here alone" for path in sorted(planned - expected)]
    for path in sorted(planned & expected):
        lines += [f"{path}: {problem}" for problem in trial_problems(study / path, other / path)]
    return lines


def trial_problems(trial: pathlib.Path, other: pathlib.Path) -> list[str]:
    """Returns what is wrong with a trial, judged by its equal that nothing disturbed."""
    state, expected = (status.read(directory)["state"] for directory in (trial, other))
    if state != expected:
        return [f"is {state}, not {expected}"]
    completed = outcomes(trial).count("done")
    lines = [f"completed by {completed} attempts"] if completed > 1 else []
    for name in (layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS):
        here, there = rows(trial, name), rows(other, name)
        lines += [f"{name} has {problem}" for problem in twice(here)]
        if here != there:
            lines.append(f"{name} differs: {_first_difference(here, there)}")
    return lines


def outcomes(trial: pathlib.Path) -> list[str]:
    """Returns how each attempt at a trial ended, the first one first; 'killed' by default."""
    attempts = trial / layout.ATTEMPTS
    records = (
        layout.read_json_if_there(attempts / str(number) / lease.OUTCOME)
        for number in range(1, lease.latest(trial) + 1)
    )
    return [record["outcome"] if record else "killed" for record in records]


def twice(curve: Rows) -> Iterable[str]:
    """Yields the steps that have several losses or several evaluations."""
    for column, what in (("loss", "losses"), ("validation/loss", "evaluations")):
        steps = collections.Counter(row["global_step"] for row in curve if row.get(column))
        yield from (f"{n} {what} of step {step}" for step, n in steps.items() if n > 1)


def _first_difference(here: Rows, there: Rows) -> str:
    for one, two in zip(here, there, strict=False):
        for column in sorted({*one, *two}):
            if one.get(column) != two.get(column):
                step = two.get("global_step")
                return f"{column} of step {step} is {one.get(column)}, not {two.get(column)}"
    return f"{len(here)} rows, not {len(there)}"


def _planned(study: pathlib.Path) -> set[str]:
    """Returns the paths of all trials that a study's stages consist of."""
    record = layout.read_json(study / layout.STUDY)
    stages = [layout.read_json(study / stage / layout.TRIALS) for stage in record["stages"]]
    return {row["path"] for stage in stages for row in stage["trials"]}
