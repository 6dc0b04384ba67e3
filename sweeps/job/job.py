"""A job of a batch: claims the next free trial until none is left, trains it in this process.

`python -m sweeps job STUDY_DIR/jobs/BATCH.json --index=I` runs job I of a batch, on this host or on
the node that an engine chose. SIGTERM and SIGUSR1 have its trial saved. Where the engine starts a
job on several nodes at once, they train each trial together: process 0 claims trials, and
broadcasts its claims to the others. Where a node has several workers, the job starts one process
for each.

Its exit codes:

- FINISHED (0): nothing is left for it to do.
- 1: a trial failed and may be tried again, or could not be claimed or given back.
- 2: the batch cannot be read.
- AGAIN (75): it was told to stop, or one of several processes was lost.
- WRONG_NODE (76): this node cannot run it.
"""

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from sweeps.distributed import process_group
from sweeps.job import trainer
from sweeps.launchers import local
from sweeps.launchers import table as launchers
from sweeps.launchers.protocol import AGAIN, FINISHED, WRONG_NODE
from sweeps.records import layout, lease, outages, provenance, status, submissions
from sweeps.scheduling import preflight
from sweeps.study import study

# What the engine counts against its retries, where it has any.
_UNFINISHED = 1
# Broadcast in place of a trial's index: process 0 claims no more.
_END = -1


class Job:
    """One job of a batch; `slot`: one of several workers of its node, None for the job itself."""

    def __init__(self, file: pathlib.Path, index: int, slot: int | None = None) -> None:
        self.batch = submissions.read(file)
        self.index, self.root, self._slot = index, file.resolve().parents[1], slot
        self.study = study.from_record(layout.study_record(self.root), self.root)
        if not 0 <= index < self.batch.size:
            raise ValueError(
                f"{file} has {self.batch.size} jobs, numbered from 0; there is no {index}"
            )
        self.paths = self.batch.jobs[index]
        changed = self.batch.settings
        self.study = dataclasses.replace(self.study, settings=self.study.settings | changed)
        first = self.root / self.paths[0]
        self._suite = first.name if layout.is_evaluation(first) else ""
        self._is_engine = self.batch.launcher != "local"
        keys = self.study.settings[self.batch.launcher]
        self._workers = keys.get("workers") or 1 if self._is_engine else 1
        self.trainer = trainer.Trainer(claimed=self._note_claim, mesh=changed.get("mesh"))
        self._tried: set[str] = set()
        self._offsets: dict[int, int] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    def run(self) -> int:
        """Trains what is free; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._told_to_stop)
        if all(self.trainer.is_finished(self.root / path) for path in self.paths):
            self.batch.note_claim(self.index, submissions.CLAIMS_END)
            return FINISHED  # e.g. a requeued job of which only the end was lost
        group = process_group.detect(os.environ)
        if self._is_engine and self._slot is None:
            try:
                self._check_node()
            except (ValueError, OSError) as error:
                if self.trainer.stopping:  # a signal to all processes cut the check short
                    return self._interrupted()
                return self._refuse(str(error))
            if group.count == 1 and self._workers > 1:
                return self._share_node()
        self.trainer.processes = process_group.join()
        try:
            set_up_jax(self.batch.platform)
        except ValueError as error:  # no driver, no device
            code = self._refuse(str(error))
            if group.count > 1:
                sys.stderr.flush()
                os._exit(code)  # at its regular end JAX would wait for the others
            return code
        if not group.is_primary:
            return self._follow()
        code = self._train_all()
        group.broadcast(_END, code)
        return code

    def _follow(self) -> int:
        """Trains what process 0 claims; returns its exit code."""
        while True:
            index, number = self.trainer.processes.broadcast(0, 0)
            if index == _END:
                return number
            attempt = lease.Attempt(self.root / self.paths[index], number)
            self.trainer.follow(attempt, self.study.data_dir, self.study.settings["loader_workers"])

    def _check_node(self) -> None:
        """Raises ValueError or OSError where this node lacks data or libraries."""
        if not self._suite:
            preflight.check_event_files(self.study, here=True)
        preflight.check_data(self.study, self._suite, here=True)
        # The driver's own JAX_PLATFORMS is not the node's: what the job was given is used.
        os.environ.pop("JAX_PLATFORMS", None)
        if self.batch.platform == "cpu":
            os.environ["JAX_PLATFORMS"] = "cpu"

    def _refuse(self, reason: str) -> int:
        _say(reason)
        self.batch.refuse(self.index, reason)
        return WRONG_NODE

    def _told_to_stop(self, signum: int, _: Any) -> None:
        _say(f"told to stop by {signal.Signals(signum).name}")
        self.trainer.stop()
        for process in self._processes:
            process.terminate()

    def _share_node(self) -> int:
        """Runs the node's workers, each with its share of the devices; returns the exit code."""
        try:
            slots = local.Slots({"workers": self._workers, "pin": True})
        except ValueError as error:  # fewer devices here than the job was to have
            return self._refuse(str(error))
        command = self.batch.command(self.index)
        for slot in range(self._workers):
            devices = slots.share(slot)
            self._processes.append(
                subprocess.Popen(
                    [*command, f"--slot={slot}", *slots.arguments(devices)],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **slots.environment(devices)},
                )
            )
        codes = [process.wait() for process in self._processes]
        if all(code == FINISHED for code in codes):
            self.batch.note_claim(self.index, submissions.CLAIMS_END)
        if self.trainer.stopping:
            return self._interrupted()
        return max(code if code >= 0 else _UNFINISHED for code in codes)

    def _train_all(self) -> int:
        """Trains every trial that is free; returns the exit code."""
        code = FINISHED
        for path in self._in_turn():
            if self.trainer.stopping or submissions.is_cancelled(self.root):
                return self._interrupted()
            if not self._is_engine and self._is_tried(path):
                continue
            with contextlib.suppress(OSError):  # as the claim that follows will tell
                lease.await_heartbeat(self.root / path)
            end = self.trainer.run(
                self.root / path, self.study.data_dir, self.study.settings["loader_workers"]
            )
            _say(f"{path}: {': '.join(filter(None, end))}")
            if self.trainer.broken:
                return _UNFINISHED
            if end.outcome == trainer.UNCLAIMED:
                code = _UNFINISHED
        if self.trainer.stopping:
            return self._interrupted()
        if self._slot is None:
            self.batch.note_claim(self.index, submissions.CLAIMS_END)
        return code

    def _in_turn(self) -> Sequence[str]:
        """Returns the trials, beginning with this process's share: programs are compiled once, and
        no two processes want the same trial before one of them has ended its share."""
        sharing = self.batch.sharing * self._workers
        rank = self.index % self.batch.sharing * self._workers + (self._slot or 0)
        first = rank * len(self.paths) // sharing
        return self.paths[first:] + self.paths[:first]

    def _is_tried(self, path: str) -> bool:
        """Whether another job has tried a trial since this batch was submitted.

        The driver says what follows.
        """
        if path in self._tried:
            return True
        first = self.index - self.index % self.batch.sharing
        with contextlib.suppress(OSError):  # as the claim that follows will tell
            for index in range(first, first + self.batch.sharing):
                lines, self._offsets[index] = self.batch.claims(index, self._offsets.get(index, 0))
                self._tried.update(lines)
            # Jobs of other batches, also of other hosts: their clocks do not matter.
            is_new = lease.latest(self.root / path) > self.batch.attempts.get(path, 0)
            has_failed = is_new and status.recorded(self.root / path)["state"] == "failed"
            return path in self._tried or has_failed
        return False

    def _note_claim(self, attempt: lease.Attempt) -> None:
        path = str(attempt.trial_directory.relative_to(self.root))
        if path in self.paths:  # otherwise the evaluation of a trial that was trained here
            with contextlib.suppress(OSError):  # of a full disk the trial's end is to tell
                self.batch.note_claim(self.index, path)
            self.trainer.processes.broadcast(self.paths.index(path), attempt.number)

    def _interrupted(self) -> int:
        if submissions.is_cancelled(self.root):
            _say("the study was cancelled")
            return FINISHED  # nobody is to start it again
        again = "the driver submits what is left again"
        if self._slot is None and launchers.launcher_class(self.batch.launcher).requeue():
            again = "the engine runs this job again"
        _say(f"saved; {again}")
        return AGAIN


