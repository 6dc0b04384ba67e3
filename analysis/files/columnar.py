"""The columnar road through a CSV file: Arrow's reader, then numpy on whole columns.

For files of which every line is one of numbers; any other is for `lines.py`, which can say
what is wrong with which line. No Python code runs per row here.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow
from pyarrow import csv

from analysis.files.rows import ATTEMPT, LARGEST, STEP, Table

# `\r` ends a line for Arrow wherever it stands; `nan(...)` is a number to it and not to Python.
FOREIGN = (b"\r", b"(")
# Bytes that Arrow takes at a time: a whole file, but for files beyond what its offsets hold.
LARGEST_BLOCK = 1 << 30


class NotColumnarError(ValueError):
    """A line of the file is not a row of numbers: `lines.py` says which."""


def read(names: list[str], body: bytes) -> Table:
    """Returns the table in `body`, complete lines below a header of `names`.

    Raises NotColumnarError where any line is not one of this file's rows.
    """
    return _ordered(names, *_cells(names, body))


def read_each(names: list[str], bodies: Sequence[bytes]) -> list[Table]:
    """Returns what `read` returns of each body, parsed in one piece: most of what Arrow takes for
    a file of 200 lines is the same for thousands. Raises as `read` does, for any of them."""
    values, filled = _cells(names, b"".join(bodies))
    ends = np.cumsum([body.count(b"\n") for body in bodies])
    if ends[-1] != len(values):
        raise NotColumnarError(f"{len(values)} rows in {ends[-1]} lines")
    pieces = zip([0, *ends[:-1]], ends, strict=True)
    return [_ordered(names, values[start:end], filled[start:end]) for start, end in pieces]


def _ordered(names: list[str], values: np.ndarray, filled: np.ndarray) -> Table:
    steps = _counts(values[:, names.index(STEP)], filled[:, names.index(STEP)])
    if len(steps) and not filled[:, names.index(STEP)].all():
        raise NotColumnarError(f"a line without {STEP}")
    attempts = _attempts(steps, *_stated(names, values, filled))
    if (steps[1:] > steps[:-1]).all() and (attempts[1:] >= attempts[:-1]).all():
        return _table(names, steps, values, filled)
    lasting = steps < _resumed_at(attempts, steps)
    order = np.flatnonzero(lasting)[np.argsort(steps[lasting], kind="stable")]
    merged, present, repeats, contradicts = _merged(
        steps[order], values[order], filled[order], names
    )
    table = _table(names, np.unique(steps[order]), merged, present)
    return replace(
        table,
        superseded=len(steps) - len(order),
        disorder=_disorder(attempts, steps),
        repeated=int((repeats & ~contradicts).sum()),
        contradicted=tuple(steps[order][contradicts].tolist()),
    )


def _table(
    names: list[str],
    steps: np.ndarray,
    values: np.ndarray,
    filled: np.ndarray,
) -> Table:
    # A copy where the rows are a piece of several files', which would otherwise stay in memory.
    columns = dict(zip(names, np.ascontiguousarray(values.T), strict=True))
    columns[STEP] = steps
    some = np.flatnonzero(~filled.all(axis=0))
    empty = {names[index]: ~filled[:, index] for index in some}
    return Table(columns, empty)


def _cells(names: list[str], body: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers [lines, columns], nan for empty cells, and where a cell is filled."""
    if not body:
        return np.empty((0, len(names))), np.empty((0, len(names)), dtype=bool)
    if len(set(names)) < len(names) or any(mark in body for mark in FOREIGN):
        raise NotColumnarError("a header or a character that Arrow reads otherwise")
    table = _arrow(names, body)
    # Column after column in memory: they are filled, checked and handed out one by one.
    values = np.empty((table.num_rows, len(names)), order="F")
    filled = np.ones(values.shape, dtype=bool, order="F")
    for index, column in enumerate(table.columns):
        values[:, index] = column.to_numpy()
        if column.null_count:
            filled[:, index] = column.is_valid().to_numpy()
    return values, filled


