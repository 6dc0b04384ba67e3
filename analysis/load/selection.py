"""What validation chooses: a step of every trial, a point of every search.

The rule is the driver's, and so are the functions (`sweeps.study.selection`): a trial's best
evaluation, the first on ties; a search's best point by the median over its seeds, a lost seed
(diverged, failed, or without a finite evaluation) counting as the worst value there is. Train and
test are reported at the step that validation chose and never choose anything. Where there is one
point alone, nothing is chosen: it stands for its variant.

The driver chooses when a stage is over, and what is not done by then is lost. A stage that is read
here may go on: what has not finished is left out.
"""

import contextlib
from collections.abc import Iterable

from analysis.load import metrics
from analysis.load.metrics import Metric, MissingMetricError
from analysis.load.records import Run, StudyRuns
from sweeps.records import layout
from sweeps.study import selection as rule

VALIDATION = "validation"


def best_index(run: Run, metric: str | None = None) -> int | None:
    """Returns the index into `run.evals` of the best evaluation by validation, None where no
    evaluation is finite. `metric` is the name of a metric, the run's own unless given.

    Raises MissingMetricError where the evaluations have no such column.
    """
    if run.last_step is None:
        return None
    chosen = metrics.get(metric or run.metric)
    values = chosen.read(run.evals, VALIDATION, f"{run.name}/{layout.EVAL_MEASUREMENTS}")
    return rule.best_index(values.tolist(), chosen.mode)


def best_step(run: Run, metric: str | None = None) -> dict[str, float] | None:
    """Returns the best evaluation by validation, a column's name to its value (`global_step`
    among them, an int), or None where no evaluation is finite. Arguments and errors as for
    `best_index`."""
    index = best_index(run, metric)
    return None if index is None else run.row(index)


def _values(runs: Iterable[Run], metric: str | None) -> dict[int, list[float | None]]:
    """Returns of each point its trials' best validation metrics, None for a lost seed; a run that
    has not finished, does not have the metric, or of which the end is lost has none."""
    found: dict[int, list[float | None]] = {}
    for run in runs:
        if run.state in layout.LOST:
            found.setdefault(run.point, []).append(None)
        elif run.state == "done" and not run.ends_early and run.evals:
            with contextlib.suppress(MissingMetricError):
                row = best_step(run, metric)
                column = metrics.get(metric or run.metric).column(VALIDATION)
                found.setdefault(run.point, []).append(None if row is None else row[column])
    return found


def best_point(runs: Iterable[Run], metric: str | None = None) -> int | None:
    """Returns the index of the best point among `runs` (trials of one variant), None where no
    trial can be chosen. `metric` is as for `best_index`."""
    every = list(runs)
    if not every:
        return None
    mode = metrics.get(metric or every[0].metric).mode
    return rule.best_point(_values(every, metric), mode)


def chosen_point(study: StudyRuns, stage: str, variant: str) -> int | None:
    """Returns the point whose trials represent `variant` in a table of `stage`.

    selection.json decides where it exists. Where it does not (a study that only ran `grid`, or
    one that was never tuned), the rule above is applied to that stage's trials themselves.
    """
    if study.selection is not None:
        return study.selection.get("points", {}).get(variant)
    runs = [run for run in study.stage(stage) if run.variant == variant]
    metric = study_metric(study).source
    points = {run.point for run in runs}
    if len(points) > 1:
        return best_point(runs, metric)
    measured = [value for values in _values(runs, metric).values() for value in values]
    return min(points) if any(value is not None for value in measured) else None


def study_metric(study: StudyRuns) -> Metric:
    """Returns the metric that chooses in this study: selection.json's, else the runs' own, of
    which those that measured something know it best."""
    if study.selection and study.selection.get("metric"):
        return metrics.get(study.selection["metric"])
    known = [*(run for run in study.runs if run.evals), *study.runs]
    return metrics.get(known[0].metric if known else "accuracy")
