"""A page ready to print: tables of frames, notes and problems; and numbers as text."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

NOTHING = "–"


class PrintedCell(NamedTuple):
    """A cell as printed: its text, whether it is the best of its group, the number behind it, None
    if there is none, and the address that it links to in HTML, empty for none."""

    text: str
    is_best: bool = False
    value: float | None = None
    link: str = ""


@dataclass(frozen=True)
class Table:
    """A frame to print: its column names are the headings, in order, a newline where one may break.

    Numbers stay numbers in `frame`: `formats` maps a heading to how its numbers are printed, a
    format such as `.4f` or a function; whole numbers need none. Texts are printed as they are, and
    what is undefined (None, nan) as a dash. `bold` maps a heading to whether each line's cell is
    the best of its group, bool [lines]. `group` holds each line's group, [lines]: a rule separates
    groups. `links` maps a heading to the address of each line's cell, [lines], empty for none.
    """

    caption: str
    frame: pd.DataFrame
    formats: Mapping[str, str | Callable[[Any], str]] = field(default_factory=dict)
    bold: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    group: Sequence[Any] = ()
    links: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def alt_text(self) -> str:
        """Returns the lines as text, each cell with its heading: the alt text of a figure."""
        texts = self.texts()
        headings = [heading.replace("\n", " ") for heading in texts.columns[1:]]
        lines = []
        for name, *cells in texts.values.tolist():
            pairs = zip(headings, cells, strict=True)
            cells = ", ".join(f"{heading} {text}" for heading, text in pairs if text != NOTHING)
            lines.append(f"{name}: {cells}")
        return f"{self.caption}. {'; '.join(lines)}."

    @property
    def numeric(self) -> list[bool]:
        """Returns for each column whether it is set to the right: it holds numbers, or a format
        makes its texts."""
        return [
            name in self.formats or pd.api.types.is_numeric_dtype(self.frame[name])
            for name in self.frame.columns
        ]

    def texts(self) -> pd.DataFrame:
        """Returns the frame as printed, every cell a text."""
        return pd.DataFrame(
            {name: self._texts(name) for name in self.frame.columns}, index=self.frame.index
        )

    def printed(self) -> list[list[Sequence[PrintedCell]]]:
        """Returns the cells as printed, the lines of each group."""
        lines = list(zip(*map(self._cells, self.frame.columns), strict=True))
        groups = list(self.group) or [None] * len(lines)
        parts = itertools.groupby(zip(groups, lines, strict=True), key=lambda pair: pair[0])
        return [[line for _, line in part] for _, part in parts]

    def _texts(self, name: str) -> list[str]:
        form = self.formats.get(name, "")
        show = form if callable(form) else f"{{:{form}}}".format
        values = self.frame[name]
        return [
            NOTHING if undefined else value if isinstance(value, str) else show(value)
            for value, undefined in zip(values, values.isna(), strict=True)
        ]

    def _cells(self, name: str) -> list[PrintedCell]:
        values = self.frame[name].tolist()
        marks = self.bold[name] if name in self.bold else [False] * len(values)
        numbers = [v if isinstance(v, int | float) and math.isfinite(v) else None for v in values]
        links = self.links.get(name, [""] * len(values))
        cells = zip(self._texts(name), map(bool, marks), numbers, links, strict=True)
        return list(itertools.starmap(PrintedCell, cells))


@dataclass(frozen=True)
class Page:
    """What a renderer prints: a title, tables, how to read them, and what is wrong. `data` makes
    what CSV holds, one tidy frame at full precision; without it CSV holds the tables' frames."""

    title: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    problems: tuple[Any, ...] = ()
    data: Callable[[], pd.DataFrame] | None = None

    @property
    def remarks(self) -> list[str]:
        """Returns the lines below the tables: the notes, the number of problems, the problems."""
        count = [f"Problems ({len(self.problems)}):"] if self.problems else []
        return [*self.notes, *count, *map(str, self.problems)]


def text_table(caption: str, frame: pd.DataFrame, **formats: str) -> Table:
    """Returns a table of which every column but the first is set to the right, also texts."""
    return Table(caption, frame, dict.fromkeys(frame.columns[1:], "") | formats)


def span(texts: Iterable[str]) -> str | None:
    """Returns the first and the last text, `3 to 5`, one if they are equal, None without any."""
    every = list(texts)
    return " to ".join(dict.fromkeys(every[:1] + every[-1:])) or None


def decimals(value: float | None, digits: int = 4, signed: bool = False) -> str:
    """Returns `value` with `digits` decimals, a dash for None and nan."""
    if value is None or value != value:
        return NOTHING
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def interval(low: float, high: float, digits: int, signed: bool = False) -> str:
    """Returns `[low, high]`, a dash for nan."""
    if low != low:
        return NOTHING
    return f"[{decimals(low, digits, signed)}, {decimals(high, digits, signed)}]"


def estimate(value: float, low: float, high: float, digits: int, signed: bool = False) -> str:
    """Returns `value [low, high]`, without an interval where that is nan, a dash for no value."""
    text = decimals(value, digits, signed)
    bounds = interval(low, high, digits, signed)
    return text if NOTHING in (text, bounds) else f"{text} {bounds}"


def p_text(value: float) -> str:
    """Returns a p-value with three decimals, a dash for nan."""
    return "<0.001" if value < 0.001 else decimals(value, 3)


def p_in_words(value: float) -> str:
    """Returns a p-value within a sentence: `p = 0.030`, `p <0.001`."""
    return f"p {p_text(value)}" if value < 0.001 else f"p = {p_text(value)}"
