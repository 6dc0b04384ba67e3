"""Where a trial is claimed, trained and given back: one after the other, programs stay compiled.

An evaluation of a trained trial (`sweeps.scheduling.downstream`) is claimed the same way.
"""

import contextlib
import dataclasses
import faulthandler
import functools
import os
import pathlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from sweeps.distributed import process_group
from sweeps.launchers.protocol import AGAIN
from sweeps.records import (
    attempts,
    disk,
    layout,
    lease,
    measurements,
    outages,
    output,
    status,
    submissions,
)
from sweeps.study import trial as trials
from sweeps.study.trial import Trial
from workloads import catalog
from workloads.base.options import mesh_of


class End(NamedTuple):
    """How a trial ended: an attempt's outcome, or why there is no attempt, and the error."""

    outcome: str
    error: str | None = None


# Between two lines of an evaluation's log.
_PRINT_EVERY_S = 5.0
# Without progress for so long a process ends itself. Compiling and a whole evaluation lie between
# two updates, so it is an hour.
HANGS_AFTER_S = float(os.environ.get("ATTNPERF_HANG_S", "3600"))
_STDERR = 2  # the descriptor, which leads to the attempt's log
FINISHED, ELSEWHERE, UNCLAIMED = "already finished", "claimed elsewhere", "not claimed"


