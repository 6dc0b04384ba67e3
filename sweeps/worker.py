"""A worker: one process that runs many trials, so that each pays no start-up and no compilation.

`python -m sweeps.worker` reads JSON lines from standard input: {"trial": directory, "data_dir":
directory, "loader_workers": n}; it writes JSON lines of events to standard output. What a trial
prints goes to its attempt's log. SIGTERM saves the trial at hand and ends the worker.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any, TextIO

from sweeps import attempts, layout, lease, status


class Worker:
    """Runs trials one after another; keeps compiled programs between them."""

    def __init__(self, channel: TextIO) -> None:
        self._channel = channel
        self._programs: dict[Any, Any] = {}
        self.loader_workers = 0
        self.stopping = False

    def report(self, event: str, **fields: Any) -> None:
        """Sends an event to the driver; a driver that is gone is no reason to stop a trial."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._channel.write(json.dumps({"event": event, **fields}) + "\n")
            self._channel.flush()

    def run(self, directory: pathlib.Path, data_dir: str) -> None:
        """Claims and runs the trial in a directory, and reports how it ended."""
        name = str(directory)
        if status.read(directory)["state"] in ("done", "diverged"):
            self.report("end", trial=name, outcome="already finished")
            return
        outcome, error, attempt = "claimed elsewhere", None, None
        try:
            attempt = lease.claim(directory)
            if attempt is not None:
                with _logged(attempt), _heartbeat(attempt):
                    outcome, error = self._outcome(attempt, name, data_dir)
        except OSError as problem:  # a full or vanished disk must not take the worker along
            outcome, error = "failed", f"{type(problem).__name__}: {problem}"
        claimed = attempt is not None or outcome != "failed"
        self.report("end", trial=name, outcome=outcome, error=error, claimed=claimed)
        if attempt is not None and not (attempt.directory / lease.OUTCOME).exists():
            # The lease could not be given back; only the end of this process does it.
            os._exit(1)

    def _outcome(self, attempt: lease.Attempt, name: str, data_dir: str) -> tuple[str, str | None]:
        from sweeps import training

        try:
            outcome = self._train(attempt, name, data_dir)
        except training.Preempted:
            outcome = "preempted"
        except lease.LostError as lost:
            attempt.end("lost")
            return "lost", str(lost)
        except Exception as problem:  # whatever it is, the study goes on around this trial
            return "failed", _record_failure(attempt, problem)
        attempt.end(outcome)
        if outcome in ("done", "diverged"):
            training.clean_up(attempt.trial_directory)
        return outcome, None

    def _train(self, attempt: lease.Attempt, name: str, data_dir: str) -> str:
        from sweeps import provenance, training, trial

        record = trial.read(attempt.trial_directory)
        step_function = self._program(record)
        step_function.workload.loader_workers = self.loader_workers
        count = attempt.number - 1
        meta = provenance.meta_data(step_function.workload, record.seed, data_dir)
        layout.write_json(attempt.trial_directory / f"meta_data_{count}.json", meta)
        provenance.note_hardware(attempt.trial_directory / layout.TRIAL)
        before = step_function.compilations
        run = training.Training(
            record,
            attempt,
            step_function,
            data_dir,
            lambda event, **fields: self.report(
                event,
                trial=name,
                compilations=step_function.compilations - before,
                **fields,
            ),
            lambda: self.stopping,
        )
        return run.run()

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


def _record_failure(attempt: lease.Attempt, problem: Exception) -> str:
    """Writes down why an attempt failed, as far as the disk allows; returns the reason."""
    error = f"{type(problem).__name__}: {problem}"
    with contextlib.suppress(OSError, lease.LostError):
        traceback.print_exception(problem)
        sys.stderr.flush()
    with contextlib.suppress(OSError, lease.LostError):
        attempt.check()
        status.write(attempt.trial_directory, "failed", reason=error)
    with contextlib.suppress(OSError):
        # Bad input is as bad the second time.
        attempt.end("failed", error=error, retry=not isinstance(problem, ValueError))
    return error


@contextlib.contextmanager
def _logged(attempt: lease.Attempt) -> Iterator[None]:
    """Sends everything the process prints, from C++ too, to the attempt's log."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(attempt.directory / attempts.LOG, flags, 0o644)
    saved = [os.dup(1), os.dup(2)]
    try:
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        yield
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        for descriptor, old in zip((1, 2), saved, strict=True):
            os.dup2(old, descriptor)
        for descriptor in (log, *saved):
            os.close(descriptor)


@contextlib.contextmanager
def _heartbeat(attempt: lease.Attempt) -> Iterator[None]:
    """Renews the lease while the trial runs; a lost lease is noticed by the training itself."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(lease.HEARTBEAT_EVERY_S):
            with contextlib.suppress(lease.LostError, OSError):
                attempt.beat()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@dataclasses.dataclass(frozen=True)
class Options:
    """Command-line options of the worker."""

    cpus: tuple[int, ...]
    cache_dir: str


def main() -> int:
    """Runs trials from standard input until it ends or SIGTERM comes. Returns 0."""
    options = _options()
    if options.cpus:
        os.sched_setaffinity(0, options.cpus)
    # Events keep the original standard output; anything printed goes elsewhere from here on.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(channel)

    def stop(signum: int, frame: Any) -> None:
        del signum, frame
        worker.stopping = True

    signal.signal(signal.SIGTERM, stop)
    # Ctrl-C reaches the whole process group; the driver passes it on as SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_up_jax(options.cache_dir)
    worker.report("ready", pid=os.getpid())
    while not worker.stopping and (line := _read_line(worker)):
        order = json.loads(line)
        worker.loader_workers = order.get("loader_workers", 0)
        worker.run(pathlib.Path(order["trial"]), order["data_dir"])
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
    given = parser.parse_args()
    cpus = tuple(int(part) for part in given.cpus.split(",") if part)
    return Options(cpus, given.cache_dir)


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
