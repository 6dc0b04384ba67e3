"""Published runs that stopped long before they were meant to: they count as failed.

AlgoPerf ends a run that has reached its targets, has used the time allowed, or has taken the steps
it was told to (submission_runner.py). A log does not say which. Of the 2,280 runs in the logs of
versions 0.5 and 0.6 that missed their validation target, none ended between 83 and 93 percent of
their step hint or of their time, whichever is more: 414 ended before, many of them at step 1.
"""

import dataclasses
import math
from collections.abc import Sequence

from analysis.files import curve_files
from analysis.files.records import Run
from analysis.reading import metrics, selection, targets
from analysis.reading.metrics import MissingMetricError
from analysis.reading.targets import Target, UnknownTargetError

# Of the step hint, or of the time: the middle of the gap in the published logs.
LEAST = 0.9


def judged(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Returns the runs; one that is done and ended with less than LEAST of its steps and of its
    time, without reaching its validation target, is `failed` and says why.

    Where no file and no table says how many steps a workload takes, the longest run on it counts
    as complete. A run whose target nothing states is left as it is.
    """
    longest: dict[str, int] = {}
    for run in runs:
        longest[run.workload] = max(longest.get(run.workload, 0), run.last_step or 0)
    return tuple(_judged(run, longest[run.workload]) for run in runs)


def _judged(run: Run, longest: int) -> Run:
    reason = _reason(run, longest) if run.state == "done" else None
    if reason is None:
        return run
    problems = (*run.problems, f"failed: {run.name}: {reason}")
    return dataclasses.replace(run, state="failed", reason=reason, problems=problems)


def _reason(run: Run, longest: int) -> str | None:
    """Returns why a run is no complete one, None where it is, or where that cannot be told."""
    last = curve_files.last_row(run.evals) or {}
    seconds = last.get(targets.TIME, math.nan)
    known = targets.nearest(run.workload, run.step_hint or run.steps, _or_zero(seconds))
    steps = run.step_hint or (known and known.step_hint) or run.steps or longest
    allowed = run.allowed_s or (known and known.max_allowed_runtime_sec) or math.nan
    done = run.last_step or 0
    # The limit that the run itself was given may lie below the step hint.
    if done >= LEAST * min(steps, run.steps or steps) or seconds >= LEAST * allowed:
        return None
    target = _missed(run, _or_zero(seconds))
    if target is None:
        return None
    time = "" if math.isnan(seconds + allowed) else f" and {seconds:,.0f} of {allowed:,.0f} s"
    return f"it ended at step {done:,} of {steps:,}{time}, without reaching {target.words}"


def _missed(run: Run, seconds: float) -> Target | None:
    """Returns the target that the run's best evaluation does not reach, None where it does."""
    try:
        target = targets.of_run(run, selection.VALIDATION, run.last_step, seconds)
        row = selection.best_step(run, target.metric.source)
    except (UnknownTargetError, MissingMetricError):
        return None
    if row is None:
        return target
    value = metrics.get(target.metric.name).shown(row[target.metric.column(target.split)])
    reached = value <= target.value if target.metric.lower_is_better else value >= target.value
    return None if reached else target


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