class Trainer:
    """Claims trials, trains them in this process, gives them back.

    `claimed(attempt)` is called once a trial is claimed. `processes` are those that train each
    trial: on process 0 `run` is called for each, on the others `follow` for each that it claims.
    mesh: of evaluations, {"data", "fsdp", "tensor"}; None for each trial's own. `stopping`: the
    trial at hand is saved, and no other begun. `broken`: this process must end.
    """

    processes = process_group.SINGLE

    def __init__(
        self,
        claimed: Callable[[lease.Attempt], None] = lambda attempt: None,
        mesh: Mapping[str, int] | None = None,
    ) -> None:
        self._mesh = mesh
        self._programs: dict[Any, Any] = {}
        self._claimed = claimed
        self.stopping = self.broken = False

    def stop(self) -> None:
        """Has the trial at hand saved at the next step."""
        self.stopping = True

    def run(self, directory: pathlib.Path, data_dir: str, loader_workers: int = 0) -> End:
        """Claims and trains the trial in a directory, unless it is finished or claimed."""
        try:
            if self.is_finished(directory):
                return End(FINISHED)
            attempt = outages.retry_transient(
                functools.partial(lease.claim, directory), lambda: self.stopping
            )
            if attempt is None:
                return End(ELSEWHERE)
            if self.is_finished(directory):
                # This process may have slept since it read the status.
                attempt.end("lost")
                return End(FINISHED)
        except OSError as problem:  # a full or vanished disk must not take the job along
            return End(UNCLAIMED, disk.named(problem, directory))
        with contextlib.suppress(OSError):  # left by writers that were killed
            now = os.stat(attempt.directory / lease.HEARTBEAT).st_mtime
            layout.remove_left_overs(directory, now)
            layout.remove_left_overs(directory / layout.ATTEMPTS, now)
        return self._run_claimed(attempt, data_dir, loader_workers)

    def is_finished(self, directory: pathlib.Path) -> bool:
        """Whether nothing is left of a trial; asks again where the file server fails."""
        read = functools.partial(status.read, directory)
        return outages.retry_transient(read, lambda: self.stopping)["state"] in status.COMPLETE

    def _run_claimed(self, attempt: lease.Attempt, data_dir: str, loader_workers: int) -> End:
        directory = attempt.trial_directory
        end: str | Exception = OSError()
        trained: Trial | None = None
        try:
            self._claimed(attempt)
            with (
                output.redirected(attempt.directory / attempts.LOG),
                heartbeat(attempt, self.stop),
                watchdog(),
            ):
                try:
                    if layout.is_evaluation(directory):
                        end = self._evaluate(attempt, data_dir)
                    else:
                        trained = trials.read(directory)
                        end = self._train(trained, attempt, data_dir, loader_workers)
                except Exception as problem:  # whatever it is, the study goes on around this trial
                    self._end_if_lost(problem)
                    end = problem
                outcome, error = conclude(attempt, end, trained)
        except OSError as problem:
            outcome, error = "failed", disk.named(problem, directory)
        # A device or its memory may be broken for good: the next trial gets a new process.
        self.broken |= outcome == "failed" and not isinstance(end, ValueError)
        from sweeps.training import loop

        # The other processes of a group wait in a collective, and end when this process does.
        is_waited_for = (
            self.processes.count > 1
            and isinstance(end, Exception)
            and not isinstance(end, loop.AGREED)
        )
        if is_waited_for or not (attempt.directory / lease.OUTCOME).exists():
            # Or the lease could not be given back: only the end of this process does it.
            print(f"{directory}: {outcome}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        self.stopping |= outcome == "preempted"  # it may be another process that was told
        is_alone = self.processes.count == 1 and not self.stopping
        if outcome == "done" and trained and trained.downstream and is_alone:
            # If the evaluation does not succeed, the driver repeats it when the stage is over.
            suite = directory / layout.downstream_path(trained.steps, trained.downstream)
            ended = self.run(suite, data_dir)
            print(
                f"{directory}: evaluated: {ended.outcome}: {ended.error}",
                file=sys.stderr,
                flush=True,
            )
        return End(outcome, error)

    def follow(self, attempt: lease.Attempt, data_dir: str, loader_workers: int) -> None:
        """Trains, on a process other than 0, the trial that process 0 has claimed."""
        from sweeps.training import loop

        try:
            with watchdog():
                self._train(trials.read(attempt.trial_directory), attempt, data_dir, loader_workers)
        except loop.AGREED as end:
            print(f"{attempt.directory}: {type(end).__name__} {end}", file=sys.stderr, flush=True)
        except Exception as problem:
            self._end_if_lost(problem)
            try:
                conclude(attempt, problem)
            finally:
                os._exit(1)

    def _end_if_lost(self, problem: Exception) -> None:
        """Ends this process where another one of its group was lost: no failure of the trial."""
        if self.processes.count > 1 and process_group.is_lost_process(problem):
            traceback.print_exception(problem)
            os._exit(AGAIN)

    def _train(
        self, record: Trial, attempt: lease.Attempt, data_dir: str, loader_workers: int
    ) -> str:
        """Returns 'done' or 'diverged', or raises what ended the training."""
        from sweeps.training import loop

        program = self._program(record, loader_workers)
        if self.processes.is_primary:
            _note_provenance(record, attempt, program, data_dir)
        return loop.Training(
            trial=record,
            attempt=attempt,
            step_function=program,
            data_dir=data_dir,
            stop_requested=self._stops,
            processes=self.processes,
        ).run()

    def _stops(self) -> bool:
        """Returns whether to stop; asked after every update."""
        expect_progress()
        return self.stopping

    def _evaluate(self, attempt: lease.Attempt, data_dir: str) -> str:
        """Writes an evaluation's results into its directory and returns 'done'.

        Tasks that an earlier attempt finished are not repeated. Raises loop.Preempted if it was
        told to stop, lease.LostError where another process has taken over, ValueError for what
        cannot be evaluated.
        """
        from sweeps.training import checkpoints, loop, train_step
        from workloads.downstream import harness, suites

        directory = attempt.trial_directory
        checkpoint, suite = int(directory.parent.name), suites.get(directory.name)
        trial = trials.read(directory.parents[2])
        if self._mesh is not None:
            trial = dataclasses.replace(trial, mesh=mesh_of(self._mesh))
        workload = self._program(trial, 0).workload
        finished = {"global_step": layout.finished_tasks(directory)}
        layout.write_json(attempt.directory / measurements.RESUMED, finished)
        printed_at = time.monotonic()

        def progress(task: str, done: int, total: int) -> None:
            """Asked after every batch of a task: `done` of `total` requests."""
            nonlocal printed_at
            stops, now = self._stops(), time.monotonic()
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

    def _program(self, record: Any, loader_workers: int) -> Any:
        """Returns the train step of the trial's program, made once per process."""
        from sweeps.training import train_step

        name = (record.program, *record.extra_paths.values())
        if name not in self._programs:
            self._programs[name] = train_step.of_trial(record)
        program = self._programs[name]
        program.workload.loader_workers = loader_workers
        return program


def _note_provenance(record: Any, attempt: lease.Attempt, program: Any, data_dir: str) -> None:
    """Writes what the attempt runs on beside the trial."""
    from sweeps.records import provenance

    directory, count = attempt.trial_directory, attempt.number - 1
    meta = provenance.meta_data(program.workload, record.seed, data_dir, record.matmul_precision)
    meta["model_flops_per_step"] = catalog.get(record.workload).step_flops(
        record.variant, record.batch_size, meta["parameters"]
    )
    layout.write_json(directory / f"meta_data_{count}.json", meta)


@contextlib.contextmanager
def watchdog() -> Iterator[None]:
    """Ends this process where its trial hangs, with what each thread does in the attempt's log."""
    expect_progress()
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def expect_progress() -> None:
    """Gives the trial time for another update, or another batch of an evaluation.

    A thread of C waits for it, which needs no lock of Python's; to start it takes 35 µs.
    """
    faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True, file=_STDERR)


