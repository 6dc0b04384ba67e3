"""A table ready to print: cells of text, with what the renderers need to know about them."""

from dataclasses import dataclass

NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """Text, and whether it is the best of its group."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Column:
    """A column's heading, and whether it holds numbers (then it is set to the right). A newline
    in the heading is where it may be broken."""

    heading: str
    numeric: bool = True


@dataclass(frozen=True)
class Grid:
    """Sections of rows below one row of headings; a rule separates the sections."""

    caption: str
    columns: tuple[Column, ...]
    sections: tuple[tuple[tuple[Cell, ...], ...], ...]


@dataclass(frozen=True)
class Document:
    """What a renderer prints: a title, grids, how to read them, and what is wrong."""

    title: str
    grids: tuple[Grid, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def number(value: float | None, digits: int = 4, signed: bool = False) -> Cell:
    """Returns `value` with `digits` decimals, a dash for None and nan."""
    if value is None or value != value:
        return Cell(NOTHING)
    return Cell(f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}")


def p_value(value: float) -> Cell:
    """Returns a p-value with three decimals, a dash for nan."""
    return Cell("<0.001") if value < 0.001 else number(value, 3)
