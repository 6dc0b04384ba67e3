"""A page ready to print: tables of cells, with what the renderers need to know about them."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar

NOTHING = "–"
Item = TypeVar("Item")


@dataclass(frozen=True)
class Cell:
    """Text, whether it is the best of its group, and its `tone`: `better` or `worse` where it is to
    be seen at a glance (a text that is one of these words has it anyway)."""

    text: str
    bold: bool = False
    tone: str = ""


NONE = Cell(NOTHING)
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Column:
    """A column's heading, and whether it holds numbers (then it is set to the right). A newline
    in the heading is where it may be broken."""

    heading: str
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """Sections of rows below one row of headings; a rule separates the sections."""

    caption: str
    columns: tuple[Column, ...]
    sections: tuple[tuple[Row, ...], ...]


@dataclass(frozen=True)
class Page:
    """What a renderer prints: a title, tables, how to read them, and what is wrong."""

    title: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def columns(*headings: str, words: Collection[str] = ("Variant",)) -> tuple[Column, ...]:
    """Returns columns of numbers, those of the headings `words` columns of words."""
    return tuple(Column(heading, numeric=heading not in words) for heading in headings)


def sections(
    groups: Iterable[Iterable[Item]], rows_of: Callable[[Item], Iterable[Row]]
) -> tuple[tuple[Row, ...], ...]:
    """Returns a section for each group that has rows."""
    made = (tuple(row for item in group for row in rows_of(item)) for group in groups)
    return tuple(section for section in made if section)


def number(value: float | None, digits: int = 4, signed: bool = False) -> Cell:
    """Returns `value` with `digits` decimals, a dash for None and nan."""
    if value is None or value != value:
        return NONE
    return Cell(f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}")


def bounds(low: float, high: float, digits: int, signed: bool = False) -> Cell:
    """Returns `[low, high]`, a dash for nan."""
    if low != low:
        return NONE
    texts = (number(bound, digits, signed).text for bound in (low, high))
    return Cell(f"[{', '.join(texts)}]")


def p_value(value: float) -> Cell:
    """Returns a p-value with three decimals, a dash for nan."""
    return Cell("<0.001") if value < 0.001 else number(value, 3)


def p_in_words(value: float) -> str:
    """Returns a p-value within a sentence: `p = 0.030`, `p <0.001`."""
    text = p_value(value).text
    return f"p {text if text[0] == '<' else '= ' + text}"
