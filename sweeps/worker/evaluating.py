"""What a worker does with an evaluation: a checkpoint's parameters alone, put before a suite."""

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
    report: Callable[..., None],
    stop_requested: Callable[[], bool],
) -> str:
    """Writes an evaluation's results beside its record and returns 'done'.

    Tasks that an earlier attempt finished are not repeated. Raises loop.Preempted where it was told
    to stop, lease.LostError where another worker has taken over, ValueError for what cannot be
    evaluated.
    """
    from workloads.downstream import harness, suites

    directory = attempt.trial_directory
    began, finished = time.monotonic(), _finished(directory)
    said = began
    layout.write_json(attempt.directory / measurements.RESUMED, {"global_step": finished})
    _say(found, attempt, "running", finished)
    report("compiled", step=finished)

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
        if whole > finished:
            seconds = (now - began) / (whole - finished)
            report("figures", global_step=whole - 1, step_seconds=seconds)

    with train_step.precise(found.trial.matmul_precision):
        parameters, _ = checkpoints.restore_trained(
            found.trial, directory.parents[2], found.checkpoint, workload
        )
        about = {
            "trial_id": found.trial.id,
            "variant": found.trial.variant,
            "workload": found.trial.workload,
            "seed": found.trial.seed,
            "step": found.checkpoint,
        }
        suite = suites.get(found.suite)
        harness.evaluate(workload, parameters, suite, data_dir, directory, about, progress)
    seconds = (time.monotonic() - began) / max(1, found.tasks - finished)
    report("figures", global_step=found.tasks - 1, step_seconds=seconds)
    _say(found, attempt, "done", found.tasks)
    return "done"


def _finished(directory: pathlib.Path) -> int:
    """Returns how many tasks are on disk."""
    return len(list((directory / layout.DOWNSTREAM_TASKS).glob("[!.]*.jsonl.gz")))


def _say(
    found: Evaluation, attempt: lease.Attempt, state: str, done: int, reason: str | None = None
) -> None:
    status.say(attempt, state, found.id, done, found.tasks, reason)
