"""Lays an error table out: which columns, which cells in bold, which notes below."""

from collections.abc import Iterable

import numpy as np

from analysis.documents import grid, variants
from analysis.documents.grid import Cell, Column, Document, Grid
from analysis.reading import metrics
from analysis.results import power, withheld
from analysis.results.error_table import ErrorTable, SplitResult, VariantResult
from analysis.tables import cells, comparison_grid, last_checkpoints, notes, spread_grid
from analysis.tables.cells import NONE
from sweeps.records import layout

PERPLEXITY = metrics.get("perplexity")
TITLES = {"train": "Train", "validation": "Validation", "test": "Test"}


def document(table: ErrorTable, effect: float | None = None) -> Document:
    """Returns the table as grids with notes: medians and verdicts; the spread over seeds; the
    comparisons with the baseline; what these seeds can tell of `effect` (`power.document`, which
    says what it may be and raises); the last evaluations (`last_checkpoints.document`)."""
    grids = (_medians(table), spread_grid.spread(table), comparison_grid.comparisons(table))
    others = (power.document(table, effect), last_checkpoints.document(table))
    title = f"{table.study.name}: {table.metric.label} on {table.workload}, stage {table.stage}"
    return Document(
        title=title,
        grids=(*(each for each in grids if each.sections), *(g for o in others for g in o.grids)),
        notes=(*notes.footnotes(table), *(note for other in others for note in other.notes)),
        problems=table.problems,
    )


def short(table: ErrorTable) -> Document:
    """Returns one grid of the deciding split: what a reader needs to know of each variant, and no
    note but on verdicts that are withheld or that there can be none."""
    wanted = {"difference": f"Mean - {variants.label(table.baseline)}", "p_holm": "p (Holm)"}
    wanted = wanted | {"verdict": "Verdict"} if table.has_baseline else {}
    split = table.decisive
    columns = (
        *(Column("Variant", numeric=False), Column("n"), Column(f"{TITLES[split]}, median")),
        *(Column(heading, numeric=name != "verdict") for name, heading in wanted.items()),
    )
    rows = tuple(
        (
            *(Cell(row.label), Cell(row.seeds), _median_cell(table, row, split)),
            *(comparison_grid.row_cells(table, row, split, tuple(wanted)) if wanted else ()),
        )
        for row in table.rows
    )
    shown = Grid(f"{table.metric.title} on {table.workload}, {split}", columns, (rows,))
    return Document(table.study.name, (shown,), tuple(withheld.footnotes(table)), table.problems)


def _medians(table: ErrorTable) -> Grid:
    return Grid(
        caption=f"{table.metric.title}, median over seeds",
        columns=tuple(_median_columns(table)),
        sections=(
            *cells.by_group(table, lambda row: [tuple(_median_cells(table, row))]),
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
    yield from (Cell(row.label), Cell(row.seeds))
    for split in layout.SPLITS:
        result = row.splits[split]
        if table.is_paper:
            yield _paper_cell(result)
        yield _median_cell(table, row, split)
    if table.has_perplexity:
        yield _perplexity_cell(table, row)
    if table.has_baseline:
        wanted = ("difference", "p_holm", "verdict")
        yield from comparison_grid.row_cells(table, row, table.decisive, wanted)


def _paper_cell(result: SplitResult) -> Cell:
    if result.paper is None:
        return NONE
    return Cell(result.paper.text, bold=result.paper.bold)


def _median_cell(table: ErrorTable, row: VariantResult, split: str) -> Cell:
    """Bold where no variant of the group has a better median, as printed: ties share it. The best
    of one is none."""
    summary = row.splits[split].summary
    if summary is None:
        return NONE
    digits = table.metric.digits
    text = grid.number(summary.median, digits).text
    peers = [peer.splits[split].summary for peer in table.rows if peer.group == row.group]
    medians = [round(peer.median, digits) for peer in peers if peer is not None]
    best = min(medians) if table.metric.lower_is_better else max(medians)
    return Cell(text, bold=len(medians) > 1 and round(summary.median, digits) == best)


def _perplexity_cell(table: ErrorTable, row: VariantResult) -> Cell:
    """The median over seeds of each seed's perplexity."""
    losses = list(row.splits[table.decisive].values.values())
    if not losses:
        return NONE
    return grid.number(float(np.median(PERPLEXITY.shown(np.array(losses)))), PERPLEXITY.digits)


def _references(table: ErrorTable) -> tuple[tuple[tuple[Cell, ...], ...], ...]:
    """Returns the section of reference rows, none where there are none."""
    return (tuple(_reference_cells(table)),) if table.references else ()


def _reference_cells(table: ErrorTable) -> Iterable[tuple[Cell, ...]]:
    for reference in table.references:
        line = [Cell(f"{reference.name} (reference)"), NONE]
        for split in layout.SPLITS:
            line += [NONE] * table.is_paper
            line.append(grid.number(reference.values[split], table.metric.digits))
        if table.has_perplexity:
            loss = reference.values[table.decisive]
            power = None if loss is None else PERPLEXITY.shown(loss)
            line.append(grid.number(power, PERPLEXITY.digits))
        yield (*line, *((NONE, NONE, Cell("reference")) if table.has_baseline else ()))
