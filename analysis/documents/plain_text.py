"""A long grid as plain text. rich takes 3 ms per row: half a minute for 10,000 trials."""

import itertools
from collections.abc import Iterable, Iterator

from analysis.documents.grid import Cell, Grid

# Rows from which a grid is too long for rich, whose colours nobody reads in so long a table.
LONG = 300


def is_long(grid: Grid) -> bool:
    """Returns whether the grid has LONG rows or more."""
    return sum(len(section) for section in grid.sections) >= LONG


def lines(grid: Grid) -> Iterator[str]:
    """Yields the grid's lines as rich's ASCII2 box has them: the caption, then aligned columns."""
    headings = [column.heading.split("\n")[::-1] for column in grid.columns]
    heads = list(itertools.zip_longest(*headings, fillvalue=""))[::-1]
    sections = [[tuple(_text(cell) for cell in row) for row in part] for part in grid.sections]
    everything = itertools.chain(heads, *sections)
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
    right = [column.numeric for column in grid.columns]
    rule = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    yield from (grid.caption, rule, *_rows(heads, widths, right), rule)
    for section in sections:
        yield from (*_rows(section, widths, right), rule)


def _text(cell: Cell) -> str:
    return f"*{cell.text}" if cell.bold else cell.text


def _rows(rows: Iterable[tuple[str, ...]], widths: list[int], right: list[bool]) -> Iterator[str]:
    for row in rows:
        cells = (
            text.rjust(width) if numeric else text.ljust(width)
            for text, width, numeric in zip(row, widths, right, strict=True)
        )
        yield f"| {' | '.join(cells)} |"
