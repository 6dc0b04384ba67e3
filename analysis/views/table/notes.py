"""What stands below an error table: how its numbers were made, and which tests ran, in words."""

from collections.abc import Iterable, Sequence
from typing import Any

from analysis.compare import verdict_rules
from analysis.compare.error_table import ErrorTable, VariantResult
from analysis.load import metrics, paper
from analysis.statistics import intervals, permutation
from analysis.statistics.comparisons import ALPHA
from analysis.statistics.results import Comparison
from sweeps.records import layout

PERPLEXITY = metrics.get("perplexity")
# `simulation.false_positives` of one variant where the few seeds' sd is 4 times the many's, about
# the worst ratio (Welch's test alone: 11% of 2 v 8), and of 5 variants at 3 v 9.
TOLD_OF_FEW = {"2 v 8": 0.08, "3 v 9": 0.07}
FAMILY, TOLD_OF_FAMILY = 5, 0.10


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
    yield from _comparison_notes(table)
    if table.references:
        yield f"reference: {table.reference_note or 'no note is recorded'}"
    elif table.reference_note:
        yield f"data: {table.reference_note}"


def has_bca(table: ErrorTable) -> bool:
    """Returns whether any row has seeds enough for a bootstrap interval."""
    results = (result for row in table.rows for result in row.splits.values())
    return any(each.summary is not None and each.summary.bca_method != "none" for each in results)


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
    points = table.study.points
    known: dict[str, Any] = {}
    if row.point is not None and row.point < len(points):
        known = points[row.point]
    elif own := table.runs(row):
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
        beside = ""
        if has_bca(table):
            known = {n: f"{share:.0%} with {n}" for n, share in intervals.COVERAGE.items()}
            cases = ", ".join(text for n, text in known.items() if n >= intervals.LEAST_BCA)
            beside = (
                f"; beside it the BCa bootstrap ({intervals.RESAMPLES:,} resamples), from "
                f"{intervals.LEAST_BCA} seeds on, which is too narrow with few seeds: it held the "
                f"mean of simulated normal seeds in {cases}"
            )
        yield (
            "95% intervals of the mean: Student's t, which assumes that seeds are about "
            f"normal{beside}."
        )
    if table.metric.is_bounded and any(each.low < 0 or each.high > 1 for each in summaries):
        yield "An interval beyond 0 or 1 says that so few seeds cannot bound the mean there."
    if "percentile" in {summary.bca_method for summary in summaries}:
        yield "†: BCa is undefined here; percentile bootstrap instead."
    if "equal" in methods:
        yield "=: all seeds have the same value; no interval is defined, it is that value."
    if "none" in methods:
        yield "n = 1: one seed has no spread, so no interval."


def _comparison_notes(table: ErrorTable) -> Iterable[str]:
    """Yields one sentence or two on each thing to know about the comparisons of the deciding
    split, or on why there are none."""
    if not table.has_baseline and len(table.rows) > 1:
        names = ", ".join(row.variant for row in table.rows)
        yield (
            f"No comparison: no variant here is called {table.baseline!r}; --baseline=NAME takes "
            f"one of {names}."
        )
    found = list(table.comparisons.values())
    if not found:
        return
    tested = [comparison for comparison in found if comparison.is_tested]
    corrected = (
        ", with its 95% interval (not corrected); p (Holm): corrected for the "
        f"{len(tested)} tested within a split; verdict at p (Holm) < {ALPHA}"
    )
    differences = f"Differences: mean of variant - {table.baseline_label}"
    yield f"{differences}{corrected if tested else ''}."
    if any(comparison.test == "t" for comparison in found):
        yield "n seeds of both: paired t-test, two-sided, and the interval of that test."
    yield from left_out(table, layout.SPLITS)
    if any(comparison.test == "sign" for comparison in found):
        yield "All differences equal, t undefined: p is the exact sign-flip test's, 2 / 2^n."
    yield from _permutation_notes(table, tested)
    yield from verdict_rules.footnotes(table)
    yield from _effect_notes(tested)
    if len(tested) < len(found):
        yield "Fewer than 2 shared seeds, or than 2 seeds of one: no test, so cannot tell."


