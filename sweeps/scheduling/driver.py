"""The driver: takes a study from its points to its last trial, whatever dies on the way.

It loads neither JAX nor TensorFlow. Files are the truth: interrupt it and run it again, or run it
twice; finished trials are not repeated and a trial has one worker at a time.
"""

import contextlib
import functools
import signal
from collections.abc import Callable, Iterator
from typing import Any

from sweeps.launchers import local
from sweeps.launchers import table as launchers
from sweeps.monitoring.progress import Progress
from sweeps.records import code_snapshot, disk, measurements, status, submissions
from sweeps.scheduling import evaluations
from sweeps.scheduling.job_scheduler import JobScheduler
from sweeps.scheduling.local_scheduler import LocalScheduler
from sweeps.scheduling.scheduler import Run, Scheduler
from sweeps.study import study_directory
from sweeps.study.study import Study
from sweeps.study.trial import Trial


def scheduler(about: Run) -> Scheduler:
    """Returns the study's scheduler, by config.launcher; local workers load JAX during checks."""
    study = about.study
    name = study.settings["launcher"]
    launcher_class = launchers.launcher_class(name)
    if name != "local":
        about.check()
    engine = launcher_class(study.settings, study.directory.resolve())
    if isinstance(engine, local.Local):
        return LocalScheduler(about, engine)
    poll_s = float(study.settings[name]["poll_seconds"])
    return JobScheduler(about, engine, poll_s, launcher_class.platform(study.settings))


class Driver:
    """Runs a study's stages one after the other.

    `check` (may be called more than once) raises ValueError where no trial should begin;
    `selection` is the choice of `study_directory.select`.
    """

    def __init__(
        self,
        study: Study,
        progress: Progress,
        check: Callable[[], None] = lambda: None,
        selection: str = "",
    ) -> None:
        self.study, self._check, self._selection = study, check, selection
        self.progress = progress

    def run(self) -> dict[str, int]:
        """Runs what is not finished. Returns how many trials ended in which state.

        Raises Interrupted on SIGINT or SIGTERM, after the workers have saved; ValueError where
        the directory holds another study or cannot be written, or its disk is full.
        """
        study_directory.prepare(self.study)
        (self.study.directory / submissions.CANCELLED).unlink(missing_ok=True)
        counts: dict[str, int] = {}
        with stopping_signals() as told:
            snapshot = code_snapshot.take(self.study.directory)
            about = Run(self.study, self.progress, told, snapshot, self._check)
            with contextlib.closing(scheduler(about)) as found:
                for stage in self.study.stages:
                    wait_out = found.outage.wait_out
                    trials = wait_out(functools.partial(self._run_stage, found, stage))
                    for ended in wait_out(functools.partial(self._ends, trials)):
                        counts[ended["state"]] = counts.get(ended["state"], 0) + 1
                        if ended["state"] == "failed" and disk.is_reason(ended["reason"]):
                            raise ValueError(ended["reason"])  # the next stage would, too
                    if lacking := wait_out(functools.partial(self._evaluate, found, trials)):
                        counts["not evaluated"] = counts.get("not evaluated", 0) + lacking
        return counts

    def _run_stage(self, found: Scheduler, stage: str) -> list[Trial]:
        """Returns a stage's trials when they are finished."""
        selection = None
        if stage == "compare":
            selection = study_directory.select(self.study, self._selection)
            self.progress.selected(selection)
        trials = self.study.trials(stage, selection)
        trials = study_directory.materialise(self.study, stage, trials)
        self.progress.stage(stage, trials, self.study.directory)
        for trial in trials:
            directory = self.study.directory / trial.path
            if status.read(directory)["state"] == "done":
                measurements.restore(directory, trial.steps)
        found.run(trials)
        return trials

    def _ends(self, trials: list[Trial]) -> list[dict[str, Any]]:
        return [status.read(self.study.directory / trial.path) for trial in trials]

    def _evaluate(self, found: Scheduler, trials: list[Trial]) -> int:
        """Has the stage's models evaluated by config.downstream, where no worker has done so when
        it had trained them; returns how many could not be."""
        suite = self.study.settings["downstream"]
        wanted = evaluations.of_trials(self.study, trials, suite, 1) if suite else []
        return len(evaluations.run(self.study, found, self.progress, wanted))


# SIGHUP: the terminal or the connection is gone.
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def stopping_signals() -> Iterator[Callable[[], bool]]:
    """Yields whether a signal has told this process to save and end."""
    told: list[int] = []
    earlier = [
        (number, signal.signal(number, lambda signum, frame: told.append(signum)))
        for number in _STOPPING
    ]
    try:
        yield lambda: bool(told)
    finally:
        for number, handler in earlier:
            signal.signal(number, handler)
