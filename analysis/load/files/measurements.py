"""What a CSV file of measurements held, and what its evaluations say against a trial: rows that
evaluate nothing, nan, inf, columns that are not there."""

import collections
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sweeps.records import layout

STEP, ATTEMPT = "global_step", "preemption_count"
# From here on a float64, as which cells are read, does not hold every whole number.
LARGEST = 2**53
# Counts, which are no metric.
COUNTS = ("num_examples",)
# A column's name to its array [rows].
Columns = Mapping[str, np.ndarray]


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


def resumed_at(attempts: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Returns for each line, by its attempt and step, int64 [lines] each, the first step of any
    later attempt: from there on it is of a branch that was abandoned. No step reaches the largest
    int64, which stands where there is no later attempt."""
    never = np.iinfo(np.int64).max
    numbers, which = np.unique(attempts, return_inverse=True)
    first = np.full(len(numbers) + 1, never)
    np.minimum.at(first, which, steps)
    later = np.minimum.accumulate(first[::-1])[::-1]
    return later[which + 1]


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

    left_out = {n for n in read.columns if n.partition("/")[0] in nothing and is_metric(n)}
    columns, empty = (
        {name: cells for name, cells in each.items() if name not in left_out}
        for each in (read.columns, read.empty)
    )
    notes = (f"{split}: no examples, and its figures are left out" for split in nothing)
    return dataclasses.replace(read, columns=columns, empty=empty, notes=(*read.notes, *notes))


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
    alike: dict[bytes, list[str]] = collections.defaultdict(list)
    for name, values in read.columns.items():
        empty = read.empty.get(name)
        if not is_metric(name) or (empty is not None and empty.all()):
            continue
        wrong = ~np.isfinite(values)
        if empty is not None and not empty_is_nan:
            wrong &= ~empty
        if wrong.any():
            alike[wrong.tobytes()].append(name)
    found = []
    for key, names in alike.items():
        at = read.columns[STEP][np.frombuffer(key, dtype=bool)]
        number = "1 evaluation" if len(at) == 1 else f"{len(at)} evaluations"
        found.append(f"{', '.join(sorted(names))} at step {at[0]} ({number})")
    return found


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
    held = {n for n in read.columns if n not in read.empty or not read.empty[n].all()}
    return [name for name in (*wanted, ATTEMPT) if name not in held]
