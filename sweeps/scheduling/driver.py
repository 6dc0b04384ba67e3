"""The driver: takes a study from its points to its last trial, whatever dies on the way.

It loads neither JAX nor TensorFlow. Files are the truth: interrupt it and run it again, or run it
twice; finished trials are not repeated and one process at a time has a trial.
"""

import contextlib
import functools
from collections import Counter
from typing import Any

from sweeps.monitoring.progress import Progress
from sweeps.records import measurements, status
from sweeps.scheduling import downstream, scheduler
from sweeps.scheduling.scheduler import Scheduler
from sweeps.study import study_directory
from sweeps.study.study import Study
from sweeps.study.trial import Trial


class Driver:
    """Runs a study's stages one after the other."""

    def __init__(self, study: Study, progress: Progress) -> None:
        self.study, self.progress = study, progress
        self._selected: dict[str, Any] | None = None

    def run(self) -> dict[str, int]:
        """Runs what is not finished. Returns how many trials ended in which state.

        The study is prepared (`study_directory.prepare`). Raises Interrupted on SIGINT or SIGTERM,
        once jobs of this host have saved, and where the study is cancelled; ValueError where
        another driver has changed the study, or its directory cannot be written or is full.
        """
        counts: Counter[str] = Counter()
        with scheduler.stopping_signals() as stop_requested:
            jobs = scheduler.of_study(self.study, self.progress, stop_requested)
            wait_out = jobs.outage.wait_out
            with contextlib.closing(jobs.launcher):
                for stage in self.study.stages:
                    trials = wait_out(functools.partial(self._run_stage, jobs, stage))
                    counts.update(wait_out(functools.partial(self._ends, trials)))
                    counts.update(wait_out(functools.partial(self._evaluate, jobs, trials)))
                check = functools.partial(study_directory.check_plan, self.study, self._selected)
                wait_out(check)
        return dict(counts)

    def _run_stage(self, jobs: Scheduler, stage: str) -> list[Trial]:
        """Returns a stage's trials when they are finished."""
        trials, selection = study_directory.plan(self.study, stage, jobs.wait_for_lock)
        self._selected = selection
        if selection is not None:
            self.progress.selected(selection)
            for variant in self.study.settings["variants"]:
                if variant not in selection["points"]:
                    self.progress.say(
                        f"{variant} is left out of stage {stage}: every point lost half of its "
                        "seeds or more"
                    )
        self.progress.stage(stage, trials, self.study.directory)
        for trial in trials:
            directory = self.study.directory / trial.path
            if status.read(directory)["state"] == "done":
                measurements.restore(directory, trial.steps)
        jobs.run(trials)
        return trials

    def _ends(self, trials: list[Trial]) -> list[str]:
        states = [status.read(self.study.directory / trial.path)["state"] for trial in trials]
        # A job that slept may have written over the status of a trial that was given up.
        return [state if state in status.COMPLETE else "failed" for state in states]

    def _evaluate(self, jobs: Scheduler, trials: list[Trial]) -> list[str]:
        """Has the stage's models evaluated by config.downstream, where no job has done so when
        it had trained them; returns 'not evaluated' for each that could not be."""
        suite = self.study.settings["downstream"]
        wanted = downstream.of_trials(self.study, trials, suite) if suite else []
        return ["not evaluated" for _ in downstream.run(jobs, self.progress, wanted)]
