"""When runs first reach a target: per seed, and the median over seeds with those that never do."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.load.files.measurements import STEP
from analysis.load.records import Run
from analysis.load.targets import TIME, Target
from sweeps.records import layout

# A trial that diverged or failed did not reach what it had not reached; one still running may.
COUNTED_STATES = layout.FINISHED


@dataclass(frozen=True)
class Crossing:
    """One run's first evaluation at or past the target.

    `step` and `seconds` (of accumulated_submission_time: training, without evaluation and
    logging) are inf where the run never reached it; `seconds` is nan where its times were not
    recorded. `last_step` and `last_seconds` are its last evaluation's (0 without one), and `apart`
    the median number of steps from one evaluation to the next, nan for fewer than two. `state` and
    `point` are the run's, `evaluation` is the place of that evaluation in its curve, from 0.
    """

    seed: int
    step: float
    seconds: float
    last_step: float
    last_seconds: float
    apart: float
    state: str = "done"
    point: int | None = None
    evaluation: int | None = None

    @property
    def is_reached(self) -> bool:
        """Returns whether the run reached the target."""
        return math.isfinite(self.step)


@dataclass(frozen=True)
class Median:
    """A median over seeds: `value`, or, where `is_bound`, what the median is above, because
    seeds that never reached the target weigh in. nan without numbers."""

    value: float
    is_bound: bool


def of_run(run: Run, target: Target) -> Crossing | None:
    """Returns when `run` first reached `target`, None where it has no evaluation of the metric:
    never, where it diverged or failed before the first one.

    At most the target counts where less is better, at least where more is, as in AlgoPerf's
    scoring (score_submissions.py, operator.le and operator.ge). A value that is not finite
    reaches nothing.
    """
    column = target.metric.column(target.split)
    if column not in run.evals or not run.evals[STEP].size:
        if run.state not in layout.LOST:
            return None
        return Crossing(run.seed, math.inf, math.inf, 0.0, 0.0, math.nan, run.state, run.point)
    values = target.metric.shown(run.evals[column])
    steps = run.evals[STEP].astype(float)
    seconds = run.evals.get(TIME, np.full(steps.size, math.nan))
    hit = np.flatnonzero(target.is_reached(values))
    reached_at = math.inf if np.isfinite(seconds[-1]) else math.nan
    return Crossing(
        seed=run.seed,
        step=float(steps[hit[0]]) if hit.size else math.inf,
        seconds=float(seconds[hit[0]]) if hit.size else reached_at,
        last_step=float(steps[-1]),
        last_seconds=float(seconds[-1]),
        apart=float(np.median(np.diff(steps))) if steps.size > 1 else math.nan,
        state=run.state,
        point=run.point,
        evaluation=int(hit[0]) if hit.size else None,
    )


def fastest(runs: Iterable[Run], target: Target) -> Crossing | None:
    """Returns the crossing of a seed, of which `runs` are the trials: that of the trial which
    reaches the target at the earliest evaluation, counted in evaluations; None for no trial.

    That is AlgoPerf's rule (scoring/performance_profile.py: get_best_trial_index), which takes any
    of several that tie; here the one with the least time does. Where none reaches the target it is
    the trial that trained longest.
    """
    found = [each for run in runs if (each := of_run(run, target))]
    reached = [each for each in found if each.evaluation is not None]

    def order(each: Crossing) -> tuple[int | None, float, int | None]:
        seconds = math.inf if math.isnan(each.seconds) else each.seconds
        return each.evaluation, seconds, each.point

    if reached:
        return min(reached, key=order)
    return max(found, key=lambda each: (each.last_step, -(each.point or 0)), default=None)


def never(runs: Iterable[Run], target: Target) -> Crossing | None:
    """Returns the crossing of a seed none of whose trials counts as a result: of the longest."""
    found = [each for run in runs if (each := of_run(run, target))]
    longest = max(found, key=lambda each: each.last_step, default=None)
    return longest and dataclasses.replace(longest, step=math.inf, seconds=math.inf)


def median(values: Sequence[float], budgets: Sequence[float]) -> Median:
    """Returns the median of `values`, in which inf stands for "later than this seed's budget".

    A seed that never reached the target is as late as its budget or later, so that, with every
    such seed put at its budget, the median is one that the true median lies at or above. It is a
    bound only where the middle hangs on such a seed.
    """
    known = [(value, budget) for value, budget in zip(values, budgets, strict=True)
             if not math.isnan(value)]  # fmt: skip
    if not known:
        return Median(math.nan, False)
    late = np.median([value for value, _ in known])
    if math.isfinite(late):
        return Median(float(late), False)
    return Median(float(np.median([min(pair) for pair in known])), True)


def median_of(crossings: Sequence[Crossing], what: Literal["step", "seconds"]) -> Median:
    """Returns the median step of first reaching the target, or seconds of training until then."""
    values = [getattr(each, what) for each in crossings]
    return median(values, [getattr(each, f"last_{what}") for each in crossings])