@contextlib.contextmanager
def heartbeat(attempt: lease.Attempt, stop: Callable[[], None]) -> Iterator[None]:
    """Renews the lease while the trial runs; calls `stop` once its study is cancelled.

    The training notices by itself that the lease is lost.
    """
    over = threading.Event()
    study = layout.study_of(attempt.trial_directory)

    def beat() -> None:
        printed = ""
        while not over.wait(lease.HEARTBEAT_EVERY_S):
            if submissions.is_cancelled(study):
                stop()
            try:
                with contextlib.suppress(lease.LostError):
                    attempt.beat()
            except OSError as error:  # the file server may be back before the lease is over
                if str(error) != printed:
                    printed = str(error)
                    with contextlib.suppress(OSError, ValueError):
                        print(f"heartbeat: {printed}; tried again", flush=True)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def conclude(
    attempt: lease.Attempt, end: str | Exception, trained: Trial | None = None
) -> tuple[str, str | None]:
    """Gives an attempt back; returns the outcome and, where it failed, why.

    `end` is 'done', 'diverged' or the exception that ended the work. trained: the trial whose
    training it was, None for an evaluation. Raises OSError if the outcome cannot be written.
    """
    from sweeps.training import checkpoints, loop

    if isinstance(end, loop.Preempted):
        end = "preempted"
    if isinstance(end, Exception) and lease.latest(attempt.trial_directory) > attempt.number:
        # Whatever it failed in, it is what it met after it was superseded.
        end = lease.LostError(f"superseded, then {type(end).__name__}: {end}")
    if isinstance(end, lease.LostError):
        # A worker that slept between its check and its writing may have put older CSVs in place.
        with contextlib.suppress(OSError, ValueError):
            if (attempt.trial_directory / layout.TRIAL).exists():  # an evaluation has none
                measurements.publish(attempt.trial_directory)
        attempt.end("lost")
        return "lost", str(end)
    if isinstance(end, Exception):
        return "failed", _record_failure(attempt, end)
    attempt.end(end)
    if trained is not None and end in ("done", "diverged"):
        checkpoints.keep_the_last(trained, attempt.trial_directory)
    return end, None


def _record_failure(attempt: lease.Attempt, problem: Exception) -> str:
    """Writes down why an attempt failed, as far as the disk allows; returns the reason."""
    error, full = disk.named(problem, attempt.trial_directory), disk.is_full(problem)
    with contextlib.suppress(OSError):
        if full:
            print(error, file=sys.stderr)
        else:
            traceback.print_exception(problem)
        sys.stderr.flush()
    with contextlib.suppress(OSError, lease.LostError):
        attempt.check()
        status.write(attempt.trial_directory, "failed", reason=error)
    with contextlib.suppress(OSError):
        # Bad input is as bad the second time, and a disk as full.
        retry = not (full or isinstance(problem, ValueError))
        attempt.end("failed", error=error, retry=retry, is_disk_full=full)
    return error
