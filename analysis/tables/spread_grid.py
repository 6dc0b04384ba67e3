"""The grid of the spread over seeds: median, mean, deviation, intervals of the mean."""

from analysis.documents import grid
from analysis.documents.grid import Cell, Column, Grid
from analysis.results.error_table import ErrorTable, VariantResult
from analysis.statistics.statistics import Summary
from analysis.tables import cells
from analysis.tables.cells import NONE, ROW_COLUMNS, Rows
from sweeps.records import layout

# What stands after an interval that is not made as its column says, explained in the notes.
MARKS = {"t": "", "BCa": "", "percentile": "†", "equal": "="}
HEADINGS = ("n", "Median", "Mean", "SD", "95% interval\n(t)", "95% interval\n(BCa)")


def spread(table: ErrorTable) -> Grid:
    """Returns a row for each variant and split."""
    return Grid(
        caption=f"{table.metric.title} over seeds",
        columns=(*ROW_COLUMNS, *(Column(heading) for heading in HEADINGS)),
        sections=cells.by_group(table, lambda row: _rows(table, row)),
    )


def _rows(table: ErrorTable, row: VariantResult) -> Rows:
    for split in layout.SPLITS:
        yield Cell(row.label), Cell(split), *_cells(row.splits[split].summary, table.metric.digits)


def _cells(summary: Summary | None, digits: int) -> list[Cell]:
    if summary is None:
        return [Cell("0"), *[NONE] * 5]
    numbers = (summary.median, summary.mean, summary.sd)
    return [
        Cell(str(summary.n)),
        *(grid.number(value, digits) for value in numbers),
        _interval(summary.low, summary.high, summary.method, digits),
        _interval(summary.bca_low, summary.bca_high, summary.bca_method, digits),
    ]


def _interval(low: float, high: float, method: str, digits: int) -> Cell:
    if method == "none":
        return Cell("none (n = 1)")
    return Cell(cells.bounds(low, high, digits).text + MARKS[method])
