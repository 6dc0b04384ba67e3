"""The careful road through a CSV file: line by line, for files that hold a line which is none.

It reads whatever the columnar road (`columnar.py`) reads, to the same result, some ten times
slower, and says of every damaged line which one it is and what is wrong with it.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from analysis.files.rows import ATTEMPT, LARGEST, STEP, Columns, Table


@dataclass(frozen=True)
class Row:
    """One complete line: the step, the attempt that wrote it, and its non-empty cells."""

    step: int
    attempt: int
    cells: dict[str, float]


def read(names: list[str], body: bytes) -> tuple[Table, list[str]]:
    """Returns the table in `body`, complete lines below a header of `names`, and one sentence for
    every line that is left out. `global_step` must be among the names."""
    lines = body.decode("utf-8", errors="replace").split("\n")[:-1]
    rows, damaged = _rows(names, (line.rstrip("\r") for line in lines))
    kept, superseded, repeated, contradicted = _in_order(rows)
    columns, empty = _columns(names, kept)
    return Table(columns, empty, superseded, _disorder(rows), repeated, contradicted), damaged


def _rows(names: list[str], body: Iterable[str]) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    damaged = []
    # Numbers are never quoted, and the csv module raises at a stray carriage return.
    for number, line in enumerate(body, start=2):
        try:
            rows.append(_row(names, line.split(","), rows[-1] if rows else None))
        except ValueError as error:
            damaged.append(f"damaged in line {number}, which is left out: {error}")
    return rows, damaged


def _row(names: list[str], cells: list[str], before: Row | None) -> Row:
    """Raises ValueError where the line is not one of this file's rows."""
    if len(cells) != len(names):
        raise ValueError(f"{len(cells)} of {len(names)} columns")
    values = {name: _number(name, cell) for name, cell in zip(names, cells, strict=True) if cell}
    step = _count(values, STEP)
    if step is None:
        raise ValueError(f"no {STEP}")
    return Row(step, _attempt(values, step, before), values)


def _number(name: str, cell: str) -> float:
    try:
        # Python alone reads 1_0 as 10: a damaged cell is no number.
        return float(cell if "_" not in cell and cell.isascii() else "damaged")
    except ValueError:
        raise ValueError(f"{name} is {cell[:40]!r}, not a number") from None


def _count(values: dict[str, float], name: str) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if not math.isfinite(value) or value != int(value) or not 0 <= value < LARGEST:
        raise ValueError(f"{name} is {value}, not a whole number from 0 and below 2^53")
    return int(value)


def _attempt(values: dict[str, float], step: int, before: Row | None) -> int:
    """A row that only logs the loss carries no count: it continues the row before, or, where the
    step goes back, begins the next attempt."""
    stated = _count(values, ATTEMPT)
    if stated is not None or before is None:
        return stated or 0
    return before.attempt + (step < before.step)


def _disorder(rows: list[Row]) -> int:
    keys = [(row.attempt, row.step) for row in rows]
    return sum(after < before for before, after in itertools.pairwise(keys))


def _in_order(rows: list[Row]) -> tuple[list[Row], int, int, tuple[int, ...]]:
    """Returns the rows that count, by step, how many lines gave way to a later attempt's, how many
    repeat cells as they are, and the steps of those that repeat one with another value.

    Attempt k is cut where a later attempt resumed: its rows from there on are of a branch that
    was abandoned. Lines of one attempt at one step are one row (a logged loss and an evaluation);
    where both hold a value, the later line's counts.
    """
    resumed_at = {attempt: _resumed_at(attempt, rows) for attempt in {row.attempt for row in rows}}
    lasting = [row for row in rows if row.step < resumed_at[row.attempt]]
    merged: dict[int, Row] = {}
    repeated, contradicted = 0, []
    for row in lasting:
        before = merged.get(row.step, Row(row.step, row.attempt, {}))
        twice = (before.cells.keys() & row.cells.keys()) - {STEP, ATTEMPT}
        if any(_differ(before.cells[name], row.cells[name]) for name in twice):
            contradicted.append(row.step)
        else:
            repeated += bool(twice)
        merged[row.step] = Row(row.step, row.attempt, before.cells | row.cells)
    kept = [merged[step] for step in sorted(merged)]
    return kept, len(rows) - len(lasting), repeated, tuple(sorted(contradicted))


def _differ(one: float, other: float) -> bool:
    return one != other and not (math.isnan(one) and math.isnan(other))


def _resumed_at(attempt: int, rows: list[Row]) -> float:
    """Returns the first step of the attempts after `attempt`, inf where there are none."""
    return min((row.step for row in rows if row.attempt > attempt), default=math.inf)


def _columns(names: list[str], rows: list[Row]) -> tuple[Columns, Columns]:
    columns = {name: np.array([row.cells.get(name, math.nan) for row in rows]) for name in names}
    empty = {name: np.array([name not in row.cells for row in rows], dtype=bool) for name in names}
    columns[STEP] = np.array([row.step for row in rows], dtype=np.int64)
    return columns, {name: holes for name, holes in empty.items() if holes.any()}
