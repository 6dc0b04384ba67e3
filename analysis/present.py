"""Lays an error table out: which columns, which cells in bold, which notes below."""

from collections.abc import Callable, Iterable

import numpy as np

from analysis import grid, metrics, notes, variants
from analysis.error_table import ErrorTable, SplitResult, VariantResult
from analysis.grid import Cell, Column, Document, Grid
from analysis.statistics import Summary
from sweeps import layout

NONE = Cell(grid.NOTHING)
PERPLEXITY = metrics.get("perplexity")
TITLES = {"train": "Train", "validation": "Validation", "test": "Test"}

# What stands after an interval that is not BCa's, explained in the notes.
METHOD_MARKS = {"BCa": "", "percentile": "†", "equal": "="}

ROW_COLUMNS = (Column("Variant", numeric=False), Column("Split", numeric=False))
Rows = list[tuple[Cell, ...]]


def document(table: ErrorTable) -> Document:
    """Returns the table as three grids with notes: medians and verdicts; the spread over seeds;
    the comparisons with the baseline."""
    name = table.study.name
    grids = (_medians(table), _spread(table), _comparisons(table))
    title = f"{name}: {table.metric.label} on {table.workload}, stage {table.stage}"
    return Document(
        title=title,
        grids=tuple(each for each in grids if each.sections),
        notes=tuple(notes.footnotes(table)),
        problems=table.problems,
    )


def _medians(table: ErrorTable) -> Grid:
    return Grid(
        caption=f"{table.metric.title}, median over seeds",
        columns=tuple(_median_columns(table)),
        sections=(
            *_by_group(table, lambda row: [tuple(_median_cells(table, row))]),
            *_references(table),
        ),
    )


def _median_columns(table: ErrorTable) -> Iterable[Column]:
    yield from (Column("Variant", numeric=False), Column("n"))
    for split in layout.SPLITS:
        if table.is_paper:
            yield Column(f"{TITLES[split]}\npaper")
        yield Column(f"{TITLES[split]}\nmeasured" if table.is_paper else TITLES[split])
    if table.has_perplexity:
        yield Column(f"{TITLES[table.decisive]}\nperplexity")
    if table.has_baseline:
        yield Column(f"{TITLES[table.decisive]}\n- {variants.label(table.baseline)}\n(mean)")
        yield from (Column("p\n(Holm)"), Column("Verdict", numeric=False))


def _median_cells(table: ErrorTable, row: VariantResult) -> Iterable[Cell]:
    yield from (Cell(row.label), Cell(str(row.n)))
    for split in layout.SPLITS:
        result = row.splits[split]
        if table.is_paper:
            yield _paper_cell(result)
        yield _median_cell(table, row, split)
    if table.has_perplexity:
        yield _perplexity_cell(table, row)
    if table.has_baseline:
        wanted = ("difference", "p_holm", "verdict")
        yield from _comparison_cells(table, row, table.decisive, wanted)


def _paper_cell(result: SplitResult) -> Cell:
    if result.paper is None:
        return NONE
    return Cell(result.paper.text, bold=result.paper.bold)


def _median_cell(table: ErrorTable, row: VariantResult, split: str) -> Cell:
    """Bold where no variant of the group has a better median, as printed: ties share it."""
    summary = row.splits[split].summary
    if summary is None:
        return NONE
    digits = table.metric.digits
    text = grid.number(summary.median, digits).text
    peers = [peer.splits[split].summary for peer in table.rows if peer.group == row.group]
    medians = [round(peer.median, digits) for peer in peers if peer is not None]
    best = min(medians) if table.metric.lower_is_better else max(medians)
    return Cell(text, bold=round(summary.median, digits) == best)


def _perplexity_cell(table: ErrorTable, row: VariantResult) -> Cell:
    """The median over seeds of each seed's perplexity."""
    losses = list(row.splits[table.decisive].values.values())
    if not losses:
        return NONE
    return grid.number(float(np.median(PERPLEXITY.shown(np.array(losses)))), PERPLEXITY.digits)


