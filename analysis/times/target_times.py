"""Steps and seconds until each variant first reaches the target: what `time` prints."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.documents.grid import Document
from analysis.files.records import Run
from analysis.reading import metrics, selection, targets
from analysis.reading.targets import Target
from analysis.results.error_table import ErrorTable
from analysis.times import crossings, speed_up
from analysis.times.crossings import Crossing
from analysis.times.plot import draw
from analysis.times.speed_up import SpeedUp

__all__ = ["TargetTimes", "VariantTimes", "build", "document", "draw"]


@dataclass(frozen=True)
class VariantTimes:
    """A variant's runs at one point: `crossings` in seed order, and how many times faster than
    the baseline, None for the baseline itself and where there is none."""

    variant: str
    point: int | None
    crossings: tuple[Crossing, ...]
    by_steps: SpeedUp | None = None
    by_seconds: SpeedUp | None = None


@dataclass(frozen=True)
class TargetTimes:
    """What the table and the plot are made of. `left_out` are the runs that may yet reach the
    target, pending or running ones; `paired` says whether seeds are shared."""

    name: str
    workload: str
    target: Target
    baseline: str
    rows: tuple[VariantTimes, ...]
    left_out: tuple[Run, ...]
    paired: bool
    disagreement: str | None
    problems: tuple[str, ...]


def build(
    table: ErrorTable,
    target: float | None = None,
    split: str = selection.VALIDATION,
    metric: str | None = None,
    all_points: bool = False,
    baseline: str | None = None,
) -> TargetTimes:
    """Returns the times of every variant of `table` at the point that validation chose, or, with
    `all_points`, at every point.

    `target` is in the unit of `metric` (error, wer ...; the target's own metric unless given);
    without it, the runs' or AlgoPerf's. Raises UnknownTargetError where there is none, ValueError
    for a metric other than the target's without a value and for a value that is not finite,
    MissingMetricError for a metric that no evaluation has.
    """
    planned = _planned(table, all_points)
    runs = [run for run in planned if run.state in crossings.COUNTED_STATES]
    measured = [run for run in runs if run.evals]
    goal, problems = _target(table, measured, target, split, metric)
    columns = {name for run in measured for name in run.evals}
    if measured and goal.metric.column(split) not in columns:
        goal.metric.read(measured[0].evals, split, measured[0].name)
    rows = _rows(runs, goal)
    against = baseline or table.baseline
    paired = table.study.shares_seeds
    return TargetTimes(
        name=table.study.name,
        workload=table.workload,
        target=goal,
        baseline=against,
        rows=_compared(rows, against, _chosen(table).get(against), paired),
        left_out=tuple(run for run in planned if run not in runs),
        paired=paired,
        disagreement=None if target is not None else targets.disagreement(measured[0], goal),
        problems=(*problems, *table.problems),
    )


def _chosen(table: ErrorTable) -> dict[str, int | None]:
    return {row.variant: row.point for row in table.rows}


def _planned(table: ErrorTable, all_points: bool) -> list[Run]:
    chosen = _chosen(table)
    return [
        run
        for run in table.study.stage(table.stage)
        if all_points or run.point == chosen.get(run.variant)
    ]


def _target(
    table: ErrorTable, runs: Sequence[Run], value: float | None, split: str, metric: str | None
) -> tuple[Target, tuple[str, ...]]:
    if value is not None:
        if not math.isfinite(value):
            raise ValueError(f"--target={value:g}: give a finite number, in the metric's unit")
        shown = metrics.get(metric or table.chosen_by.source)
        return Target(shown, split, value, "given"), ()
    goal, problems = targets.of_runs(runs, split, table.study.stage(table.stage))
    if metric and metrics.get(metric) != goal.metric:
        raise ValueError(
            f"the target is {goal.words} ({goal.source}); for --metric={metric} give "
            "--target=VALUE, too"
        )
    return goal, problems


def _rows(runs: Sequence[Run], target: Target) -> list[VariantTimes]:
    """Returns a row for every variant and point, in the order of the table."""
    from analysis.documents import variants

    keys = {(run.variant, run.point) for run in runs}
    rows = []
    for variant, point in sorted(keys, key=lambda key: (variants.order(key[0]), key[1])):
        own = [run for run in runs if (run.variant, run.point) == (variant, point)]
        found = [crossings.of_run(run, target) for run in sorted(own, key=lambda run: run.seed)]
        rows.append(VariantTimes(variant, point, tuple(each for each in found if each)))
    return rows


def _compared(
    rows: list[VariantTimes], baseline: str, point: int | None, paired: bool
) -> tuple[VariantTimes, ...]:
    base = next((row for row in rows if (row.variant, row.point) == (baseline, point)), None)
    if base is None:
        return tuple(rows)
    return tuple(row if row is base else _against(row, base, paired) for row in rows)


def _against(row: VariantTimes, base: VariantTimes, paired: bool) -> VariantTimes:
    ratios = [
        speed_up.of(
            {each.seed: getattr(each, what) for each in row.crossings},
            {each.seed: getattr(each, what) for each in base.crossings},
            paired,
        )
        for what in ("step", "seconds")
    ]
    return VariantTimes(row.variant, row.point, row.crossings, ratios[0], ratios[1])


def document(
    table: ErrorTable,
    target: float | None = None,
    split: str = selection.VALIDATION,
    metric: str | None = None,
    all_points: bool = False,
    baseline: str | None = None,
) -> Document | None:
    """Returns the table of times with its notes, None where no run has an evaluation or nothing
    states a target. Arguments and other errors as for `build`."""
    from analysis.times import layout

    counted = crossings.COUNTED_STATES
    if not any(run.evals and run.state in counted for run in _planned(table, all_points)):
        return None
    try:
        times = build(table, target, split, metric, all_points, baseline)
    except targets.UnknownTargetError:
        return None
    return layout.document(times, table)