def set_up_jax(platform: str) -> None:
    """Loads JAX with its persistent compilation cache on for every program, however small.

    platform: 'cpu', 'gpu' or 'tpu', '' for whatever JAX finds. Raises ValueError if JAX finds
    another one.
    """
    import jax

    from attention.common import devices

    local.cache_programs(str(local.compilation_cache()))
    for name, value in provenance.PINNED.items():  # before anything is traced
        jax.config.update(name, value)
    devices.default_platform()
    if platform not in ("", jax.default_backend()):
        remedy = "JAX_PLATFORMS must name it, or be unset"
        if platform != "cpu":  # an extra of that name brings its driver
            remedy = (
                f"pip install '.[{platform}]' in {sys.prefix}, see that its driver works and "
                "that the job was given the device; or set JAX_PLATFORMS=cpu to insist on the CPU"
            )
        raise ValueError(
            f"{os.uname().nodename}: a {platform} was expected here, but JAX {jax.__version__} "
            f"finds {', '.join(map(str, jax.devices()))}: {remedy}"
        )


def _say(text: str) -> None:
    """Prints a line; a log on a full disk must not take the job along."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def run(file: pathlib.Path, index: int, slot: int | None = None, cpus: Sequence[int] = ()) -> int:
    """Runs job `index` of the batch recorded in `file`; returns its exit code.

    cpus: the cores to stay on, () for all. Raises ValueError and OSError for a batch that cannot be
    read.
    """
    if cpus:
        os.sched_setaffinity(0, cpus)
    _say(f"job {file.stem} {index} on {os.uname().nodename}")
    return outages.retry_transient(lambda: Job(file, index, slot), lambda: False).run()
