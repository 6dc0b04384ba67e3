"""Reads `eval_measurements.csv` and `measurements.csv`, whole, cut short or damaged.

Every line that is complete is used and every line that is not is named: a file that a dying
process left behind loses its last line and nothing else, and no row is ever made up.
"""

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from analysis import columnar, lines
from analysis.rows import ATTEMPT, STEP, Columns, Table

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
    contents = [_content(path) for path in paths]
    bodies: dict[str, dict[int, bytes]] = {}
    for index, content in enumerate(contents):
        header, body, problems = _complete_lines(b"" if content is None else content)
        if header is not None and not problems and STEP in header.split(","):
            bodies.setdefault(header, {})[index] = _unix(body)
    together = {
        index: Measurements(table.columns, (), _notes(table), table.empty)
        for header, group in bodies.items()
        for index, table in _together(header.split(","), group).items()
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
    header, body, problems = _complete_lines(content)
    if header is None:
        return Measurements({}, tuple(problems), ())
    names = header.split(",")
    if STEP not in names:
        unknown = f"unknown format: no column {STEP} in its header, which begins {header[:60]!r}"
        return Measurements({}, (unknown, *problems), ())
    if twice := sorted({name for name in names if names.count(name) > 1}):
        which = ", ".join(repr(name) for name in twice)
        problems.append(f"duplicated in its header: {which}; the last that is filled counts")
    table, damaged = _table(names, body)
    return Measurements(table.columns, (*damaged, *problems), _notes(table), table.empty)


def _table(names: list[str], body: bytes) -> tuple[Table, list[str]]:
    try:
        return columnar.read(names, _unix(body)), []
    except columnar.NotColumnarError:
        return lines.read(names, body)


def _unix(body: bytes) -> bytes:
    return body.replace(b"\r\n", b"\n") if b"\r" in body else body


def _complete_lines(content: bytes) -> tuple[str | None, bytes, list[str]]:
    """Returns the header, the complete lines below it, and what to say about a last one that does
    not end in a newline. It may have lost digits, so it is never used."""
    end = content.find(b"\n")
    if end < 0:
        empty = "truncated: the file is empty"
        return None, b"", ["truncated in its header, no rows" if content else empty]
    header = content[:end].decode("utf-8", errors="replace").rstrip("\r")
    last = content.rfind(b"\n") + 1
    body, rest = content[end + 1 : last], content[last:].decode("utf-8", errors="replace")
    if not rest:
        return header, body, []
    number = content.count(b"\n") + 1
    cut = f"truncated in its last line ({number}), which is left out: {rest[:40]!r}"
    return header, body, [cut]


def _notes(table: Table) -> tuple[str, ...]:
    superseded = f"{_count(table.superseded, 'row')} superseded by later ones"
    disorder = f"{_count(table.disorder, 'line')} out of order, put in order of attempts and steps"
    return (*[superseded] * bool(table.superseded), *[disorder] * bool(table.disorder))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
