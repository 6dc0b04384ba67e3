"""What stands below an error table: how its numbers were made, in words."""

from collections.abc import Iterable
from typing import Any

from analysis.paper import paper
from analysis.reading import metrics
from analysis.results.error_table import ErrorTable, VariantResult
from analysis.statistics import bootstrap
from analysis.statistics.statistics import Summary
from analysis.tables import comparison_notes

PERPLEXITY = metrics.get("perplexity")


def footnotes(table: ErrorTable) -> Iterable[str]:
    """Yields one sentence or two on each thing that a reader of the table has to know."""
    step = f"each trial's step with the best {table.chosen_by.column('validation')}, first on ties"
    definition = table.metric.definition(table.workload)
    yield f"{definition}; all splits at {step}; n counts trials that are done."
    if any(row.seeds != str(row.n) for row in table.rows):
        yield "n of m: the study plans m seeds; what became of the others stands in brackets."
    if table.has_perplexity:
        yield f"{PERPLEXITY.definition(table.workload)}, on {table.decisive}, median over seeds."
    yield from _point_notes(table)
    if others := len(set(table.study.problems) - set(table.problems)):
        yield f"{others} problems in trials outside this table: `runs` lists them by name."
    groups = [row.group for row in table.rows]
    if len(set(groups)) < len(groups) or table.is_paper:
        yield "Bold (in plain text a star before the number): best median within its group."
    yield from _paper_notes(table)
    yield from _interval_notes(table)
    yield from comparison_notes.footnotes(table)
    if table.references:
        yield f"reference: {table.reference_note or 'no note is recorded'}"
    elif table.reference_note:
        yield f"data: {table.reference_note}"


def _paper_notes(table: ErrorTable) -> Iterable[str]:
    """Says where the paper's figures are from, or that it has none of this kind."""
    study = table.study
    if table.is_paper:
        printed = paper.TABLES[study.paper_table]
        yield f"paper: {paper.SOURCE}, {printed.place}; {printed.caution}."
    elif study.paper_table and table.metric.name == paper.TABLES[study.paper_table].metric:
        yield (
            f"{paper.SOURCE}, {paper.TABLES[study.paper_table].place}: no number for these "
            f"variants on {table.workload} in {paper.dtype(study.config)}."
        )
    if study.paper_note:
        yield study.paper_note


def _point_notes(table: ErrorTable) -> Iterable[str]:
    """Says which point each variant's trials ran at, and with which hyperparameters."""
    chosen: dict[tuple[int, str], list[str]] = {}
    for row in table.rows:
        if row.point is not None:
            chosen.setdefault((row.point, _values(table, row)), []).append(row.label)
    selected = table.study.selection
    stage = selected.get("from_stage", "?") if selected else table.stage
    for (point, values), labels in chosen.items():
        whom = "all variants" if len(chosen) == 1 else ", ".join(labels)
        chosen_for = f"Point {point}, chosen by validation in stage {stage} for {whom}"
        yield f"{chosen_for}: {values}." if values else f"{chosen_for}."
    for row in table.rows:
        if row.hyperparameters:
            values = ", ".join(f"{key} = {value}" for key, value in row.hyperparameters.items())
            yield f"{row.label}: {values}."


def _values(table: ErrorTable, row: VariantResult) -> str:
    """Returns the row's hyperparameters. AlgoPerf's logs have no list of points, and each
    submission has its own: there one of the trials speaks for the row."""
    points, runs = table.study.points, table.study.stage(table.stage)
    known: dict[str, Any] = {}
    if row.point is not None and row.point < len(points):
        known = points[row.point]
    elif own := [run for run in runs if (run.variant, run.point) == (row.variant, row.point)]:
        known = own[0].hyperparameters
    return ", ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in known.items()
    )


def _interval_notes(table: ErrorTable) -> Iterable[str]:
    results = (result for row in table.rows for result in row.splits.values())
    summaries = [result.summary for result in results if result.summary]
    methods = {summary.method for summary in summaries}
    if "t" in methods:
        yield (
            "95% intervals of the mean: Student's t, which assumes that seeds are about normal; "
            f"beside it the BCa bootstrap ({bootstrap.RESAMPLES:,} resamples), which is too narrow "
            f"with few seeds: it held the mean of {_coverage()}."
        )
    if table.metric.is_bounded and any(_leaves_bounds(each) for each in summaries):
        yield "An interval beyond 0 or 1 says that so few seeds cannot bound the mean there."
    if "percentile" in {summary.bca_method for summary in summaries}:
        yield "†: BCa is undefined here; percentile bootstrap instead."
    if "equal" in methods:
        yield "=: all seeds have the same value; no interval is defined, it is that value."
    if "none" in methods:
        yield "n = 1: one seed has no spread, so no interval."


def _leaves_bounds(summary: Summary) -> bool:
    return summary.low < 0 or summary.high > 1


def _coverage() -> str:
    cases = ", ".join(f"{share:.0%} with {n}" for n, share in bootstrap.COVERAGE.items())
    return f"simulated normal seeds in {cases}"