def _comparison_cells(
    table: ErrorTable, row: VariantResult, split: str, wanted: tuple[str, ...]
) -> Iterable[Cell]:
    comparison, digits = row.splits[split].comparison, table.metric.digits
    if row.variant == table.baseline or comparison is None:
        last = Cell("baseline") if row.variant == table.baseline else NONE
        return [*[NONE] * (len(wanted) - 1), last]
    cells = {
        "difference": grid.number(comparison.difference, digits, signed=True),
        "interval": _bounds(comparison.low, comparison.high, digits, signed=True),
        "pairs": Cell(str(comparison.pairs)),
        "p": grid.p_value(comparison.p),
        "p_holm": grid.p_value(comparison.p_holm),
        "verdict": Cell(comparison.verdict),
    }
    return [cells[name] for name in wanted]


def _references(table: ErrorTable) -> tuple[tuple[tuple[Cell, ...], ...], ...]:
    """Returns the section of reference rows, none where there are none."""
    return (tuple(_reference_cells(table)),) if table.references else ()


def _reference_cells(table: ErrorTable) -> Iterable[tuple[Cell, ...]]:
    for reference in table.references:
        cells = [Cell(f"{reference.name} (reference)"), NONE]
        for split in layout.SPLITS:
            cells += [NONE] * table.is_paper
            cells.append(grid.number(reference.values[split], table.metric.digits))
        if table.has_perplexity:
            loss = reference.values[table.decisive]
            power = None if loss is None else PERPLEXITY.shown(loss)
            cells.append(grid.number(power, PERPLEXITY.digits))
        yield (*cells, *((NONE, NONE, Cell("reference")) if table.has_baseline else ()))


def _spread(table: ErrorTable) -> Grid:
    headings = ("n", "Median", "Mean", "SD", "95% interval")
    return Grid(
        caption=f"{table.metric.title} over seeds",
        columns=(*ROW_COLUMNS, *(Column(heading) for heading in headings)),
        sections=_by_group(table, lambda row: _spread_rows(table, row)),
    )


def _spread_rows(table: ErrorTable, row: VariantResult) -> Rows:
    digits = table.metric.digits
    return [
        (Cell(row.label), Cell(split), *_summary_cells(row.splits[split].summary, digits))
        for split in layout.SPLITS
    ]


def _comparisons(table: ErrorTable) -> Grid:
    headings = ("Mean\ndiff.", "95% interval\n(t)", "Pairs", "p", "p\n(Holm)")
    return Grid(
        caption=f"Paired by seed against {variants.label(table.baseline)}",
        columns=(
            *ROW_COLUMNS,
            *(Column(heading) for heading in headings),
            Column("Verdict", numeric=False),
        ),
        sections=_by_group(table, lambda row: _comparison_rows(table, row)),
    )


def _comparison_rows(table: ErrorTable, row: VariantResult) -> Rows:
    wanted = ("difference", "interval", "pairs", "p", "p_holm", "verdict")
    return [
        (Cell(row.label), Cell(split), *_comparison_cells(table, row, split, wanted))
        for split in layout.SPLITS
        if row.splits[split].comparison is not None
    ]


def _summary_cells(summary: Summary | None, digits: int) -> list[Cell]:
    if summary is None:
        return [Cell("0"), *[NONE] * 4]
    numbers = (summary.median, summary.mean, summary.sd)
    cells = (grid.number(value, digits) for value in numbers)
    return [Cell(str(summary.n)), *cells, _interval(summary, digits)]


def _interval(summary: Summary, digits: int) -> Cell:
    if summary.method == "none":
        return Cell("none (n = 1)")
    bounds = _bounds(summary.low, summary.high, digits)
    return Cell(bounds.text + METHOD_MARKS[summary.method])


def _bounds(low: float, high: float, digits: int, signed: bool = False) -> Cell:
    if low != low:
        return NONE
    texts = (grid.number(bound, digits, signed).text for bound in (low, high))
    return Cell(f"[{', '.join(texts)}]")


def _by_group(
    table: ErrorTable, rows_of: Callable[[VariantResult], Rows]
) -> tuple[tuple[tuple[Cell, ...], ...], ...]:
    groups = dict.fromkeys(row.group for row in table.rows)
    sections = (
        tuple(cells for row in table.rows if row.group == group for cells in rows_of(row))
        for group in groups
    )
    return tuple(section for section in sections if section)
