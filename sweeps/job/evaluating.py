"""An evaluation: a checkpoint's parameters alone, put before a suite."""

import pathlib
import time
from collections.abc import Callable
from typing import Any

from sweeps.records import layout, lease, measurements, status
from sweeps.study.evaluation import Evaluation
from sweeps.training import checkpoints, loop, train_step

# A status is a file of its own, written anew.
_SAY_EVERY_S = 5.0


def evaluate(
    found: Evaluation,
    attempt: lease.Attempt,
    workload: Any,
    data_dir: str,
    stop_requested: Callable[[], bool],
) -> str:
    """Writes an evaluation's results beside its record and returns 'done'.

    Tasks that an earlier attempt finished are not repeated. Raises loop.Preempted where it was told
    to stop, lease.LostError where another worker has taken over, ValueError for what cannot be
    evaluated.
    """
    from workloads.downstream import harness, suites

    directory = attempt.trial_directory
    finished, said = _finished(directory), time.monotonic()
    layout.write_json(attempt.directory / measurements.RESUMED, {"global_step": finished})
    _say(found, attempt, "running", finished)

    def progress(task: str, done: int, total: int) -> None:
        """Asked after every batch of a task: `done` of `total` requests."""
        nonlocal said
        stops, now = stop_requested(), time.monotonic()
        if not stops and now - said < _SAY_EVERY_S:
            return
        said, whole = now, _finished(directory)
        print(f"{task}: {done} of {total} requests; {whole} tasks finished", flush=True)
        if stops:
            _say(found, attempt, "pending", whole, f"preempted after {whole} tasks")
            raise loop.Preempted
        _say(found, attempt, "running", whole)

    with train_step.precise(found.trial.matmul_precision):
        parameters = restored(found, directory.parents[2], workload)
        about = {
            "trial_id": found.trial.id,
            "variant": found.trial.variant,
            "workload": found.trial.workload,
            "seed": found.trial.seed,
            "step": found.checkpoint,
        }
        suite = suites.get(found.suite)
        harness.evaluate(workload, parameters, suite, data_dir, directory, about, progress)
    _say(found, attempt, "done", found.tasks)
    return "done"


def _finished(directory: pathlib.Path) -> int:
    """Returns how many tasks are on disk."""
    return len(list((directory / layout.DOWNSTREAM_TASKS).glob("[!.]*.jsonl.gz")))


def restored(found: Evaluation, trial_directory: pathlib.Path, workload: Any) -> Any:
    """Returns the parameters of an evaluation's checkpoint, placed as the workload's mesh says.

    Raises ValueError where the checkpoint is damaged, absent or another model's.
    """
    key = train_step.seed_key(found.trial.seed, train_step.INIT)
    like = train_step.placed_shapes(workload, key)
    step = found.checkpoint
    try:
        return checkpoints.restore_parameters(found.trial, trial_directory, step, *like)[0]
    except checkpoints.DamagedError as damage:
        raise ValueError(f"{damage}: the checkpoint is damaged, and nothing else holds it") from (
            damage
        )


def _say(
    found: Evaluation, attempt: lease.Attempt, state: str, done: int, reason: str | None = None
) -> None:
    status.say(attempt, state, found.id, done, found.tasks, reason)
