"""The grid of comparisons with the baseline: a row and a verdict for each variant and split."""

from collections.abc import Iterable

from analysis.documents import grid, variants
from analysis.documents.grid import Cell, Column, Grid
from analysis.results.error_table import ErrorTable, VariantResult
from analysis.statistics.statistics import Comparison
from analysis.tables import cells
from analysis.tables.cells import NONE, ROW_COLUMNS, Rows
from sweeps.records import layout

COLUMNS = {
    "difference": Column("Mean\ndiff."),
    "interval": Column("95% interval"),
    "effect": Column("g"),
    "n": Column("n"),
    "p": Column("p"),
    "p_holm": Column("p\n(Holm)"),
    "verdict": Column("Verdict", numeric=False),
}


def comparisons(table: ErrorTable) -> Grid:
    """Returns a row for each variant and split that is compared with the baseline."""
    return Grid(
        caption=_caption(table),
        columns=(*ROW_COLUMNS, *COLUMNS.values()),
        sections=cells.by_group(table, lambda row: _rows(table, row)),
    )


def _caption(table: ErrorTable) -> str:
    found = [each for row in table.rows if (each := row.splits[table.decisive].comparison)]
    how = {each.is_paired for each in found if each.is_tested}
    words = {frozenset([True]): "paired by seed", frozenset([False]): "seeds not paired"}
    said = words.get(frozenset(how), "")
    return f"Against {variants.label(table.baseline)}{said and ', '}{said}"


def _rows(table: ErrorTable, row: VariantResult) -> Rows:
    for split in layout.SPLITS:
        if row.splits[split].comparison is not None:
            yield Cell(row.label), Cell(split), *row_cells(table, row, split, tuple(COLUMNS))


def row_cells(
    table: ErrorTable, row: VariantResult, split: str, wanted: tuple[str, ...]
) -> Iterable[Cell]:
    """Returns the cells of the columns `wanted` (keys of COLUMNS), of which the last says
    `baseline` in the baseline's own row."""
    comparison = row.splits[split].comparison
    if row.variant == table.baseline or comparison is None:
        last = Cell("baseline") if row.variant == table.baseline else NONE
        return [*[NONE] * (len(wanted) - 1), last]
    found = _cells(comparison, table.metric.digits)
    return [found[name] for name in wanted]


def _cells(comparison: Comparison, digits: int) -> dict[str, Cell]:
    return {
        "difference": grid.number(comparison.difference, digits, signed=True),
        "interval": cells.bounds(comparison.low, comparison.high, digits, signed=True),
        "effect": grid.number(comparison.effect, 1, signed=True),
        "n": Cell(comparison.seeds),
        "p": grid.p_value(comparison.p),
        "p_holm": grid.p_value(comparison.p_holm),
        "verdict": Cell(comparison.verdict),
    }
