"""Evaluations of trained trials' checkpoints: which are to be made, made by a scheduler, told.

A scheduler hands them out as it does trials (`sweeps.study.evaluation`). Results on disk are the
truth: what has them is never computed again.
"""

import pathlib
import statistics
from collections.abc import Iterable
from typing import Any

from sweeps.monitoring.progress import Progress
from sweeps.records import layout, status
from sweeps.scheduling.scheduler import Scheduler
from sweeps.study import evaluation
from sweeps.study.evaluation import Evaluation
from sweeps.study.study import Study
from sweeps.study.trial import Trial
from workloads.downstream import suites


def of_trials(
    study: Study,
    trials: Iterable[Trial],
    suite: str,
    checkpoints: int,
    settings: dict[str, Any] | None = None,
) -> list[Evaluation]:
    """Returns the evaluations of trials' last checkpoints, of trials that are done alone.

    settings: as `Evaluation.settings`. Raises ValueError where a trial has fewer checkpoints that
    an evaluation of its training goes with.
    """
    tasks, found = len(suites.get(suite).tasks), []
    for trial in trials:
        directory = study.directory / trial.path
        if status.read(directory)["state"] != "done":
            continue
        steps = [step for step in layout.checkpoint_steps(directory) if trial.evaluates_at(step)]
        if len(steps) < checkpoints:
            raise ValueError(_too_few(study, directory, len(steps), checkpoints))
        for step in steps[-checkpoints:]:
            found.append(evaluation.of(trial, step, suite, tasks, settings or {}))
    return found


def _too_few(study: Study, directory: pathlib.Path, there: int, wanted: int) -> str:
    kept = f"{there} checkpoint{'s' * (there != 1)}"
    if not there:
        return (
            f"{directory} has no checkpoint, so its model is lost: copy its {layout.CHECKPOINTS}/ "
            "back, or move the trial's directory away and resume the study, which trains it anew"
        )
    return (
        f"{directory} has {kept} and {wanted} are asked: give --checkpoints={there}; a study keeps "
        f"{wanted} where it is trained with --config.keep_checkpoints={wanted} (it had "
        f"{study.settings['keep_checkpoints']})"
    )


def run(
    study: Study, scheduler: Scheduler, progress: Progress, wanted: list[Evaluation]
) -> list[Evaluation]:
    """Has a scheduler make the evaluations that have no results; returns those without in the end.

    Raises Interrupted when told to stop, ValueError where none can be made at all.
    """
    left = [one for one in wanted if evaluation.materialise(study.directory, one)]
    if left:
        progress.stage(f"evaluate by {left[0].suite}", wanted, study.directory)
        scheduler.run(left)
    return [one for one in left if not _results(study, one).exists()]


def _results(study: Study, one: Evaluation) -> pathlib.Path:
    return study.directory / one.path / layout.RESULTS


def summary(study: Study, wanted: list[Evaluation]) -> list[str]:
    """Returns a line per trial: its last checkpoint's primary metrics, and means of the earlier.

    Raises ValueError for results that are damaged.
    """
    by_trial: dict[str, dict[int, dict[str, float] | None]] = {}
    for one in wanted:
        path = _results(study, one)
        values = _primary(path) if path.exists() else None
        by_trial.setdefault(one.trial.path, {})[one.checkpoint] = values
    return [_line(path, found) for path, found in by_trial.items()]


def _primary(path: pathlib.Path) -> dict[str, float]:
    """Returns each task's primary metric."""
    record = layout.read_json(path)
    try:
        return {
            name: float(task["metrics"][task["primary"]]) for name, task in record["tasks"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} is not what an evaluation writes ({type(error).__name__}: {error}); remove "
            f"{path.parent} and evaluate again"
        ) from error


def _line(path: str, found: dict[int, dict[str, float] | None]) -> str:
    last, values = max(found.items())
    if values is None:
        text = "no results"
    else:
        each = ", ".join(f"{name} {value:.3f}" for name, value in values.items())
        text = f"mean {statistics.fmean(values.values()):.4f} ({each})"
    earlier = [
        f"{step}: {statistics.fmean(one.values()):.4f}" if one else f"{step}: no results"
        for step, one in sorted(found.items())[:-1]
    ]
    tail = f"; means at earlier checkpoints: {', '.join(earlier)}" if earlier else ""
    return f"{path} step {last}: {text}{tail}"
