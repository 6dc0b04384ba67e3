"""The driver: takes a study from its points to its last trial, whatever dies on the way.

It loads neither JAX nor TensorFlow. Files are the truth: interrupt it and run it again, or run it
twice; finished trials are not repeated and one process at a time has a trial.
"""

import contextlib
import functools
from collections import Counter

from sweeps.monitoring.progress import Progress
from sweeps.records import measurements, status, submissions
from sweeps.scheduling import downstream, scheduler
from sweeps.scheduling.scheduler import Scheduler
from sweeps.study import study_directory
from sweeps.study.study import Study
from sweeps.study.trial import Trial


class Driver:
    """Runs a study's stages one after the other; `selection` as `study_directory.select`."""

    def __init__(self, study: Study, progress: Progress, selection: str = "") -> None:
        self.study, self.progress, self._selection = study, progress, selection

    def run(self) -> dict[str, int]:
        """Runs what is not finished. Returns how many trials ended in which state.

        Raises Interrupted on SIGINT or SIGTERM, once jobs of this host have saved; ValueError where
        the directory holds another study or cannot be written, or its disk is full.
        """
        study_directory.prepare(self.study)
        (self.study.directory / submissions.CANCELLED).unlink(missing_ok=True)
        counts: Counter[str] = Counter()
        with scheduler.stopping_signals() as stop_requested:
            jobs = scheduler.of_study(self.study, self.progress, stop_requested)
            wait_out = jobs.outage.wait_out
            with contextlib.closing(jobs.launcher):
                for stage in self.study.stages:
                    trials = wait_out(functools.partial(self._run_stage, jobs, stage))
                    counts.update(wait_out(functools.partial(self._ends, trials)))
                    counts.update(wait_out(functools.partial(self._evaluate, jobs, trials)))
        return dict(counts)

    def _run_stage(self, jobs: Scheduler, stage: str) -> list[Trial]:
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
        jobs.run(trials)
        return trials

    def _ends(self, trials: list[Trial]) -> list[str]:
        return [str(status.read(self.study.directory / trial.path)["state"]) for trial in trials]

    def _evaluate(self, jobs: Scheduler, trials: list[Trial]) -> list[str]:
        """Has the stage's models evaluated by config.downstream, where no job has done so when
        it had trained them; returns 'not evaluated' for each that could not be."""
        suite = self.study.settings["downstream"]
        wanted = downstream.of_trials(self.study, trials, suite) if suite else []
        return ["not evaluated" for _ in downstream.run(jobs, self.progress, wanted)]
