"""What a worker process does with its orders: claims a trial, trains it, gives it back.

An order may also name an evaluation of a trained trial (`sweeps.study.evaluation`).
"""

import contextlib
import functools
import json
import os
import pathlib
import sys
import traceback
from typing import Any, TextIO

from sweeps.distributed import process_group
from sweeps.launchers.protocol import AGAIN
from sweeps.records import disk, layout, lease, outages, status
from sweeps.study import evaluation
from sweeps.study.evaluation import Evaluation, Work
from sweeps.study.trial import Trial
from sweeps.worker import held_attempt
from workloads import init2winit_specs


class Worker:
    """Runs trials one after another; keeps compiled programs between them.

    `channel` takes the events, a JSON line each. `processes` are those that train each trial; on
    the primary one `run` is called for each trial, on the others `follow`, once.
    """

    def __init__(
        self,
        channel: TextIO | None,
        processes: process_group.ProcessGroup | process_group.SingleProcess | None = None,
    ) -> None:
        self._channel = channel
        self._programs: dict[Any, Any] = {}
        self._held: lease.Attempt | None = None
        self.stopping = self.broken = False
        self.processes = processes or process_group.SingleProcess()
        self.processes.on_stop, self.processes.on_failure = self.stop, self._peer_failed

    def report(self, event: str, **fields: Any) -> None:
        """Sends an event to the driver; a driver that is gone is no reason to stop a trial."""
        if self._channel is not None:
            with contextlib.suppress(BrokenPipeError, ValueError):
                self._channel.write(json.dumps({"event": event, **fields}) + "\n")
                self._channel.flush()

    def stop(self) -> None:
        """Has the trial at hand saved at the next step, and ends the worker."""
        self.stopping = True

    # On the primary process, or the only one.

    def run(self, directory: pathlib.Path, data_dir: str, loader_workers: int = 0) -> None:
        """Claims and trains the trial in a directory, and reports how it ended."""
        try:
            attempt = self._claim(directory)
        except OSError as problem:  # a full or vanished disk must not take the worker along
            self._ended(directory, "failed", disk.named(problem, directory), claimed=False)
        else:
            if attempt is not None:
                self._run_claimed(attempt, data_dir, loader_workers)

    def _claim(self, directory: pathlib.Path) -> lease.Attempt | None:
        outcome = "already finished"
        if not self._is_finished(directory):
            outcome = "claimed elsewhere"
            claim = functools.partial(lease.claim, directory)
            if (attempt := outages.retry_transient(claim, lambda: self.stopping)) is not None:
                if not self._is_finished(directory):
                    with contextlib.suppress(OSError):  # left by writers that were killed
                        now = os.stat(attempt.directory / lease.HEARTBEAT).st_mtime
                        layout.remove_left_overs(directory, now)
                        layout.remove_left_overs(directory / layout.ATTEMPTS, now)
                    return attempt
                # It was finished meanwhile: this process may have slept since it read the status.
                attempt.end("lost")
                outcome = "already finished"
        self._ended(directory, outcome)
        return None

    def _is_finished(self, directory: pathlib.Path) -> bool:
        read = functools.partial(status.read, directory)
        return outages.retry_transient(read, lambda: self.stopping)["state"] in status.COMPLETE

    def _ended(
        self, directory: pathlib.Path, outcome: str, error: str | None = None, **fields: Any
    ) -> None:
        self.report("end", trial=str(directory), outcome=outcome, error=error, **fields)

    def _run_claimed(self, attempt: lease.Attempt, data_dir: str, loader_workers: int) -> None:
        self._held = attempt
        end: str | Exception = OSError()
        record: Work | None = None
        try:
            with held_attempt.logged(attempt), held_attempt.heartbeat(attempt, self.stop):
                try:
                    record = evaluation.read_work(attempt.trial_directory)
                    if isinstance(record, Trial):
                        end = self._train(record, attempt, data_dir, loader_workers)
                    else:
                        end = self._evaluate(record, attempt, data_dir)
                except Exception as problem:  # whatever it is, the study goes on around this trial
                    end = problem
                trained = record if isinstance(record, Trial) else None
                outcome, error = held_attempt.conclude(attempt, end, trained)
        except OSError as problem:
            outcome, error = "failed", disk.named(problem, attempt.trial_directory)
        # A device or its memory may be broken for good: the next trial gets a new process.
        self.broken |= outcome == "failed" and not isinstance(end, ValueError)
        given_back = (attempt.directory / lease.OUTCOME).exists()
        if given_back:
            self._held = None
        if given_back and outcome == "done" and trained and trained.downstream:
            self._evaluate_trained(trained, attempt.trial_directory, data_dir)
        self._ended(attempt.trial_directory, outcome, error)
        if not given_back:
            # The lease could not be given back; only the end of this process does it.
            os._exit(1)
        if self.processes.broken:
            os._exit(AGAIN)  # at its regular end JAX would wait for the others

    def _evaluate_trained(self, trained: Trial, directory: pathlib.Path, data_dir: str) -> None:
        """Evaluates a trial that this worker has just trained, as its study asks.

        Where that does not succeed, the driver sees to it when the stage is over.
        """
        from workloads.downstream import suites

        if self.stopping or not isinstance(self.processes, process_group.SingleProcess):
            return
        suite, root = trained.downstream, layout.study_of(directory)
        self.report("note", trial=str(directory), text=f"trained; now evaluated by {suite}")
        try:
            tasks = len(suites.get(suite).tasks)
            found = evaluation.of(trained, trained.steps, suite, tasks, {})
            if evaluation.materialise(root, found):
                self.run(root / found.path, data_dir)
        except (OSError, ValueError) as problem:
            self.report("note", trial=str(directory), text=f"not evaluated: {problem}")

    def _peer_failed(self, problem: Exception) -> None:
        """Gives the attempt back before this process ends: another one of the group failed."""
        if self._held is not None:
            outcome, error = held_attempt.conclude(self._held, problem)
            self._ended(self._held.trial_directory, outcome, error)

    def _train(
        self, record: Trial, attempt: lease.Attempt, data_dir: str, loader_workers: int
    ) -> str:
        """Returns 'done' or 'diverged', or raises what ended the training."""
        if init2winit_specs.is_init2winit(record.workload):
            return self._follow_process(record, attempt, data_dir)
        from sweeps.training import loop

        directory = attempt.trial_directory
        program = self._program(record, loader_workers)
        _note_provenance(record, attempt, program, data_dir)
        before = program.compilations

        def report(event: str, **fields: Any) -> None:
            compilations = program.compilations - before
            self.report(event, trial=str(directory), compilations=compilations, **fields)

        where = {"data_dir": data_dir, "loader_workers": loader_workers}
        self.processes.order(trial=str(directory), attempt=attempt.number, **where)
        return loop.Training(
            trial=record,
            attempt=attempt,
            step_function=program,
            data_dir=data_dir,
            report=report,
            stop_requested=lambda: self.stopping,
            processes=self.processes,
        ).run()

    def _follow_process(self, record: Trial, attempt: lease.Attempt, data_dir: str) -> str:
        """Has init2winit's own trainer train a trial; returns and raises as `_train`."""
        from sweeps.init2winit import process

        def report(event: str, **fields: Any) -> None:
            self.report(event, trial=str(attempt.trial_directory), compilations=0, **fields)

        under_way = process.Attempt(record, attempt, data_dir, report, lambda: self.stopping)
        return under_way.run()

    def _evaluate(self, found: Evaluation, attempt: lease.Attempt, data_dir: str) -> str:
        """Returns 'done', or raises what ended the evaluation."""
        from sweeps.worker import evaluating

        directory = str(attempt.trial_directory)

        def report(event: str, **fields: Any) -> None:
            self.report(event, trial=directory, compilations=0, **fields)

        workload = self._program(found.trial, 0).workload
        return evaluating.evaluate(
            found, attempt, workload, data_dir, report, lambda: self.stopping
        )

    # On the other processes of a group.

    def follow(self) -> int:
        """Trains what the primary process orders, until its last order.

        An order: {"trial": directory, "attempt": number, "data_dir": directory, "loader_workers":
        n}. Returns the primary's exit code, AGAIN for a broken group.
        """
        group = self.processes
        assert isinstance(group, process_group.ProcessGroup)
        while (order := group.next_order(lambda: self.stopping))["kind"] != "end":
            self._follow(order)
            if group.broken:
                return AGAIN
        group.leave()
        code: int = order["code"]
        return code

    def _follow(self, order: dict[str, Any]) -> None:
        from sweeps.study import trial
        from sweeps.training import loop

        try:
            try:
                attempt = lease.Attempt(pathlib.Path(order["trial"]), order["attempt"])
                record = trial.read(attempt.trial_directory)
                program = self._program(record, order["loader_workers"])
            except Exception as problem:
                self.processes.failed(problem)
                raise
            loop.Training(
                trial=record,
                attempt=attempt,
                step_function=program,
                data_dir=order["data_dir"],
                report=self.report,  # which has no channel: nobody listens to its events
                stop_requested=lambda: self.stopping,
                processes=self.processes,
            ).run()
        except loop.Preempted:
            print(f"{order['trial']}: saved", file=sys.stderr)
        except process_group.PrimaryError as error:
            print(f"{order['trial']}: the primary process failed: {error}", file=sys.stderr)
        except Exception as problem:
            traceback.print_exception(problem)

    # On all.

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
    precision = record.matmul_precision
    meta = provenance.meta_data(program.workload, record.seed, data_dir, precision)
    layout.write_json(directory / f"meta_data_{count}.json", meta)
    provenance.note_hardware(directory / layout.TRIAL)
