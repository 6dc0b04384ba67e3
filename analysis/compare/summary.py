"""Several studies at once: what each variant does on every workload, and over all of them.

Columns are studies, one for each workload that they hold. An improvement is how much less error,
WER or loss than the baseline's mean, in per cent of it (more, where more is better).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.compare import failed_runs
from analysis.compare.build import DEFAULT_BASELINE
from analysis.compare.error_table import ErrorTable, VariantResult
from analysis.compare.failed_runs import FailedRuns
from analysis.load.records import Run
from analysis.load.targets import TIME
from analysis.statistics import across, rates
from analysis.statistics.results import Comparison, Estimate, Rate
from attention import table as variants

NOTHING = Estimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Improvement:
    """One variant in one column: `percent` of the baseline's mean over the seeds that are compared,
    which is taken as known, with the 95% interval of the difference, and the comparison behind
    it."""

    percent: Estimate
    comparison: Comparison


@dataclass(frozen=True)
class Line:
    """One variant: its improvement in each column (None where it is not compared), and, over the
    columns `over` (numbers), what can be said of all of them, of the runs that the columns' tests
    compare: mean standardised effect, undefined where the columns' effects differ in kind,
    `effect_kind`; interquartile mean of the runs' improvements less the baseline's, in %;
    probability that one of its runs beats one of the baseline's; time of a step over the
    baseline's. `left_out` says why
    other columns in which it was trained are not in it. `failed` are its runs that failed to train,
    over all columns of the summary's baseline where that can be told, None where it cannot."""

    variant: str
    cells: tuple[Improvement | None, ...]
    failed: Rate | None
    over: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()
    effect: Estimate = NOTHING
    effect_kind: str = ""
    iqm: Estimate = NOTHING
    improvement: Estimate = NOTHING
    step_time: Estimate = NOTHING

    @property
    def label(self) -> str:
        """Returns the variant as the paper calls it."""
        return variants.label(self.variant)


@dataclass(frozen=True)
class Summary:
    """The columns' tables, the baseline that most of them have, a line for each variant, the
    baseline's own first, and a sentence for each study that has no column."""

    tables: tuple[ErrorTable, ...]
    baseline: str
    lines: tuple[Line, ...]
    without_column: tuple[str, ...]

    @property
    def headings(self) -> list[str]:
        """Returns a name for each column: the workload, with the study's where it is not alone."""
        return _headings(self.tables)


def of_tables(tables: Sequence[ErrorTable]) -> Summary:
    """Returns the summary of error tables. Raises ValueError where none of them compares anything
    with a baseline, where one is given twice, or where as many have one baseline as another."""
    places = [(table.study.directory.resolve(), table.workload) for table in tables]
    for place in places:
        if places.count(place) > 1:
            raise ValueError(f"{place[0]} is given twice: its runs would count twice; give it once")
    reasons = [(table, _why_no_column(table)) for table in tables]
    compared = [table for table, why in reasons if not why]
    if not compared:
        raise ValueError("nothing to sum up: no study here has a variant beside its baseline")
    bases = [table.baseline for table in compared]
    most = max(map(bases.count, bases))
    common = [name for name in dict.fromkeys(bases) if bases.count(name) == most]
    if len(common) > 1 and DEFAULT_BASELINE not in common:
        raise ValueError(
            f"as many studies are compared with {' as with '.join(common)}: choose by --baseline"
        )
    baseline = DEFAULT_BASELINE if DEFAULT_BASELINE in common else common[0]
    names = {baseline} | {
        row.variant for table in compared for row in table.rows if row.variant != table.baseline
    }
    failures = [failed_runs.of_table(table) for table in compared]
    ordered = sorted(names, key=lambda name: (name != baseline, variants.order(name)))
    lines = tuple(_line(name, compared, baseline, failures) for name in ordered)
    lacking = tuple(f"{table.study.name}: {why}" for table, why in reasons if why)
    return Summary(tuple(compared), baseline, lines, lacking)


def _headings(tables: Sequence[ErrorTable]) -> list[str]:
    names = [table.workload for table in tables]
    return [
        table.workload if names.count(table.workload) == 1 else table.study.name for table in tables
    ]


def _why_no_column(table: ErrorTable) -> str:
    """Returns why a table has no column, empty where the baseline has numbers and another variant
    was to be trained."""
    base = table.baseline_row
    if base is None:
        return f"no variant {table.baseline} to compare with"
    if not table.of(base).values:
        return f"{table.baseline_label} has no number in stage {table.stage}"
    return "" if len(table.rows) > 1 else f"no variant beside {table.baseline_label}"


