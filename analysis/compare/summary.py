"""Several studies at once: what each variant does on every workload, and over all of them.

Columns are studies, one for each workload that they hold. Scores are improvements: how much less
error, WER or loss than the mean of the baseline, in per cent of it (more, where more is better).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.compare import failed_runs
from analysis.compare.error_table import ErrorTable, VariantResult
from analysis.load.records import Run
from analysis.load.targets import TIME
from analysis.statistics import across, rates
from analysis.statistics.results import Comparison, Estimate, Rate
from attention import table as variants

NOTHING = Estimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Improvement:
    """One variant in one column: `percent` and its 95% interval, the comparison behind it, and its
    failed runs. The baseline's mean is taken as it is: the interval is that of the difference."""

    percent: Estimate
    comparison: Comparison
    failed: Rate | None


@dataclass(frozen=True)
class Line:
    """One variant: its improvement in each column (None where it is not compared), and over all
    columns whose baseline is the summary's: mean standardised effect, interquartile mean of the
    runs' improvements in %, probability that one of its runs beats one of the baseline's, runs that
    failed to train of all, and the time of a step over the baseline's (geometric mean of the
    columns' medians over seeds; nan where no times are recorded). `columns` counts those that went
    in; a variant without any has nan and None."""

    variant: str
    cells: tuple[Improvement | None, ...]
    columns: int
    effect: Estimate
    iqm: Estimate
    improvement: Estimate
    failed: Rate | None
    step_time: float

    @property
    def label(self) -> str:
        """Returns the variant as the paper calls it."""
        return variants.label(self.variant)


@dataclass(frozen=True)
class Summary:
    """The columns' tables, the baseline that most of them have, and a line for each variant; the
    baseline's own is first, without improvements."""

    tables: tuple[ErrorTable, ...]
    baseline: str
    lines: tuple[Line, ...]

    @property
    def headings(self) -> list[str]:
        """Returns a name for each column: the workload, with the study's where it is not alone."""
        names = [table.workload for table in self.tables]
        return [
            table.workload if names.count(table.workload) == 1 else table.study.name
            for table in self.tables
        ]


def of_tables(tables: Sequence[ErrorTable]) -> Summary:
    """Returns the summary of error tables. Raises ValueError where none of them compares anything
    with a baseline."""
    compared = [table for table in tables if table.comparisons]
    if not compared:
        raise ValueError("nothing to sum up: no study here has a variant beside its baseline")
    bases = [table.baseline for table in compared]
    baseline = max(dict.fromkeys(bases), key=bases.count)
    names = {baseline} | {name for table in compared for name in table.comparisons}
    failures = [failed_runs.of_table(table).by_variant for table in compared]
    ordered = sorted(names, key=lambda name: (name != baseline, variants.order(name)))
    lines = tuple(_line(name, compared, baseline, failures) for name in ordered)
    return Summary(tuple(compared), baseline, lines)


Failures = list[dict[str, failed_runs.VariantFailures]]


def _line(variant: str, tables: Sequence[ErrorTable], baseline: str, failures: Failures) -> Line:
    cells = tuple(
        _cell(table, variant, failed.get(variant))
        for table, failed in zip(tables, failures, strict=True)
    )
    own = [table.baseline == baseline for table in tables]
    there = [
        is_own and variant in table.by_variant and bool(table.of(table.by_variant[variant]).values)
        for table, is_own in zip(tables, own, strict=True)
    ]
    chosen = [table for table, is_there in zip(tables, there, strict=True) if is_there]
    ran = [
        each[variant].rate for each, t in zip(failures, there, strict=True) if t and variant in each
    ]
    failed = rates.rate(sum(r.count for r in ran), sum(r.n for r in ran)) if ran else None
    if not chosen:
        return Line(variant, cells, 0, NOTHING, NOTHING, NOTHING, failed, math.nan)
    mine, base = (scores(chosen, name) for name in (variant, baseline))
    middle = across.bootstrapped(across.iqm, mine)
    if variant == baseline:
        return Line(variant, cells, len(chosen), NOTHING, middle, NOTHING, failed, math.nan)
    paired = [table.comparisons[variant].is_paired for table in chosen]
    return Line(
        variant=variant,
        cells=cells,
        columns=len(chosen),
        effect=across.mean_effect(mine, base, paired),
        iqm=middle,
        improvement=across.bootstrapped(across.probability_of_improvement, mine, base),
        failed=failed,
        step_time=_step_time(chosen, variant),
    )


def scores(tables: Sequence[ErrorTable], variant: str) -> np.ndarray:
    """Returns a variant's improvements in % [seeds, tables] on the deciding splits, a row for each
    seed of any table, nan where a table has no such run."""
    seeds = sorted(
        {seed for table in tables for row in table.rows for seed in table.of(row).values}
    )
    place = {seed: number for number, seed in enumerate(seeds)}
    found = np.full((len(seeds), len(tables)), math.nan)
    for column, table in enumerate(tables):
        scale = _scale(table)
        for seed, value in table.of(table.by_variant[variant]).values.items():
            found[place[seed], column] = scale * (value - _base_mean(table))
    return found


def _base_mean(table: ErrorTable) -> float:
    row = table.baseline_row
    summary = table.of(row).summary if row else None
    return summary.mean if summary else math.nan


def _scale(table: ErrorTable) -> float:
    """Returns what a difference is multiplied by to be an improvement in %."""
    mean = abs(_base_mean(table))
    return math.nan if not mean > 0 else (-100 if table.metric.lower_is_better else 100) / mean


def _cell(
    table: ErrorTable, variant: str, failed: failed_runs.VariantFailures | None
) -> Improvement | None:
    comparison = table.comparisons.get(variant)
    if comparison is None:
        return None
    scale = _scale(table)
    low, high = sorted((scale * comparison.low, scale * comparison.high))
    percent = Estimate(scale * comparison.difference, low, high)
    return Improvement(percent, comparison, failed.rate if failed else None)


def _step_time(tables: Sequence[ErrorTable], variant: str) -> float:
    """Returns the geometric mean over the tables of the median seconds of a step over the
    baseline's median, nan where a table has none of either."""
    ratios = []
    for table in tables:
        mine, base = (
            _median_step(table, table.by_variant[name]) for name in (variant, table.baseline)
        )
        ratios.append(mine / base if base > 0 else math.nan)
    return float(np.exp(np.mean(np.log(ratios)))) if all(each > 0 for each in ratios) else math.nan


def _median_step(table: ErrorTable, row: VariantResult) -> float:
    found = [_seconds_a_step(run) for run in table.runs(row, ("done",))]
    known = [each for each in found if each > 0]
    return float(np.median(known)) if known else math.nan


def _seconds_a_step(run: Run) -> float:
    """Returns training seconds over updates at the last evaluation, nan without a time."""
    seconds = run.evals.get(TIME)
    if seconds is None or not run.last_step or not len(seconds):
        return math.nan
    return float(seconds[-1]) / run.last_step
