"""The target that a run has to reach: its own files' first, else AlgoPerf's for its workload.

`reference/algoperf_targets.csv` holds AlgoPerf's targets by version, as its source code states
them (what differs between versions, and where its published logs state other ones:
`analysis/reference/README.md`).
"""

import collections
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.load import metrics, paper
from analysis.load.metrics import Metric
from analysis.load.records import Run

TIME = "accumulated_submission_time"
# The source of a target that the trials themselves state.
OWN = "stated in the trials' own files"
FILE = "algoperf_targets.csv"


class UnknownTargetError(ValueError):
    """Nothing states a target; the message says what was looked for and what to do."""


@dataclass(frozen=True)
class Target:
    """A number to reach: at most `value` of `metric` on `split` where less is better, at least
    `value` where more is. `source` says in words where it is from."""

    metric: Metric
    split: str
    value: float
    source: str

    @property
    def words(self) -> str:
        """Returns the target as a reader writes it: `validation WER <= 0.085884`."""
        sign = "≤" if self.metric.lower_is_better else "≥"
        return f"{self.split} {self.metric.label} {sign} {self.value:g}"

    def is_reached(self, values: np.ndarray | float) -> np.ndarray:
        """Returns whether `values` [...], as they are shown, reach it; what is not finite does
        not."""
        better = np.less_equal if self.metric.lower_is_better else np.greater_equal
        return np.isfinite(values) & better(values, self.value)


@dataclass(frozen=True)
class AlgoperfTarget:
    """A line of AlgoPerf's table: values in the metric's own column (accuracy, not error), nan
    where there is no target, `step_hint` in steps, `max_allowed_runtime_sec` in seconds."""

    workload: str
    version: str
    metric: str
    validation: float
    test: float
    step_hint: int
    max_allowed_runtime_sec: int

    def value(self, split: str) -> float:
        """Returns the target of `validation` or `test`."""
        return {"validation": self.validation, "test": self.test}[split]


@functools.cache
def algoperf() -> tuple[AlgoperfTarget, ...]:
    """Returns AlgoPerf's targets: every workload and published variant, by version, oldest
    first."""
    return tuple(
        AlgoperfTarget(
            workload=row["workload"],
            version=row["version"],
            metric=row["metric"],
            validation=float(row["validation"]),
            test=float(row["test"] or "nan"),
            step_hint=int(row["step_hint"]),
            max_allowed_runtime_sec=int(row["max_allowed_runtime_sec"]),
        )
        for row in paper.lines(FILE)
    )


def nearest(
    workload: str, steps: int | None, seconds: float | None = None
) -> AlgoperfTarget | None:
    """Returns AlgoPerf's target of `workload` in the version whose step hint is nearest (in
    ratio) to `steps`, the newer one on ties and without steps; None for other workloads.

    A version that allows fewer `seconds` than a run trained cannot be the run's, where another
    can: the 2024 logs ended ViT by time, 21.5 h of the 21.5 h allowed then, at 171,472 steps.
    """
    own_name = workload.rpartition(":")[2]  # `algoperf:imagenet_vit` in our studies
    known = [target for target in algoperf() if target.workload == own_name]
    long_enough = [t for t in known if t.max_allowed_runtime_sec >= (seconds or 0.0)] or known
    if not known or not steps:
        return long_enough[-1] if known else None
    return min(reversed(long_enough), key=lambda target: abs(math.log(target.step_hint / steps)))


def of_run(run: Run, split: str, steps: int | None = None, seconds: float | None = None) -> Target:
    """Returns what `run` has to reach on `split` (validation or test).

    First what its own files state, then AlgoPerf's table in the version nearest to `steps` and
    `seconds` of training, the run's own unless given. Raises UnknownTargetError where neither
    knows the workload.
    """
    stated = run.targets
    if stated.get(split) is not None and stated.get("metric"):
        metric = metrics.get(str(stated["metric"]))
        return Target(metric, split, float(stated[split]), OWN)
    steps, seconds = steps or _steps(run), seconds or trained_seconds(run)
    found = nearest(run.workload, steps, seconds)
    splits = ("validation", "test")
    if found is None or split not in splits or math.isnan(found.value(split)):
        why = (
            f"{run.name} states none, and AlgoPerf's table ({FILE}) has validation and test "
            "targets of its own workloads alone; give --target=VALUE and --metric=NAME"
        )
        if found is not None:
            why = (
                f"AlgoPerf has none there ({FILE}); give --target=VALUE and --metric=NAME, or "
                "another --split"
            )
        raise UnknownTargetError(f"no {split} target is known for {run.workload}: {why}")
    longest = f"nearest to the longest run's {steps or 0:,} steps and time"
    why = longest if steps else "the newest, as the steps are unknown"
    source = f"AlgoPerf {found.version} (step hint {found.step_hint:,}, {why})"
    return Target(metrics.get(found.metric), split, found.value(split), source)


def _steps(run: Run) -> int | None:
    return run.step_hint or run.steps or run.last_step


def trained_seconds(run: Run) -> float:
    """Returns the training time until the last evaluation that records it, 0 where none does."""
    times = run.evals.get(TIME, np.zeros(0))
    return float(times[np.isfinite(times)].max(initial=0.0))


def of_runs(
    runs: Sequence[Run], split: str, peers: Sequence[Run] = ()
) -> tuple[Target, tuple[str, ...]]:
    """Returns the target that most of the runs have, and a sentence for each other one.

    Where nothing states the budget, that of the longest run among `runs` and `peers`, all the
    runs of their study and workload, counts: others may have been stopped early. Raises
    UnknownTargetError where a run has no target, or where there are no runs.
    """
    if not runs:
        raise UnknownTargetError("no run that could reach a target; give another stage or point")
    every = (*runs, *peers)
    steps, seconds = max(_steps(run) or 0 for run in every), max(map(trained_seconds, every))
    stated = collections.Counter(of_run(run, split, steps, seconds) for run in runs)
    (chosen, _), *others = stated.most_common()
    # The same number from another source is no other target.
    others = [(other, count) for other, count in others if other.words != chosen.words]
    return chosen, tuple(
        f"mismatch: {count} runs have another target, {other.words} ({other.source}); all are "
        f"held to {chosen.words}"
        for other, count in others
    )


def disagreement(run: Run, target: Target) -> str | None:
    """Returns a sentence where AlgoPerf's table has another value than the run's own files."""
    found = nearest(run.workload, _steps(run), trained_seconds(run))
    if target.source != OWN or found is None or target.split not in ("validation", "test"):
        return None
    table = found.value(target.split)
    if found.metric != target.metric.name or math.isclose(table, target.value, rel_tol=1e-6):
        return None
    return f"AlgoPerf {found.version}'s source code has {table:g} instead"