def left_out(table: ErrorTable, others: Sequence[str] = ()) -> Iterable[str]:
    """Says which tests are over fewer runs than the medians and means beside them.

    On the deciding split, and on `others` where their numbers of runs differ from its.
    """
    partial: dict[str, str] = {}
    for split in (table.decisive, *others):
        for row in table.rows:
            each = row.splits[split].comparison
            if each is not None and each.is_partial:
                tested = f"{row.label} {each.pairs} ({each.n} and {each.n_baseline} seeds)"
                partial.setdefault(tested, "" if split == table.decisive else f" on {split}")
    if partial:
        said = "; ".join(f"{tested}{where}" for tested, where in partial.items())
        yield (
            "Differences and tests are of the seeds that both variants have: "
            f"{said}. Medians and means are of all runs."
        )


def _permutation_notes(table: ErrorTable, tested: Sequence[Comparison]) -> Iterable[str]:
    """Says how the permutation test was made, and where it cannot give a verdict at all."""
    found = [comparison for comparison in tested if comparison.test == "permutation"]
    if not found:
        return
    sizes = sorted({(comparison.n, comparison.n_baseline) for comparison in found})
    reason = " (a seed's number is all that these runs share)"
    if table.study.shares_seeds:
        reason = " (most seeds of the smaller side are not in both)"
    reach = "; ".join(_reach(n, m) for n, m in sizes)
    yield (
        f"n v m seeds, not paired{reason}: two-sided permutation test of Welch's t, all "
        f"deals of the seeds up to {permutation.PERMUTATIONS:,}, else as many seeded ones; "
        "p is the larger of its p and Welch's t-test's, which also holds where one variant's seeds "
        f"vary more; interval: Welch's. Smallest p: {reach}."
    )
    if any(n != m and min(n, m) in (2, 3) for n, m in sizes):
        cases = ", ".join(f"{share:.0%} of {n}" for n, share in TOLD_OF_FEW.items())
        yield (
            "2 or 3 seeds against more say little of their own spread: of simulated normal seeds "
            f"without a difference, {cases} are told apart at the worst ratio of the two sds, not "
            f"5%, and one of {FAMILY} variants in {TOLD_OF_FAMILY:.0%} of studies of 3 v 9."
        )
    if least := _out_of_reach(found, len(tested)):
        yield least


def _reach(n: int, m: int) -> str:
    if permutation.is_exact(n, m):
        return f"2 / {permutation.deals(n, m):,} = {permutation.smallest_p(n, m):.2g} for {n} v {m}"
    return f"{permutation.smallest_p(n, m):.2g} for {n} v {m}"


def _out_of_reach(found: Sequence[Comparison], m: int) -> str:
    blocked = [comparison for comparison in found if comparison.smallest_p * m >= ALPHA]
    if not blocked:
        return ""
    least = max(comparison.smallest_p for comparison in blocked) * m
    seeds = permutation.seeds_to_reach(ALPHA / m)
    enough = f"; {seeds} seeds of each can" if seeds else ""
    whom = f"{len(blocked)} of {m} comparisons cannot"
    if len(blocked) == m:
        whom = "no comparison can"
    return (
        f"Holm's first step over {m} makes the smallest p {min(1.0, least):.2g}: {whom} reach "
        f"{ALPHA} there, whatever the numbers are{enough}."
    )


def _effect_notes(tested: Sequence[Comparison]) -> Iterable[str]:
    if not tested:
        return
    units = {"d_z": "sd of the paired differences", "g": "pooled sd over seeds, not paired"}
    kinds = sorted({comparison.effect_kind for comparison in tested})
    yield (
        f"Effect size: {'; '.join(f'{kind}, in units of the {units[kind]}' for kind in kinds)}; "
        "corrected for few seeds; 2 pairs give none."
    )
