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


def run(study: Study, progress: Progress) -> dict[str, int]:
    """Runs what is not finished, stage by stage. Returns how many trials ended in which state.

    The study is prepared (`study_directory.prepare`). Raises Interrupted on SIGINT or SIGTERM,
    once jobs of this host have saved, and if the study is cancelled. Raises ValueError if another
    driver has changed the study, or its directory cannot be written or is full.
    """
    counts: Counter[str] = Counter()
    with scheduler.stopping_signals() as stop_requested:
        jobs = scheduler.of_study(study, progress, stop_requested)
        wait_out, selection = jobs.outage.wait_out, None
        with contextlib.closing(jobs.launcher):
            for stage in study.stages:
                trials, selection = wait_out(functools.partial(_run_stage, jobs, stage))
                counts.update(wait_out(functools.partial(_ends, study, trials)))
                counts.update(wait_out(functools.partial(_evaluate, jobs, trials)))
            wait_out(functools.partial(study_directory.check_plan, study, selection))
    return dict(counts)


def _run_stage(jobs: Scheduler, stage: str) -> tuple[list[Trial], dict[str, Any] | None]:
    """Returns a stage's trials when they are finished, and the selection that it ran by."""
    study, progress = jobs.study, jobs.progress
    trials, selection = study_directory.plan(study, stage, jobs.stop_if_told)
    if selection is not None:
        progress.selected(selection)
        for variant in study.settings["variants"]:
            if variant not in selection["points"]:
                progress.say(
                    f"{variant} is left out of stage {stage}: every point lost half of its "
                    "seeds or more"
                )
    progress.stage(stage, trials, study.directory)
    for trial in trials:
        directory = study.directory / trial.path
        if status.read(directory)["state"] == "done":
            measurements.restore(directory, trial.steps)
    jobs.run(trials)
    return trials, selection


def _ends(study: Study, trials: list[Trial]) -> list[str]:
    states = [status.read(study.directory / trial.path)["state"] for trial in trials]
    # A job that slept may have written over the status of a trial that was given up.
    return [state if state in status.COMPLETE else "failed" for state in states]


def _evaluate(jobs: Scheduler, trials: list[Trial]) -> list[str]:
    """Has the stage's models evaluated by config.downstream, unless the jobs that trained them
    have done so; returns 'not evaluated' for each that could not be."""
    suite = jobs.study.settings["downstream"]
    wanted = downstream.of_trials(jobs.study, trials, suite) if suite else []
    return ["not evaluated" for _ in downstream.run(jobs, wanted)]
