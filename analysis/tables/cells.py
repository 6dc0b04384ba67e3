"""Cells and sections that several grids of an error table share."""

from collections.abc import Callable, Iterable

from analysis.documents import grid
from analysis.documents.grid import Cell, Column
from analysis.results.error_table import ErrorTable, VariantResult

NONE = Cell(grid.NOTHING)
ROW_COLUMNS = (Column("Variant", numeric=False), Column("Split", numeric=False))
Rows = Iterable[tuple[Cell, ...]]
Sections = tuple[tuple[tuple[Cell, ...], ...], ...]


def by_group(table: ErrorTable, rows_of: Callable[[VariantResult], Rows]) -> Sections:
    """Returns a section for each group of variants that has rows."""
    groups = dict.fromkeys(row.group for row in table.rows)
    sections = (
        tuple(cells for row in table.rows if row.group == group for cells in rows_of(row))
        for group in groups
    )
    return tuple(section for section in sections if section)


def bounds(low: float, high: float, digits: int, signed: bool = False) -> Cell:
    """Returns `[low, high]`, a dash for nan."""
    if low != low:
        return NONE
    texts = (grid.number(bound, digits, signed).text for bound in (low, high))
    return Cell(f"[{', '.join(texts)}]")
