"""Lays an error table out: medians with verdicts, the spread over seeds, comparisons, what these
seeds can tell, the last evaluations; which cells in bold, which notes below."""

from collections.abc import Iterable

import numpy as np

from analysis.compare import failed_runs, verdict_rules
from analysis.compare.error_table import ErrorTable, VariantResult
from analysis.compare.failed_runs import FailedRuns
from analysis.load import metrics
from analysis.render import pages
from analysis.render.pages import NONE, Cell, Page, Row, Table
from analysis.statistics.results import Comparison, Summary
from analysis.views.table import failed_runs as failed
from analysis.views.table import last_checkpoints, notes, power
from sweeps.records import layout

PERPLEXITY = metrics.get("perplexity")
TITLES = {"train": "Train", "validation": "Validation", "test": "Test"}
# What stands after an interval that is not made as its column says, explained in the notes.
MARKS = {"t": "", "BCa": "", "percentile": "†", "equal": "="}
COMPARISON = {
    "difference": "Mean\ndiff.",
    "interval": "95% interval",
    "effect": "Effect",
    "n": "n",
    "p": "p",
    "p_holm": "p\n(Holm)",
    "verdict": "Verdict",
}


def page(table: ErrorTable, effect: float | None = None) -> Page:
    """Returns the table as tables with notes: medians and verdicts; the spread over seeds; the
    comparisons with the baseline; runs that failed to train (`failed_runs.page`); what these seeds
    can tell of `effect` (`power.page`, which says what it may be and raises); the last evaluations
    (`last_checkpoints.page`)."""
    failures = failed_runs.of_table(table)
    tables = (_medians(table, failures), _spread(table), _comparisons(table))
    others = (
        failed.page(table, failures),
        power.page(table, effect),
        last_checkpoints.page(table),
    )
    title = f"{table.study.name}: {table.metric.label} on {table.workload}, stage {table.stage}"
    return Page(
        title=title,
        tables=(
            *(each for each in tables if each.sections),
            *(each for other in others for each in other.tables),
        ),
        notes=(*notes.footnotes(table), *(note for other in others for note in other.notes)),
        problems=table.problems,
    )


def short(table: ErrorTable) -> Page:
    """Returns one table of the deciding split: what a reader needs to know of each variant, and no
    note but on runs that the test leaves out and on verdicts that are withheld."""
    wanted = {"difference": f"Mean - {table.baseline_label}", "n": "n of test"}
    wanted |= {"p_holm": "p (Holm)", "verdict": "Verdict"}
    wanted = wanted if table.has_baseline else {}
    split = table.decisive
    columns = pages.columns(
        *("Variant", "n", f"{TITLES[split]}, median", f"{TITLES[split]}, mean"),
        *wanted.values(),
        words=("Variant", "Verdict"),
    )
    rows = tuple(
        (
            *(Cell(row.label), Cell(row.seeds), _median_cell(table, row, split)),
            _mean_cell(table, row),
            *(comparison_cells(table, row, split, tuple(wanted)) if wanted else ()),
        )
        for row in table.rows
    )
    shown = Table(f"{table.metric.title} on {table.workload}, {split}", columns, (rows,))
    said = (*notes.left_out(table), *verdict_rules.footnotes(table))
    return Page(table.study.name, (shown,), said, table.problems)


def _medians(table: ErrorTable, failures: FailedRuns) -> Table:
    return Table(
        caption=f"{table.metric.title}, median over seeds; differences are of means",
        columns=pages.columns(*_median_headings(table, failures), words=("Variant", "Verdict")),
        sections=(
            *pages.sections(table.groups, lambda row: [tuple(_median_cells(table, row, failures))]),
            *((tuple(_reference_cells(table, failures)),) if table.references else ()),
        ),
    )


def _median_headings(table: ErrorTable, failures: FailedRuns) -> Iterable[str]:
    yield from ("Variant", "n")
    if failures.any:
        yield failed.HEADING
    for split in layout.SPLITS:
        if table.is_paper:
            yield f"{TITLES[split]}\npaper"
        yield f"{TITLES[split]}\nmeasured" if table.is_paper else TITLES[split]
    if table.has_perplexity:
        yield f"{TITLES[table.decisive]}\nperplexity"
    if table.has_baseline:
        yield f"{TITLES[table.decisive]},\nmean"
        yield f"Mean -\n{table.baseline_label}"
        yield from (COMPARISON["p_holm"], COMPARISON["verdict"])


def _median_cells(table: ErrorTable, row: VariantResult, failures: FailedRuns) -> Iterable[Cell]:
    yield from (Cell(row.label), Cell(row.seeds))
    if failures.any:
        yield failed.cell(failures.by_variant.get(row.variant))
    for split in layout.SPLITS:
        result = row.splits[split]
        if table.is_paper:
            yield Cell(result.paper.text, result.paper.bold) if result.paper else NONE
        yield _median_cell(table, row, split)
    if table.has_perplexity:
        yield _perplexity_cell(table, row)
    if table.has_baseline:
        yield _mean_cell(table, row)
        wanted = ("difference", "p_holm", "verdict")
        yield from comparison_cells(table, row, table.decisive, wanted)


