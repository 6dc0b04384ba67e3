"""An evaluation in a job: a checkpoint's parameters alone, put before a suite's questions."""

import time
from collections.abc import Callable
from typing import Any

from sweeps.records import layout, lease, measurements
from sweeps.study.trial import Trial
from sweeps.training import checkpoints, loop, train_step

# Between two lines of the log.
_PRINT_EVERY_S = 5.0


def evaluate(
    trial: Trial,
    attempt: lease.Attempt,
    workload: Any,
    data_dir: str,
    stop_requested: Callable[[], bool],
) -> str:
    """Writes an evaluation's results into its directory and returns 'done'.

    trial: with the mesh that it is evaluated on. Tasks that an earlier attempt finished are not
    repeated. Raises loop.Preempted where it was told to stop, lease.LostError where another process
    has taken over, ValueError for what cannot be evaluated.
    """
    from workloads.downstream import harness, suites

    directory = attempt.trial_directory
    checkpoint, suite = int(directory.parent.name), suites.get(directory.name)
    finished = {"global_step": layout.finished_tasks(directory)}
    layout.write_json(attempt.directory / measurements.RESUMED, finished)
    printed_at = time.monotonic()

    def progress(task: str, done: int, total: int) -> None:
        """Asked after every batch of a task: `done` of `total` requests."""
        nonlocal printed_at
        stops, now = stop_requested(), time.monotonic()
        if stops or now - printed_at >= _PRINT_EVERY_S:
            printed_at = now
            attempt.check()
            print(f"{task}: {done} of {total} requests", flush=True)
        if stops:
            raise loop.Preempted

    with train_step.precise(trial.matmul_precision):
        parameters, _ = checkpoints.restore_trained(
            trial, directory.parents[2], checkpoint, workload
        )
        about = {
            "trial_id": trial.id,
            "variant": trial.variant,
            "workload": trial.workload,
            "seed": trial.seed,
            "step": checkpoint,
        }
        harness.evaluate(workload, parameters, suite, data_dir, directory, about, progress)
    return "done"
