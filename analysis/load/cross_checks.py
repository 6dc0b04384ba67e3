"""What trials say against one another: columns that others have, copies, and runs cut short.

AlgoPerf ends a run that has reached its targets, has used the time allowed, or has taken the steps
it was told to (submission_runner.py). A log does not say which. Of the 2,280 runs in the logs of
versions 0.5 and 0.6 that missed their validation target, none ended between 83 and 93 percent of
their step hint or of their time, whichever is more: 414 ended before, many of them at step 1.
"""

import collections
import dataclasses
import filecmp
import itertools
import math
from collections.abc import Iterable, Sequence

from analysis.load import selection, targets
from analysis.load.files.measurements import splits_of_nothing
from analysis.load.metrics import MissingMetricError
from analysis.load.records import Run
from analysis.load.targets import Target, UnknownTargetError
from sweeps.records import layout

# A clock's reading: no two runs share every digit of it.
TIMES = layout.TIME_COLUMNS[1:]
# Of the step hint, or of the time: the middle of the gap in the published logs.
LEAST = 0.9


def with_absent_columns(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Returns the runs; one whose evaluations lack a column of its metric that other trials of its
    variant and workload have says so in its problems."""
    there: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for run in runs:
        there[run.variant, run.workload].update(run.evals)
    return tuple(_naming_absent(run, there[run.variant, run.workload]) for run in runs)


def columns_nowhere(runs: Sequence[Run]) -> list[str]:
    """Returns a sentence for each split of which no trial that was evaluated has the metric."""
    measured = [run for run in runs if run.evals]
    there = {name for run in measured for name in run.evals}
    wanted = dict.fromkeys(f"{split}/{run.metric}" for split in layout.SPLITS for run in measured)
    absent = [name for name in wanted if name not in there]
    empty = {each for run in measured * bool(absent) for each in splits_of_nothing(run.evals)}
    return [
        f"missing: no trial has a column {name}"
        for name in absent
        if name.partition("/")[0] not in empty
    ]


def _naming_absent(run: Run, elsewhere: set[str]) -> Run:
    own = (f"{split}/{run.metric}" for split in layout.SPLITS)
    lost = [name for name in own if name in elsewhere and name not in run.evals]
    if not lost or not run.evals:
        return run
    # In the words of the table, which says it of the trials that it counts.
    said = tuple(f"missing: {run.name}: no column {name}" for name in lost)
    return dataclasses.replace(run, problems=(*run.problems, *said))


def duplicates(runs: Sequence[Run]) -> list[str]:
    """Returns a sentence for each trial whose variant, point and seed an earlier one has, and for
    each whose evaluations are a copy of an earlier one's, times included."""
    return [*_same_seed(runs), *copies(runs)]


def _same_seed(runs: Sequence[Run]) -> Iterable[str]:
    first: dict[tuple, Run] = {}
    for run in runs:
        key = (run.stage, run.workload, run.variant, run.point, run.seed)
        if (earlier := first.setdefault(key, run)) is not run:
            what = f"{run.variant}, point {run.point}, seed {run.seed}"
            yield f"duplicated: {run.name}: {what} is {earlier.name}, too; the first counts"


def copies(runs: Sequence[Run]) -> Iterable[str]:
    """Yields a sentence for each trial whose eval_measurements.csv has the bytes of an earlier
    one's. Files without times are not judged: short ones may be alike by chance."""
    alike: dict[tuple, list[Run]] = collections.defaultdict(list)
    for run in runs:
        if (key := _ending(run)) is not None:
            alike[key].append(run)
    for group in alike.values():
        yield from _among(group)


def _ending(run: Run) -> tuple | None:
    last = run.last_row
    if not last or not any(last.get(name, 0.0) > 0.0 for name in TIMES):
        return None
    return tuple(sorted((name, value) for name, value in last.items() if value == value))


def _among(group: list[Run]) -> Iterable[str]:
    known: list[Run] = []
    for run in group:
        same = next((other for other in known if _is_copy(run, other)), None)
        if same is None:
            known.append(run)
        else:
            place = same.name if same.name != run.name else str(same.path)
            yield (
                f"duplicated: {run.name}/{layout.EVAL_MEASUREMENTS}: byte for byte that of "
                f"{place}, times included; it is no result of its own"
            )


def _is_copy(one: Run, other: Run) -> bool:
    file = layout.EVAL_MEASUREMENTS
    try:
        return filecmp.cmp(one.path / file, other.path / file, shallow=False)
    except OSError:
        return False


def copies_across(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Returns a sentence for each trial that is a copy of one in an earlier group."""
    inside = {text for runs in groups for text in copies(runs)}
    return [text for text in copies([*itertools.chain(*groups)]) if text not in inside]


def with_early_endings(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Returns the runs; one that is done and ended with less than LEAST of its steps and of its
    time, without reaching its validation target, is `failed` and says why.

    Where no file and no table says how many steps a workload takes, the longest run on it counts
    as complete. A run whose target nothing states is left as it is.
    """
    longest: dict[str, int] = {}
    for run in runs:
        longest[run.workload] = max(longest.get(run.workload, 0), run.last_step or 0)
    return tuple(_ended_early(run, longest[run.workload]) for run in runs)


def _ended_early(run: Run, longest: int) -> Run:
    reason = _reason(run, longest) if run.state == "done" else None
    if reason is None:
        return run
    problems = (*run.problems, f"failed: {run.name}: {reason}")
    return dataclasses.replace(run, state="failed", reason=reason, problems=problems)


def _reason(run: Run, longest: int) -> str | None:
    """Returns why a run is no complete one, None where it is, or where that cannot be told."""
    seconds = targets.trained_seconds(run)
    known = targets.nearest(run.workload, run.step_hint or run.steps, seconds)
    steps = run.step_hint or (known and known.step_hint) or run.steps or longest
    allowed = run.allowed_s or (known and known.max_allowed_runtime_sec) or math.nan
    done = run.last_step or 0
    # The limit that the run itself was given may lie below the step hint.
    if done >= LEAST * min(steps, run.steps or steps) or seconds >= LEAST * allowed:
        return None
    if (target := _missed(run, seconds)) is None:
        return None
    time = "" if not seconds or math.isnan(allowed) else f" and {seconds:,.0f} of {allowed:,.0f} s"
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
    value = target.metric.shown(row[target.metric.column(target.split)])
    return None if target.is_reached(value) else target