def _line(
    variant: str, tables: Sequence[ErrorTable], baseline: str, failures: Sequence[FailedRuns]
) -> Line:
    cells = tuple(_cell(table, variant) for table in tables)
    own = [
        number
        for number, table in enumerate(tables)
        if table.baseline == baseline and variant in table.by_variant
    ]
    failed = _failed(variant, [failures[number] for number in own])
    if variant == baseline:
        return Line(variant, cells, failed)
    reasons = {number: _why_left_out(tables[number], variant) for number in own}
    over = tuple(number for number, why in reasons.items() if not why)
    headings = _headings(tables)
    left_out = tuple(f"{headings[number]}: {why}" for number, why in reasons.items() if why)
    if not over:
        return Line(variant, cells, failed, left_out=left_out)
    chosen = [tables[number] for number in over]
    compared = [table.comparisons[variant] for table in chosen]
    mine, base = (scores(chosen, variant, name) for name in (variant, baseline))
    paired = [each.is_paired for each in compared]
    kinds = sorted({each.effect_kind for each in compared})
    effects = [_sign(table) * each.effect for table, each in zip(chosen, compared, strict=True)]
    return Line(
        variant=variant,
        cells=cells,
        over=over,
        left_out=left_out,
        effect_kind=" and ".join(kinds),
        effect=across.mean_effect(
            effects if len(kinds) == 1 else [],
            [_size(each) for each in compared],
            [
                each.pairs - 1 if each.is_paired else each.n + each.n_baseline - 2
                for each in compared
            ],
        ),
        iqm=across.bootstrapped(across.iqm_difference, mine, base, paired),
        improvement=across.bootstrapped(across.probability_of_improvement, mine, base, paired),
        failed=failed,
        step_time=across.mean_ratio([_log_ratios(table, variant) for table in chosen]),
    )


def _why_left_out(table: ErrorTable, variant: str) -> str:
    """Returns why a column says nothing of a variant that the lines over all may use."""
    row, base = table.by_variant[variant], table.by_variant[table.baseline]
    lost = [each.label for each in (row, base) if each.lost or table.of(each).non_finite]
    if lost:
        return f"seeds of {' and '.join(lost)} were lost, which count as worse than any"
    comparison = table.comparisons.get(variant)
    if comparison is None or not comparison.is_tested:
        return "fewer than 2 seeds to compare"
    if comparison.withheld:
        return "runs differ in length"
    if math.isnan(comparison.effect):
        return "all differences are equal, or there are two: no effect in units of noise"
    if not abs(comparison.baseline) > 0:
        return "the baseline's mean is 0: no per cent of it"
    return ""


def _failed(variant: str, failures: Sequence[FailedRuns]) -> Rate | None:
    found = [
        each.by_variant[variant].rate
        for each in failures
        if each.limit is not None and variant in each.by_variant
    ]
    return rates.rate(sum(r.count for r in found), sum(r.n for r in found)) if found else None


def _size(comparison: Comparison) -> float:
    if comparison.is_paired:
        return float(comparison.pairs)
    return comparison.n * comparison.n_baseline / (comparison.n + comparison.n_baseline)


def scores(tables: Sequence[ErrorTable], variant: str, side: str) -> np.ndarray:
    """Returns the improvements of `side`, `variant` or the baseline, over the baseline's mean, in %
    of it, [seeds, tables] on the deciding splits, of the runs that the comparison of `variant` is
    over; a row for each seed of any table, nan where a table compares no such run."""
    seeds = sorted(
        {seed for table in tables for row in table.rows for seed in table.of(row).values}
    )
    place = {seed: number for number, seed in enumerate(seeds)}
    found = np.full((len(seeds), len(tables)), math.nan)
    for column, table in enumerate(tables):
        comparison = table.comparisons[variant]
        names = (side, variant, table.baseline) if comparison.is_paired else (side,)
        values = [table.of(table.by_variant[name]).values for name in names]
        scale = 100 * _sign(table) / abs(comparison.baseline)
        for seed in set.intersection(*map(set, values)):
            found[place[seed], column] = scale * (values[0][seed] - comparison.baseline)
    return found


def _sign(table: ErrorTable) -> int:
    """Returns what a difference is multiplied by to be an improvement."""
    return -1 if table.metric.lower_is_better else 1


def _cell(table: ErrorTable, variant: str) -> Improvement | None:
    comparison = table.comparisons.get(variant)
    if comparison is None:
        return None
    mean = abs(comparison.baseline)
    scale = 100 * _sign(table) / mean if mean > 0 else math.nan
    low, high = sorted((scale * comparison.low, scale * comparison.high))
    return Improvement(Estimate(scale * comparison.difference, low, high), comparison)


def _log_ratios(table: ErrorTable, variant: str) -> np.ndarray:
    """Returns the logs of the seconds of a step over the baseline's, of each seed that has both."""
    mine, base = (_seconds(table, table.by_variant[name]) for name in (variant, table.baseline))
    return np.log([mine[seed] / base[seed] for seed in sorted(mine.keys() & base.keys())])


def _seconds(table: ErrorTable, row: VariantResult) -> dict[int, float]:
    found = {run.seed: _seconds_a_step(run) for run in table.runs(row, ("done",))}
    return {seed: each for seed, each in found.items() if 0 < each < math.inf}


def _seconds_a_step(run: Run) -> float:
    """Returns training seconds over updates at the last evaluation, nan without a time."""
    seconds = run.evals.get(TIME)
    if seconds is None or not run.last_step or not len(seconds):
        return math.nan
    return float(seconds[-1]) / run.last_step
