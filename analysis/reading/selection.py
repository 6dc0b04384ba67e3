"""What validation chooses: a step of every trial, a point of every search.

The rule, which the driver follows between its stages too:

- a trial's best evaluation is the one with the highest validation metric (the lowest where less
  is better: wer, loss), the first such on ties, evaluations that are not finite left out;
- train and test are reported at that step and never choose anything;
- a search's best point is the one whose trials have the best median, over all its seeds, of that
  best validation metric, the lower index on ties;
- a lost seed (its trial diverged, failed, or has no finite evaluation) counts as the worst value
  there is: a point that lost half of its seeds or more is never chosen, for its survivors would
  flatter it. Where there is one point alone, nothing is chosen: it stands for its variant.

The driver chooses when a stage is over, and what is not done by then is lost. A stage that is read
here may go on: what has not finished is left out.
"""

import contextlib
import math
import statistics
from collections.abc import Iterable

from analysis.files import curve_files
from analysis.files.records import Run, Study
from analysis.reading import metrics
from analysis.reading.metrics import Metric, MissingMetricError
from sweeps.records import layout

VALIDATION = "validation"


def best_index(run: Run, metric: str | None = None) -> int | None:
    """Returns the index into `run.evals` of the best evaluation by validation, None where no
    evaluation is finite. `metric` is the name of a metric, the run's own unless given.

    Raises MissingMetricError where the evaluations have no such column.
    """
    if run.last_step is None:
        return None
    chosen = metrics.get(metric or run.metric)
    chosen.require(run.evals, VALIDATION, f"{run.name}/{layout.EVAL_MEASUREMENTS}")
    return curve_files.best_index(run.evals, chosen.column(VALIDATION), chosen.mode)


def best_step(run: Run, metric: str | None = None) -> dict[str, float] | None:
    """Returns the best evaluation by validation, a column's name to its value (`global_step`
    among them, an int), or None where no evaluation is finite. Arguments and errors as for
    `best_index`."""
    index = best_index(run, metric)
    if index is None:
        return None
    return curve_files.row(run.evals, index)


def remember(run: Run) -> None:
    """Finds the best evaluation while the run's curve is in memory, for those who ask later."""
    with contextlib.suppress(MissingMetricError):
        best_index(run)


def validation_loss(run: Run, metric: str | None = None) -> float | None:
    """Returns the best validation metric turned so that less is better: the number by which
    points are ranked. inf for a lost seed, None for a run that has not finished or does not have
    the metric, or of which the end is lost."""
    if run.state in layout.LOST:
        return math.inf
    if run.state != "done" or run.ends_early:
        return None
    try:
        row = best_step(run, metric)
    except MissingMetricError:
        return None
    if row is None:
        return math.inf if run.evals else None
    chosen = metrics.get(metric or run.metric)
    value = row[chosen.column(VALIDATION)]
    return -value if chosen.mode == "max" else value


def point_losses(runs: Iterable[Run], metric: str | None = None) -> dict[int, float]:
    """Returns the median over seeds of `validation_loss` for every point that has one, in point
    order; inf for a point that is never chosen."""
    losses: dict[int, list[float]] = {}
    for run in runs:
        if (loss := validation_loss(run, metric)) is not None:
            losses.setdefault(run.point, []).append(loss)
    return {point: statistics.median(losses[point]) for point in sorted(losses)}


def best_point(runs: Iterable[Run], metric: str | None = None) -> int | None:
    """Returns the index of the best point among `runs` (trials of one variant), None where no
    trial can be chosen."""
    losses = point_losses(runs, metric)
    finite = {point: loss for point, loss in losses.items() if math.isfinite(loss)}
    return min(finite, key=finite.__getitem__, default=None)


def chosen_point(study: Study, stage: str, variant: str) -> int | None:
    """Returns the point whose trials represent `variant` in a table of `stage`.

    selection.json decides where it exists. Where it does not (a study that only ran `grid`, or
    one that was never tuned), the rule above is applied to that stage's trials themselves.
    """
    if study.selection is not None:
        return study.selection.get("points", {}).get(variant)
    runs = [run for run in study.stage(stage) if run.variant == variant]
    metric = study_metric(study).source
    if len({run.point for run in runs}) == 1:
        runs = [run for run in runs if validation_loss(run, metric) != math.inf]
    return best_point(runs, metric)


def study_metric(study: Study) -> Metric:
    """Returns the metric that chooses in this study: selection.json's, else the runs' own, of
    which those that measured something know it best."""
    if study.selection and study.selection.get("metric"):
        return metrics.get(study.selection["metric"])
    known = [*(run for run in study.runs if run.evals), *study.runs]
    return metrics.get(known[0].metric if known else "accuracy")
