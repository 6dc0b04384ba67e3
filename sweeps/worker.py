"""A worker: one process that runs many trials, so that each pays no start-up and no compilation.

`python -m sweeps.worker` reads JSON lines from standard input: {"trials": [directory ...],
"data_dir": directory, "loader_workers": n}; several trials are run as one pack. It writes JSON
lines of events to standard output, "free" when it is ready for the next order. What a trial prints
goes to its attempt's log. SIGTERM saves the trials at hand and ends the worker.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import sys
from collections.abc import Callable
from typing import Any, TextIO

from sweeps import claimed, gang, layout, lease, processes, status
from sweeps.launchers.protocol import AGAIN


class Worker:
    """Runs trials one after another; keeps compiled programs between them.

    `together` is the gang that this worker leads, where several processes train a trial.
    """

    def __init__(self, channel: TextIO, together: Any = None) -> None:
        self._channel = channel
        self._programs: dict[Any, Any] = {}
        self.loader_workers = 0
        self.stopping = False
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
                error = f"{type(problem).__name__}: {problem}"
                self._ended(str(directory), "failed", error, claimed=False)
        if members:
            self._run_claimed(members, data_dir)

    def _claim(self, directory: pathlib.Path) -> lease.Attempt | None:
        outcome = "already finished"
        if status.read(directory)["state"] not in ("done", "diverged"):
            outcome = "claimed elsewhere"
            if (attempt := lease.claim(directory)) is not None:
                return attempt
        self._ended(str(directory), outcome)
        return None

    def _ended(self, name: str, outcome: str, error: str | None = None, **fields: Any) -> None:
        self.report("end", trial=name, outcome=outcome, error=error, **fields)

    def _run_claimed(self, members: list[lease.Attempt], data_dir: str) -> None:
        self._members = members
        try:
            with claimed.logged(members), claimed.heartbeat(members, self.stop):
                ends = self._train(members, data_dir)
                results = [claimed.conclude(*pair) for pair in zip(members, ends, strict=True)]
        except OSError as problem:
            results = [("failed", f"{type(problem).__name__}: {problem}")] * len(members)
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
            outcome, error = claimed.conclude(member, problem)
            self._ended(str(member.trial_directory), outcome, error)

    def stop(self) -> None:
        """Has the trials at hand saved at the next step, and ends the worker."""
        self.stopping = True

    def _train(self, members: list[lease.Attempt], data_dir: str) -> list[str | Exception]:
        """Returns how each trial ended: an outcome or the exception that ended it."""
        from sweeps import backed, training, trial

        try:
            records = [trial.read(member.trial_directory) for member in members]
            for record, member in zip(records, members, strict=True):
                for line in backed.settle(record, member.trial_directory):
                    print(line, flush=True)
            step_function = self._program(records[0])
            step_function.workload.loader_workers = self.loader_workers
            for record, member in zip(records, members, strict=True):
                _note_provenance(record, member, step_function, data_dir)
            report = self._reporter(step_function)
            if len(members) == 1:
                name = str(members[0].trial_directory)
                if self._together is not None:
                    self._together.order(
                        trial=name,
                        attempt=members[0].number,
                        data_dir=data_dir,
                        loader_workers=self.loader_workers,
                    )
                run = training.Training(
                    records[0],
                    members[0],
                    step_function,
                    data_dir,
                    lambda event, **fields: report(name, event, **fields),
                    lambda: self.stopping,
                    self._together,
                )
                return [run.run()]
            from sweeps import packed_training

            return packed_training.PackedTraining(
                records, members, step_function, data_dir, report, lambda: self.stopping
            ).run()
        except Exception as problem:  # whatever it is, the study goes on around these trials
            return [problem] * len(members)

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
        from sweeps import train_step
        from workloads import registry as workloads

        if record.program not in self._programs:
            variant = registry.get(
                record.variant, kernel=record.kernel, **record.variant_hyperparameters
            )
            workload = workloads.make(record.workload, variant, **record.options)
            self._programs[record.program] = train_step.TrainStep(workload, record.optimizer)
        return self._programs[record.program]


def _note_provenance(
    record: Any, attempt: lease.Attempt, step_function: Any, data_dir: str
) -> None:
    """Writes what the attempt runs on beside the trial."""
    from sweeps import provenance

    directory, count = attempt.trial_directory, attempt.number - 1
    meta = provenance.meta_data(step_function.workload, record.seed, data_dir)
    layout.write_json(directory / f"meta_data_{count}.json", meta)
    provenance.note_hardware(directory / layout.TRIAL)


@dataclasses.dataclass(frozen=True)
class Options:
    """Command-line options of the worker."""

    cpus: tuple[int, ...]
    cache_dir: str
    gang: bool


def main() -> int:
    """Runs trials from standard input until it ends or SIGTERM comes.

    Returns 0; AGAIN where the processes of its gang did not find each other.
    """
    options = _options()
    if options.cpus:
        os.sched_setaffinity(0, options.cpus)
    # Events keep the original standard output; anything printed goes elsewhere from here on.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        together = gang.join() if options.gang else None
    except processes.StartError as error:
        print(error, file=sys.stderr)
        return AGAIN
    worker = Worker(channel, together)

    def stop(signum: int, frame: Any) -> None:
        del signum, frame
        worker.stop()

    for number in (signal.SIGTERM, signal.SIGUSR1):  # an engine may send either to a whole job
        signal.signal(number, stop)
    # Ctrl-C reaches the whole process group; the driver passes it on as SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_up_jax(options.cache_dir)
    worker.report("ready", pid=os.getpid())
    while not worker.stopping and (line := _read_line(worker)):
        order = json.loads(line)
        worker.loader_workers = order.get("loader_workers", 0)
        worker.run([pathlib.Path(trial) for trial in order["trials"]], order["data_dir"])
        if not worker.stopping:  # or it would be given a trial that it will not run
            worker.report("free")
    if together is not None:
        together.end()
    return 0


def _read_line(worker: Worker) -> str:
    """Returns the next order, '' at the end of input or when told to stop while waiting."""
    import select

    while not worker.stopping:
        ready, _, _ = select.select([sys.stdin], [], [], 0.5)
        if ready:
            return sys.stdin.readline()
    return ""


def _options() -> Options:
    parser = argparse.ArgumentParser(prog="python -m sweeps.worker", description=__doc__)
    parser.add_argument("--cpus", default="", help="comma-separated CPU numbers to stay on")
    parser.add_argument("--cache_dir", default="", help="JAX's persistent compilation cache")
    parser.add_argument("--gang", action="store_true", help="lead the processes of a job's nodes")
    given = parser.parse_args()
    cpus = tuple(int(part) for part in given.cpus.split(",") if part)
    return Options(cpus, given.cache_dir, given.gang)


def _set_up_jax(cache_dir: str) -> None:
    """Loads JAX with its persistent compilation cache on for every program, however small."""
    import jax

    if cache_dir:
        jax.config.update("jax_compilation_cache_dir", cache_dir)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.devices()


if __name__ == "__main__":
    sys.exit(main())
