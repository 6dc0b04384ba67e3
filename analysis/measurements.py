"""Reads `eval_measurements.csv` and `measurements.csv`, whole, cut short or damaged.

Every line that is complete is used and every line that is not is named: a file that a dying
process left behind loses its last line and nothing else, and no row is ever made up.
"""

import math
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

STEP, ATTEMPT = "global_step", "preemption_count"
Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Row:
    """One complete line: the step, the attempt that wrote it, and its non-empty cells."""

    step: int
    attempt: int
    cells: dict[str, float]


@dataclass(frozen=True, eq=False)
class Measurements:
    """What a file held.

    `columns` maps a column's name to a float64 array [rows], by ascending step; `global_step` is
    int64; an empty cell is nan. `problems` names what is damaged, `notes` what was put in order.
    """

    columns: Columns
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def read(path: pathlib.Path) -> Measurements:
    """Returns the complete rows of the CSV file `path`, in order, each step once.

    Raises FileNotFoundError where there is no such file.
    """
    return parse(path.read_bytes())


def parse(content: bytes) -> Measurements:
    """Returns the complete rows of a CSV file's `content`, whatever bytes it is made of."""
    lines, problems = _complete_lines(content)
    if not lines:
        return Measurements({}, tuple(problems), ())
    header, *body = lines
    names = header.split(",")
    if STEP not in names:
        return Measurements({}, (f"damaged: no column {STEP} in its header", *problems), ())
    rows, damaged = _rows(names, body)
    kept, superseded = _in_order(rows)
    notes = (f"{superseded} rows superseded by later ones",) if superseded else ()
    return Measurements(_columns(names, kept), (*damaged, *problems), notes)


def _complete_lines(content: bytes) -> tuple[list[str], list[str]]:
    """Returns the lines that end in a newline, and what to say about a last one that does not.

    A last line without its newline may have lost digits, so it is never used.
    """
    *lines, rest = content.decode("utf-8", errors="replace").split("\n")
    lines = [line.rstrip("\r") for line in lines]
    if not lines:
        return [], ["truncated in its header, no rows" if rest else "truncated: the file is empty"]
    if not rest:
        return lines, []
    return lines, [
        f"truncated in its last line ({len(lines) + 1}), which is left out: {rest[:40]!r}"
    ]


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
    if not math.isfinite(value) or value != int(value) or not 0 <= value < 2**63:
        raise ValueError(f"{name} is {value}, not a whole number from 0")
    return int(value)


def _attempt(values: dict[str, float], step: int, before: Row | None) -> int:
    """A row that only logs the loss carries no count: it continues the row before, or, where the
    step goes back, begins the next attempt."""
    stated = _count(values, ATTEMPT)
    if stated is not None or before is None:
        return stated or 0
    return before.attempt + (step < before.step)


def _in_order(rows: list[Row]) -> tuple[list[Row], int]:
    """Returns the rows that count, by step, and how many lines gave way to later ones.

    Attempt k is cut where a later attempt resumed: its rows from there on are of a branch that
    was abandoned. Lines of one attempt at one step are one row (a logged loss and an evaluation);
    where both hold a value, the later line's counts.
    """
    resumed_at = {attempt: _resumed_at(attempt, rows) for attempt in {row.attempt for row in rows}}
    lasting = [row for row in rows if row.step < resumed_at[row.attempt]]
    merged: dict[int, Row] = {}
    superseded = len(rows) - len(lasting)
    for row in lasting:
        before = merged.get(row.step, Row(row.step, row.attempt, {}))
        superseded += bool((before.cells.keys() & row.cells.keys()) - {STEP})
        merged[row.step] = Row(row.step, row.attempt, before.cells | row.cells)
    return [merged[step] for step in sorted(merged)], superseded


def _resumed_at(attempt: int, rows: list[Row]) -> float:
    """Returns the first step of the attempts after `attempt`, inf where there are none."""
    return min((row.step for row in rows if row.attempt > attempt), default=math.inf)


def _columns(names: list[str], rows: list[Row]) -> Columns:
    columns = {name: np.array([row.cells.get(name, math.nan) for row in rows]) for name in names}
    return columns | {STEP: np.array([row.step for row in rows], dtype=np.int64)}
