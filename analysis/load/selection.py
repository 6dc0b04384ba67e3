"""Selection by validation: a step of every trial, a point of every search.

The rule is the driver's, and so are the functions (`sweeps.study.selection`): a trial's best
evaluation, the first on ties; a search's best point by the median over its seeds, a lost seed
(diverged, failed, or without a finite evaluation) counting as the worst value there is. Train and
test are reported at the step that validation chose and never choose. A single point represents
its variant without a choice.

The driver chooses when a stage is over, and what is not done by then is lost. A stage that is read
here may go on: what has not finished is left out.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from analysis.load import metrics
from analysis.load.records import Run, StudyRuns
from sweeps.records import layout
from sweeps.study import selection as rule

VALIDATION = "validation"


def best_step(run: Run, metric: metrics.Metric) -> dict[str, float] | None:
    """Returns the evaluation that counts, a column's name to its value (`global_step` among them,
    an int): the best by a metric on validation, or the last of a run that `counts_last`; None if
    no evaluation has a finite one."""
    values = run.evals.get(metric.column(VALIDATION), np.empty(0))
    index = rule.best_index(values.tolist(), metric.mode)
    if run.counts_last and index is not None:
        index = int(np.flatnonzero(np.isfinite(values))[-1])
    return None if index is None else run.row(index)


def by_best_step(study: StudyRuns) -> StudyRuns:
    """Returns the study with the best step of every run, also where the last one would count."""
    runs = [dataclasses.replace(run, counts_last=False) for run in study.runs]
    return dataclasses.replace(study, runs=tuple(runs))


def _values(runs: Iterable[Run], metric: metrics.Metric) -> dict[int, list[float | None]]:
    """Returns of each point its trials' best validation metrics, None for a lost seed; a run that
    has not finished, does not have the metric, or of which the end is lost has none."""
    column = metric.column(VALIDATION)
    values: dict[int, list[float | None]] = collections.defaultdict(list)
    for run in runs:
        if run.state in layout.LOST:
            values[run.point].append(None)
        elif run.is_finished and column in run.evals:
            row = best_step(run, metric)
            values[run.point].append(None if row is None else row[column])
    return values


def best_point(runs: Iterable[Run], metric: metrics.Metric) -> int | None:
    """Returns the index of the best point among `runs` (trials of one variant) by a metric on
    validation, None if no trial can be chosen."""
    return rule.best_point(_values(runs, metric), metric.mode)


def chosen_point(study: StudyRuns, stage: str, variant: str) -> int | None:
    """Returns the point whose trials represent `variant` in a table of `stage`.

    selection.json decides where it exists; a variant that the study no longer plans has the point
    that all variants share, if they do. Otherwise (a study that only ran `grid`, or one that was
    never tuned) the rule above is applied to that stage's trials themselves. A point that is no
    longer planned takes part if it has as many seeds as any other.
    """
    if study.selection is not None:
        points = study.selection.get("points", {})
        if variant in points or variant in study.variants:
            return points.get(variant)
        if study.config.get("protocol") == "tune_then_compare":
            return next(iter(points.values()), None)
    points = planned_points(study, stage, variant)
    runs = [x for x in study.stage(stage) if x.variant == variant and x.point in points]
    metric = study_metric(study)
    if len(points) > 1:
        return best_point(runs, metric)
    measured = [value for values in _values(runs, metric).values() for value in values]
    return points[0] if any(value is not None for value in measured) else None


def planned_points(study: StudyRuns, stage: str, variant: str) -> list[int]:
    """Returns the points of a variant in `stage` that take part in a choice among them."""
    runs = [run for run in study.stage(stage) if run.variant == variant]
    return sorted({run.point for run in runs} - dropped_points(runs))


def candidates(study: StudyRuns, stage: str, variant: str) -> list[int]:
    """Returns the points among which one was chosen by the trials of `stage` themselves, with the
    seeds that a table compares; none where earlier trials chose, or there is one point alone."""
    chosen_from = (study.selection or {}).get("from_stage", stage)
    points = planned_points(study, stage, variant) if chosen_from == stage else []
    return points if len(points) > 1 else []


def is_lost_in_tuning(study: StudyRuns, stage: str, variant: str) -> bool:
    """Returns whether `stage` can have no trial of a variant, because its trials of earlier stages
    have ended and every point lost half of its seeds or more."""
    runs = [run for run in study.runs if run.variant == variant]
    is_over = all(run.has_ended and run.stage != stage for run in runs)
    return bool(runs) and is_over and best_point(runs, study_metric(study)) is None


def dropped_points(runs: Sequence[Run]) -> set[int]:
    """Returns the points of `runs`, trials of one variant, that are no longer planned and have
    fewer seeds than another: they take no part in the choice."""
    seeds = collections.Counter(run.point for run in runs)
    most = max(seeds.values(), default=0)
    planned = {run.point for run in runs if run.is_planned}
    return {point for point, count in seeds.items() if count < most} - planned


def uncounted(study: StudyRuns, stage: str, variant: str, point: int | None) -> list[Run]:
    """Returns the ended trials of a variant that the study no longer plans, and that neither count
    at the `point` that represents it nor were compared with it."""
    runs = [run for run in study.stage(stage) if run.variant == variant]
    known = {run.point for run in runs} if study.selection is not None else dropped_points(runs)
    return [run for run in runs if not run.is_planned and run.point in known - {point}]


def study_metric(study: StudyRuns) -> metrics.Metric:
    """Returns the metric that chooses in this study: selection.json's, else the runs' own, of
    which those that measured something know it best."""
    if study.selection and study.selection.get("metric"):
        return metrics.of_study(study, study.selection["metric"])
    known = [*(run for run in study.runs if run.evals), *study.runs]
    return metrics.of_study(study, known[0].metric if known else "accuracy")
