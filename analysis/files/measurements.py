"""Reads `eval_measurements.csv` and `measurements.csv`, whole, cut short or damaged.

Every line that is complete is used and every line that is not is named: a file that a dying
process left behind loses its last line and nothing else, and no row is ever made up.
"""

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from analysis.files import columnar, csv_text, lines
from analysis.files.rows import ATTEMPT, STEP, Columns, Table

__all__ = ["ATTEMPT", "KINDS", "STEP", "Columns", "Measurements", "parse", "read"]

# What a problem of a file begins with.
KINDS = ("truncated", "damaged", "unknown format", "duplicated")


@dataclass(frozen=True, eq=False)
class Measurements:
    """What a file held.

    `columns` maps a column's name to a float64 array [rows], by ascending step; `global_step` is
    int64; an empty cell is nan, and `empty` maps the columns that have one to a bool array [rows].
    `problems` names what is damaged, each beginning with one of KINDS; `notes` what was put in
    order.
    """

    columns: Columns
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    empty: Columns = field(default_factory=dict)


def read(path: pathlib.Path) -> Measurements:
    """Returns the complete rows of the CSV file `path`, in order, each step once.

    Raises FileNotFoundError where there is no such file.
    """
    with open(path, "rb") as file:
        return parse(file.read())


def read_each(paths: Sequence[pathlib.Path]) -> list[Measurements | OSError]:
    """Returns what `read` returns of each of these files, or what it raises. Files are parsed
    together where they have one header and no damaged line."""
    texts = [csv_text.read(_content(path) or b"") for path in paths]
    bodies: dict[tuple[str, ...], dict[int, bytes]] = {}
    for index, text in enumerate(texts):
        if text.names is not None and not text.problems and STEP in text.names:
            bodies.setdefault(tuple(text.names), {})[index] = text.body
    together = {
        index: _measurements(table, texts[index].notes)
        for names, group in bodies.items()
        for index, table in _together(list(names), group).items()
    }
    return [together.get(index) or _alone(path) for index, path in enumerate(paths)]


def _content(path: pathlib.Path) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _together(names: list[str], bodies: dict[int, bytes]) -> dict[int, Table]:
    """Returns the tables of files whose lines are all rows, none where one of them has another."""
    try:
        return dict(zip(bodies, columnar.read_each(names, list(bodies.values())), strict=True))
    except columnar.NotColumnarError:
        return {}


def _alone(path: pathlib.Path) -> Measurements | OSError:
    try:
        return read(path)
    except OSError as error:
        return error


def parse(content: bytes) -> Measurements:
    """Returns the complete rows of a CSV file's `content`, whatever bytes it is made of."""
    text = csv_text.read(content)
    if text.names is None:
        return Measurements({}, text.problems, ())
    if STEP not in text.names:
        begins = f"no column {STEP} in its header, which begins {text.header[:60]!r}"
        return Measurements({}, (f"unknown format: {begins}",), ())
    table, damaged = _table(text.names, text.body)
    return _measurements(table, text.notes, (*damaged, *text.problems, *_twice(text.names)))


def _twice(names: list[str]) -> tuple[str, ...]:
    found = sorted({name for name in names if names.count(name) > 1})
    which = ", ".join(repr(name) for name in found)
    return (f"duplicated in its header: {which}; the last that is filled counts",) * bool(found)


def _table(names: list[str], body: bytes) -> tuple[Table, list[str]]:
    try:
        return columnar.read(names, body), []
    except columnar.NotColumnarError:
        return lines.read(names, body)


def _measurements(
    table: Table, notes: tuple[str, ...], problems: tuple[str, ...] = ()
) -> Measurements:
    found = (*problems, *_contradicted(table))
    return Measurements(table.columns, found, (*notes, *_notes(table)), table.empty)


def _contradicted(table: Table) -> tuple[str, ...]:
    """Lines of one attempt at one step that disagree: which one is true cannot be told."""
    if not table.contradicted:
        return ()
    many, step = _count(len(table.contradicted), "line"), table.contradicted[0]
    which = f"at step {step}" if len(table.contradicted) == 1 else f"the first at step {step}"
    return (f"duplicated: {many} with other values than one of the same step and attempt, {which}; "
            "the last counts",)  # fmt: skip


def _notes(table: Table) -> tuple[str, ...]:
    repeated = f"{_count(table.repeated, 'line')} repeated as before"
    superseded = f"{_count(table.superseded, 'row')} superseded by later ones"
    disorder = f"{_count(table.disorder, 'line')} out of order, put in order of attempts and steps"
    said = ((table.repeated, repeated), (table.superseded, superseded), (table.disorder, disorder))
    return tuple(note for count, note in said if count)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