def _median_cell(table: ErrorTable, row: VariantResult, split: str) -> Cell:
    """Bold where no variant of the group has a better median, as printed: ties share it. The best
    of one is none."""
    summary = row.splits[split].summary
    if summary is None:
        return NONE
    digits = table.metric.digits
    text = pages.number(summary.median, digits).text
    peers = [peer.splits[split].summary for peer in table.rows if peer.group == row.group]
    medians = [round(peer.median, digits) for peer in peers if peer is not None]
    best = min(medians) if table.metric.lower_is_better else max(medians)
    return Cell(text, bold=len(medians) > 1 and round(summary.median, digits) == best)


def _mean_cell(table: ErrorTable, row: VariantResult) -> Cell:
    """The mean on the deciding split, which is what the test compares."""
    summary = table.of(row).summary
    return pages.number(summary.mean, table.metric.digits) if summary else NONE


def _perplexity_cell(table: ErrorTable, row: VariantResult) -> Cell:
    """The median over seeds of each seed's perplexity."""
    losses = list(table.of(row).values.values())
    if not losses:
        return NONE
    return pages.number(float(np.median(PERPLEXITY.shown(np.array(losses)))), PERPLEXITY.digits)


def _reference_cells(table: ErrorTable, failures: FailedRuns) -> Iterable[Row]:
    for reference in table.references:
        line = [Cell(f"{reference.name} (reference)"), NONE, *[NONE] * failures.any]
        for split in layout.SPLITS:
            line += [NONE] * table.is_paper
            line.append(pages.number(reference.values[split], table.metric.digits))
        if table.has_perplexity:
            loss = reference.values[table.decisive]
            power = None if loss is None else PERPLEXITY.shown(loss)
            line.append(pages.number(power, PERPLEXITY.digits))
        yield (*line, *((*[NONE] * 3, Cell("reference")) if table.has_baseline else ()))


def _spread(table: ErrorTable) -> Table:
    def rows(row: VariantResult) -> Iterable[Row]:
        for split in layout.SPLITS:
            summary = row.splits[split].summary
            yield Cell(row.label), Cell(split), *_spread_cells(summary, digits, has_bca)

    digits, has_bca = table.metric.digits, notes.has_bca(table)
    columns = pages.columns(
        *("Variant", "Split", "n", "Median", "Mean", "SD"),
        *("95% interval\n(t)", *["95% interval\n(BCa)"] * has_bca),
        words=("Variant", "Split"),
    )
    return Table(f"{table.metric.title} over seeds", columns, pages.sections(table.groups, rows))


def _spread_cells(summary: Summary | None, digits: int, has_bca: bool) -> list[Cell]:
    if summary is None:
        return [Cell("0"), *[NONE] * (4 + has_bca)]
    numbers = (summary.median, summary.mean, summary.sd)
    bca = _interval(summary.bca_low, summary.bca_high, summary.bca_method, digits)
    return [
        Cell(str(summary.n)),
        *(pages.number(value, digits) for value in numbers),
        _interval(summary.low, summary.high, summary.method, digits),
        *[bca] * has_bca,
    ]


def _interval(low: float, high: float, method: str, digits: int) -> Cell:
    return NONE if method == "none" else Cell(pages.bounds(low, high, digits).text + MARKS[method])


def _comparisons(table: ErrorTable) -> Table:
    def rows(row: VariantResult) -> Iterable[Row]:
        for split in layout.SPLITS:
            if row.splits[split].comparison is not None:
                cells = comparison_cells(table, row, split, tuple(COMPARISON))
                yield Cell(row.label), Cell(split), *cells

    kinds = sorted({each.effect_kind for each in table.comparisons.values() if each.is_tested})
    words = {"d_z": ", paired by seed", "g": ", seeds not paired"}
    headings = COMPARISON | {"effect": " or ".join(kinds) or "Effect"}
    return Table(
        caption=f"Against {table.baseline_label}{words[kinds[0]] if len(kinds) == 1 else ''}",
        columns=pages.columns(
            *("Variant", "Split"), *headings.values(), words=("Variant", "Split", "Verdict")
        ),
        sections=pages.sections(table.groups, rows),
    )


def comparison_cells(
    table: ErrorTable, row: VariantResult, split: str, wanted: tuple[str, ...]
) -> Iterable[Cell]:
    """Returns the cells of the columns `wanted` (keys of COMPARISON), of which the last says
    `baseline` in the baseline's own row."""
    comparison = row.splits[split].comparison
    if row.variant == table.baseline or comparison is None:
        last = Cell("baseline") if row.variant == table.baseline else NONE
        return [*[NONE] * (len(wanted) - 1), last]
    found = _comparison_cells(comparison, table.metric.digits)
    return [found[name] for name in wanted]


def _comparison_cells(comparison: Comparison, digits: int) -> dict[str, Cell]:
    return {
        "difference": pages.number(comparison.difference, digits, signed=True),
        "interval": pages.bounds(comparison.low, comparison.high, digits, signed=True),
        "effect": pages.number(comparison.effect, 1, signed=True),
        "n": Cell(comparison.seeds),
        "p": pages.p_value(comparison.p),
        "p_holm": pages.p_value(comparison.p_holm),
        "verdict": Cell(comparison.verdict),
    }
