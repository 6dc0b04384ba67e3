"""A job: one or several trials of a study, or evaluations, run on the node that an engine chose.

`python -m sweeps job STUDY_DIR/jobs/BATCH.json --index=I` runs job I of a batch with worker
processes of its own, as the local launcher does. SIGTERM and SIGUSR1 have the trials saved. Where
the engine starts a job on several nodes at once, they train each trial together: the first does
what is said here, the others train with it.

It exits with FINISHED (0) where nothing is left for it to do, AGAIN (75) where it was told to stop
or one of several processes was lost, WRONG_NODE (76) where this node cannot run it, 1 where a trial
could not be claimed or given back, 2 for a batch that cannot be read.
"""

import dataclasses
import functools
import os
import pathlib
import signal
import sys
from typing import Any

from sweeps.distributed import bootstrap
from sweeps.launchers import local
from sweeps.launchers import table as launchers
from sweeps.launchers.protocol import AGAIN, FINISHED, WRONG_NODE, EngineError
from sweeps.monitoring.progress import Progress
from sweeps.records import code_snapshot, layout, outages, status, submissions
from sweeps.scheduling import preflight
from sweeps.scheduling.local_scheduler import LocalScheduler
from sweeps.scheduling.scheduler import Interrupted, Run
from sweeps.study import study
from sweeps.study.evaluation import Evaluation, Work, read_work
from workloads import init2winit_specs

# What the engine counts against its retries, where it has any.
_UNFINISHED = 1


class NodeJob:
    """One job of a batch."""

    def __init__(self, file: pathlib.Path, index: int) -> None:
        self.batch = submissions.read(file)
        self.index, self.root = index, file.resolve().parents[1]
        self.study = study.from_record(layout.study_record(self.root), self.root)
        if not 0 <= index < self.batch.size:
            size = self.batch.size
            raise ValueError(f"{file} has {size} jobs, numbered from 0; there is no {index}")
        self.trials = [read_work(self.root / path) for path in self.batch.jobs[index]]
        self._suites = {one.suite for one in self.trials if isinstance(one, Evaluation)}
        for one in self.trials:
            if isinstance(one, Evaluation):  # who runs it, and where its data are
                changed = self.study.settings | one.settings
                self.study = dataclasses.replace(self.study, settings=changed)
        self._stop = False

    def run(self) -> int:
        """Runs the trials; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._told_to_stop)
        if all(self._state(one) in status.COMPLETE for one in self.trials):
            return FINISHED  # e.g. a requeued job of which only the end was lost
        try:
            for suite in self._suites:
                preflight.check_suite_here(self.study, suite)
            if not self._suites:
                preflight.check_event_files(self.study, here=True)
                preflight.check_data_here(self.study)
        except (ValueError, OSError) as error:
            if self._stop:  # the engine tells a job's every process: the check was cut short
                with Progress() as progress:
                    return self._interrupted(progress)
            return self._refuse(str(error))
        # The driver's own JAX_PLATFORMS is not the node's: what the job was given is used.
        os.environ.pop("JAX_PLATFORMS", None)
        if self.batch.platform == "cpu":
            os.environ["JAX_PLATFORMS"] = "cpu"
        found = bootstrap.detect(os.environ)
        if found is not None and self._suites:
            return self._refuse(
                "an evaluation is computed by one process, on all devices of its host, and this "
                "job has several: give its launcher's keys one host"
            )
        if found is not None and not found.is_primary:  # becomes another process of those
            cache = f"--cache_dir={local.compilation_cache()}"
            command = [sys.executable, "-m", "sweeps.worker", "--secondary", cache]
            command.append(f"--platform={self.batch.platform}")
            os.execve(sys.executable, command, {**local.MALLOC, **os.environ})
        return self._train(together=found is not None)

    def _refuse(self, reason: str) -> int:
        print(reason, flush=True)
        self.batch.refuse(self.index, reason)
        return WRONG_NODE

    def _told_to_stop(self, signum: int, frame: Any) -> None:
        del frame
        print(f"told to stop by {signal.Signals(signum).name}", flush=True)
        self._stop = True

    def _state(self, one: Work) -> str:
        read = functools.partial(status.read, self.root / one.path)
        return str(outages.retry_transient(read, lambda: self._stop)["state"])

    def _train(self, together: bool) -> int:
        name = self.batch.launcher
        workers = 1 if together else self.study.settings[name].get("workers", 0) or 1
        own = {"workers": workers, "pin": True}
        owner, platform = f"{self.batch.file}#{self.index}", self.batch.platform
        with Progress() as progress:
            jax = not init2winit_specs.is_init2winit(self.study.workload)
            try:
                engine = local.Local(own, self.root / local.LOG, owner, together, platform, jax)
            except ValueError as error:  # fewer devices here than the job was to have
                return self._refuse(str(error))
            snapshot = code_snapshot.take(self.root)
            stop, began = lambda: self._stop, self.batch.began
            about = Run(self.study, progress, stop, snapshot, began=began)
            scheduler = LocalScheduler(about, engine, watches=False)
            try:
                scheduler.outage.wait_out(lambda: scheduler.run(self.trials))
            except Interrupted:
                return self._interrupted(progress)
            except ValueError as error:  # no worker can work here: no driver, no device
                return self._refuse(str(error))
            finally:
                scheduler.close()
        # A trial that another worker holds is not this job's any more.
        if all(self._state(one) != "pending" for one in self.trials):
            return FINISHED
        return AGAIN if together else _UNFINISHED

    def _interrupted(self, progress: Progress) -> int:
        if submissions.is_cancelled(self.root):
            progress.say("the study was cancelled")
            return FINISHED  # nobody is to start it again
        again = "the driver submits what is left again"
        try:
            if launchers.launcher_class(self.batch.launcher).requeue():
                again = "the engine runs this job again"
        except EngineError as error:  # e.g. a job that a person runs by hand
            print(error, flush=True)
        progress.say(f"saved; {again}")
        return AGAIN


def run(file: pathlib.Path, index: int) -> int:
    """Runs job `index` of the batch recorded in `file`; returns its exit code.

    Raises ValueError and OSError for a batch that cannot be read.
    """
    print(f"job {file.stem} {index} on {os.uname().nodename}", flush=True)
    return outages.retry_transient(lambda: NodeJob(file, index), lambda: False).run()
