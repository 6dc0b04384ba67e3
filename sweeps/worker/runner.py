"""What a worker process does with its orders: claims trials, runs them, gives them back."""

import contextlib
import functools
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any, TextIO

from sweeps.launchers.protocol import AGAIN
from sweeps.records import disk, layout, lease, outages, status
from sweeps.worker import held_attempt


class Worker:
    """Runs trials one after another; keeps compiled programs between them.

    `together` is the gang that this worker leads, where several processes train a trial.
    """

    def __init__(self, channel: TextIO, together: Any = None) -> None:
        self._channel = channel
        self._programs: dict[Any, Any] = {}
        self.loader_workers = 0
        self.stopping = self.broken = False
        self._together, self._members = together, list[lease.Attempt]()
        if together is not None:
            together.on_stop, together.on_failure = self.stop, self._peer_failed

    def report(self, event: str, **fields: Any) -> None:
        """Sends an event to the driver; a driver that is gone is no reason to stop a trial."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._channel.write(json.dumps({"event": event, **fields}) + "\n")
            self._channel.flush()

    def run(self, directories: list[pathlib.Path], data_dir: str) -> None:
        """Claims and runs the trials in directories, as a pack where they are several.

        Reports how each ended.
        """
        members: list[lease.Attempt] = []
        for directory in directories:
            try:
                if (attempt := self._claim(directory)) is not None:
                    members.append(attempt)
            except OSError as problem:  # a full or vanished disk must not take the worker along
                error = disk.named(problem, directory)
                self._ended(str(directory), "failed", error, claimed=False)
        if members:
            self._run_claimed(members, data_dir)

    def _claim(self, directory: pathlib.Path) -> lease.Attempt | None:
        outcome = "already finished"
        if not self._is_finished(directory):
            outcome = "claimed elsewhere"
            claim = functools.partial(lease.claim, directory)
            if (attempt := outages.patiently(claim, lambda: self.stopping)) is not None:
                if not self._is_finished(directory):
                    _tidy(attempt)
                    return attempt
                # It was finished meanwhile: this process may have slept since it read the status.
                attempt.end("lost")
                outcome = "already finished"
        self._ended(str(directory), outcome)
        return None

    def _is_finished(self, directory: pathlib.Path) -> bool:
        read = functools.partial(status.read, directory)
        found = outages.patiently(read, lambda: self.stopping)
        return found["state"] in ("done", "diverged")

    def _ended(self, name: str, outcome: str, error: str | None = None, **fields: Any) -> None:
        self.report("end", trial=name, outcome=outcome, error=error, **fields)

    def _run_claimed(self, members: list[lease.Attempt], data_dir: str) -> None:
        self._members = members
        ends: list[str | Exception] = [OSError()] * len(members)
        try:
            with held_attempt.logged(members), held_attempt.heartbeat(members, self.stop):
                ends = self._train(members, data_dir)
                results = [held_attempt.conclude(*pair) for pair in zip(members, ends, strict=True)]
        except OSError as problem:
            reason = disk.named(problem, members[0].trial_directory)
            results = [("failed", reason)] * len(members)
        # A device or its memory may be broken for good: the next trial gets a new process.
        self.broken |= any(
            outcome == "failed" and not isinstance(end, ValueError)
            for end, (outcome, _) in zip(ends, results, strict=True)
        )
        for member, (outcome, error) in zip(members, results, strict=True):
            self._ended(str(member.trial_directory), outcome, error)
        if not all((member.directory / lease.OUTCOME).exists() for member in members):
            # A lease could not be given back; only the end of this process does it.
            os._exit(1)
        self._members = []
        if self._together is not None and self._together.broken:
            os._exit(AGAIN)  # at its regular end JAX would wait for the others

    def _peer_failed(self, problem: Exception) -> None:
        """Gives the attempts back before this process ends: another one of the gang failed."""
        for member in self._members:
            outcome, error = held_attempt.conclude(member, problem)
            self._ended(str(member.trial_directory), outcome, error)

    def stop(self) -> None:
        """Has the trials at hand saved at the next step, and ends the worker."""
        self.stopping = True

    def _train(self, members: list[lease.Attempt], data_dir: str) -> list[str | Exception]:
        """Returns how each trial ended: an outcome or the exception that ended it."""
        ends: dict[lease.Attempt, str | Exception] = {}
        records = {}
        for member in members:
            try:
                records[member] = _record(member)
            except Exception as problem:  # one of a pack does not take the others along
                ends[member] = problem
        try:
            trained = self._train_records(records, data_dir) if records else []
        except Exception as problem:  # whatever it is, the study goes on around these trials
            trained = [problem] * len(records)
        ends |= zip(records, trained, strict=True)
        return [ends[member] for member in members]

    def _train_records(
        self, records: dict[lease.Attempt, Any], data_dir: str
    ) -> list[str | Exception]:
        from sweeps.training import loop

        members = list(records)
        step_function = self._program(records[members[0]])
        step_function.workload.loader_workers = self.loader_workers
        for member, record in records.items():
            _note_provenance(record, member, step_function, data_dir)
        report = self._reporter(step_function)
        if len(members) > 1:
            from sweeps.training import packed_training

            return packed_training.PackedTraining(
                list(records.values()),
                members,
                step_function,
                data_dir,
                report,
                lambda: self.stopping,
            ).run()
        name = str(members[0].trial_directory)
        if self._together is not None:
            self._together.order(
                trial=name,
                attempt=members[0].number,
                data_dir=data_dir,
                loader_workers=self.loader_workers,
            )
        run = loop.Training(
            records[members[0]],
            members[0],
            step_function,
            data_dir,
            lambda event, **fields: report(name, event, **fields),
            lambda: self.stopping,
            self._together,
        )
        return [run.run()]

    def _reporter(self, step_function: Any) -> Callable[..., None]:
        """Returns report(trial, event, **fields), which adds compilations since now."""
        before = step_function.compilations

        def report(name: str, event: str, **fields: Any) -> None:
            compilations = step_function.compilations - before
            self.report(event, trial=name, compilations=compilations, **fields)

        return report

    def _program(self, record: Any) -> Any:
        """Returns the train step of the trial's program, made once per process."""
        from attention import registry
        from sweeps.training import train_step
        from workloads import registry as workloads

        program = (record.program, *record.places.values())
        if program not in self._programs:
            variant = registry.get(
                record.variant, kernel=record.kernel, **record.variant_hyperparameters
            )
            workload = workloads.make(
                record.workload, variant, extra_paths=record.places, **record.options
            )
            self._programs[program] = train_step.TrainStep(workload, record.optimizer)
        return self._programs[program]


def _tidy(attempt: lease.Attempt) -> None:
    """Removes what writers that were killed have left beside a trial's files."""
    with contextlib.suppress(OSError):
        now = os.stat(attempt.directory / lease.HEARTBEAT).st_mtime
        for folder in (attempt.trial_directory, attempt.trial_directory / layout.ATTEMPTS):
            layout.remove_left_overs(folder, now)


def _record(attempt: lease.Attempt) -> Any:
    """Returns the trial's record once what an earlier attempt left is in order."""
    from sweeps.study import trial
    from sweeps.training import backed

    record = trial.read(attempt.trial_directory)
    for line in backed.settle(record, attempt.trial_directory):
        print(line, flush=True)
    return record


def _note_provenance(
    record: Any, attempt: lease.Attempt, step_function: Any, data_dir: str
) -> None:
    """Writes what the attempt runs on beside the trial."""
    from sweeps.records import provenance

    directory, count = attempt.trial_directory, attempt.number - 1
    meta = provenance.meta_data(step_function.workload, record.seed, data_dir)
    layout.write_json(directory / f"meta_data_{count}.json", meta)
    provenance.note_hardware(directory / layout.TRIAL)
