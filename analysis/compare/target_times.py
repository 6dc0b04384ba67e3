"""Steps and seconds until each variant first reaches the target: what `time` prints."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.compare import crossings
from analysis.compare.crossings import Crossing
from analysis.compare.error_table import ErrorTable
from analysis.load import metrics, selection, targets
from analysis.load.records import Run, StudyRuns
from analysis.load.targets import Target
from analysis.statistics import speed_up
from analysis.statistics.speed_up import SpeedUp
from attention import table as variants

# Which trials stand for a seed: at the point that validation chose, AlgoPerf's, each on its own.
RULES = ("chosen", "fastest", "all")
# Submissions of AlgoPerf's logs ran on the same machines, and their steps differ in price by less;
# one of 2025 logs a step of which takes 218 of another's.
OTHER_UNITS = 10.0


@dataclass(frozen=True)
class VariantTimes:
    """A variant's runs at one point, None where seeds have theirs or none was chosen: `crossings`
    in seed order, and how many times faster than the baseline, None for the baseline itself and
    where there is none."""

    variant: str
    point: int | None
    crossings: tuple[Crossing, ...]
    by_steps: SpeedUp | None = None
    by_seconds: SpeedUp | None = None

    @property
    def step_seconds(self) -> float:
        """Returns the median seconds of training per step, nan where they are unknown."""
        every = [each.last_seconds / each.last_step for each in self.crossings if each.last_step]
        known = [seconds for seconds in every if math.isfinite(seconds)]
        return float(np.median(known)) if known else math.nan


@dataclass(frozen=True)
class TargetTimes:
    """What the table and the plot are made of, of the study of `table`. `left_out` are the runs
    that may yet reach the target, pending or running ones; `rule`, one of RULES, says which trials
    the rows are of, and `unchosen` names variants without a chosen point."""

    table: ErrorTable
    target: Target
    baseline: str
    rows: tuple[VariantTimes, ...]
    left_out: tuple[Run, ...]
    disagreement: str | None
    problems: tuple[str, ...]
    rule: str
    unchosen: tuple[str, ...]

    @property
    def name(self) -> str:
        """Returns the study's name."""
        return self.table.study.name

    @property
    def is_paired(self) -> bool:
        """Returns whether seeds are shared."""
        return self.table.study.shares_seeds


def build(
    table: ErrorTable,
    target: float | None = None,
    split: str = selection.VALIDATION,
    metric: str | None = None,
    points: str = RULES[0],
    baseline: str | None = None,
) -> TargetTimes:
    """Returns the times of every variant of `table` by a rule of RULES: at the point that
    validation chose, of each seed the fastest trial (AlgoPerf's rule), or of all points. A variant
    of which no point was chosen has never reached the target.

    `target` is in the unit of `metric` (error, wer ...; the target's own metric unless given);
    without it, the runs' or AlgoPerf's. Raises UnknownTargetError where there is none, ValueError
    for a metric other than the target's without a value, MissingMetricError for a metric that no
    evaluation has.
    """
    chosen = {row.variant: row.point for row in table.rows}
    due = [
        run
        for run in table.study.stage(table.stage)
        if points != "chosen" or chosen.get(run.variant) in (None, run.point)
    ]
    runs = [run for run in due if run.state in crossings.COUNTED_STATES]
    measured = [run for run in runs if run.evals]
    goal, problems = _target(table, measured, target, split, metric)
    columns = {name for run in measured for name in run.evals}
    if measured and goal.metric.column(split) not in columns:
        goal.metric.read(measured[0].evals, split, measured[0].name)
    unchosen = () if points != "chosen" else tuple(
        row.variant for row in table.rows if row.point is None
    )  # fmt: skip
    rows = _rows(runs, goal, points, unchosen)
    against = baseline or table.baseline
    of_point = None if points == "fastest" else chosen.get(against)
    base = next((row for row in rows if (row.variant, row.point) == (against, of_point)), None)
    return TargetTimes(
        table=table,
        target=goal,
        baseline=against,
        rows=tuple(_against(row, base, table.study) for row in rows),
        left_out=tuple(run for run in due if run not in runs),
        disagreement=None if target is not None else targets.disagreement(measured[0], goal),
        problems=(*problems, *table.problems),
        rule=points,
        unchosen=tuple(row.variant for row in rows if row.variant in unchosen),
    )


def _target(
    table: ErrorTable, runs: Sequence[Run], value: float | None, split: str, metric: str | None
) -> tuple[Target, tuple[str, ...]]:
    if value is not None:
        shown = metrics.get(metric or table.chosen_by.source)
        return Target(shown, split, value, "given"), ()
    goal, problems = targets.of_runs(runs, split, table.study.stage(table.stage))
    if metric and metrics.get(metric) != goal.metric:
        raise ValueError(
            f"the target is {goal.words} ({goal.source}); for --metric={metric} give "
            "--target=VALUE, too"
        )
    return goal, problems


def _rows(
    runs: Sequence[Run], target: Target, points: str, unchosen: Collection[str]
) -> list[VariantTimes]:
    """Returns a row for every variant and point, or for every variant, in the order of the
    table."""

    def key(run: Run) -> tuple[str, int | None]:
        return run.variant, None if points == "fastest" or run.variant in unchosen else run.point

    rows = []
    for variant, point in sorted(
        {key(run) for run in runs}, key=lambda key: (variants.order(key[0]), key[1] or 0)
    ):
        seeds: dict[int, list[Run]] = {}
        for run in sorted(runs, key=lambda run: run.seed):
            if key(run) == (variant, point):
                seeds.setdefault(run.seed, []).append(run)
        of_seed = crossings.never if variant in unchosen else crossings.fastest
        found = [of_seed(own, target) for own in seeds.values()]
        rows.append(VariantTimes(variant, point, tuple(each for each in found if each)))
    return rows


def _against(row: VariantTimes, base: VariantTimes | None, study: StudyRuns) -> VariantTimes:
    """Returns a row with its ratios to the baseline's, as it is where there is none."""
    if base is None or row is base:
        return row
    ratios = [
        speed_up.of(
            {each.seed: getattr(each, what) for each in row.crossings},
            {each.seed: getattr(each, what) for each in base.crossings},
            study.shares_seeds,
        )
        for what in ("step", "seconds")
    ]
    price = row.step_seconds / base.step_seconds if base.step_seconds else math.nan
    if study.published and not 1 / OTHER_UNITS <= price <= OTHER_UNITS and price == price:
        ratios[0] = speed_up.OTHER_UNITS
    return VariantTimes(row.variant, row.point, row.crossings, *ratios)