def _arrow(names: list[str], body: bytes) -> pyarrow.Table:
    try:
        return csv.read_csv(
            pyarrow.py_buffer(body),
            # One thread: a file is far smaller than what pays for a second.
            csv.ReadOptions(
                column_names=names,
                use_threads=False,
                block_size=min(len(body) + 1, LARGEST_BLOCK),
            ),
            csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, pyarrow.float64()),
                null_values=[""],
                check_utf8=False,
            ),
        )
    except pyarrow.ArrowInvalid as error:
        raise NotColumnarError(str(error)) from error


def _counts(values: np.ndarray, filled: np.ndarray) -> np.ndarray:
    """Returns whole numbers from 0, int64 [lines], 0 at empty cells."""
    numbers = np.where(filled, values, 0.0)
    whole = (numbers >= 0) & (numbers < LARGEST) & (numbers == np.floor(numbers))
    if not whole.all():
        raise NotColumnarError("a count that is not a whole number from 0")
    return numbers.astype(np.int64)


def _stated(
    names: list[str], values: np.ndarray, filled: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the preemption counts, int64 [lines], and on which lines one stands."""
    if ATTEMPT not in names:
        return np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=bool)
    index = names.index(ATTEMPT)
    counts = _counts(values[:, index], filled[:, index])
    return counts, filled[:, index]


def _attempts(steps: np.ndarray, counts: np.ndarray, stated: np.ndarray) -> np.ndarray:
    """Returns the attempt that wrote each line. One that only logs the loss carries no count: it
    continues the line before, or, where the step goes back, begins the next attempt."""
    if stated.all():
        return counts
    back = np.zeros(len(steps), dtype=np.int64)
    back[1:] = steps[1:] < steps[:-1]
    begun = np.cumsum(back)
    last = np.maximum.accumulate(np.where(stated, np.arange(len(steps)), -1))
    return begun + np.where(last >= 0, counts[last] - begun[last], 0)


def _resumed_at(attempts: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Returns for each line the first step of any attempt after its own; no step reaches the
    largest int64, which stands where there is none."""
    never = np.iinfo(np.int64).max
    numbers, which = np.unique(attempts, return_inverse=True)
    first = np.full(len(numbers) + 1, never)
    np.minimum.at(first, which, steps)
    later = np.minimum.accumulate(first[::-1])[::-1]
    return later[which + 1]


def _merged(
    steps: np.ndarray, values: np.ndarray, filled: np.ndarray, names: list[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns one row per step, where its cells are filled, which lines repeat a cell, and which of
    them with another value.

    Lines of one attempt at one step are one row (a logged loss and an evaluation); where several
    hold a value, the last one's counts. `steps` ascend.
    """
    starts = np.flatnonzero(np.diff(steps, prepend=-1))
    if len(starts) == len(steps):
        none = np.zeros(len(steps), dtype=bool)
        return values, filled, none, none
    lines = np.arange(len(steps))[:, None]
    latest = np.maximum.accumulate(np.where(filled, lines, -1), axis=0)
    first = np.repeat(starts, np.diff(starts, append=len(steps)))
    before = np.vstack([np.full(len(names), -1), latest[:-1]])
    repeats = filled & (before >= first[:, None])
    # A loss and an evaluation at one step both say where they belong.
    repeats[:, [name in (STEP, ATTEMPT) for name in names]] = False
    chosen = latest[np.append(starts[1:], len(steps)) - 1]
    present = chosen >= starts[:, None]
    merged = np.where(present, np.take_along_axis(values, np.maximum(chosen, 0), 0), np.nan)
    if not repeats.any():
        none = np.zeros(len(steps), dtype=bool)
        return merged, present, none, none
    earlier = np.take_along_axis(values, np.maximum(before, 0), 0)
    differs = (values != earlier) & ~(np.isnan(values) & np.isnan(earlier))
    contradicts: np.ndarray = np.any(repeats & differs, axis=1)
    return merged, present, np.any(repeats, axis=1), contradicts


def _disorder(attempts: np.ndarray, steps: np.ndarray) -> int:
    back = (attempts[1:] == attempts[:-1]) & (steps[1:] < steps[:-1])
    return int((back | (attempts[1:] < attempts[:-1])).sum())
