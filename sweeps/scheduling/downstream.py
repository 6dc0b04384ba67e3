"""Evaluations: what trained models can do, by a suite's questions. results.json is their state.

`python -m sweeps evaluate STUDY_DIR --suite=NAME` evaluates every trial of a stage that is done, by
default of the last stage that has begun, which results are read from. A study with
config.downstream evaluates its models itself. Both use jobs as training does; what has results is
never computed again.
"""

import contextlib
import dataclasses
import pathlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

from attention.common import files
from sweeps.launchers import table as launchers
from sweeps.monitoring.progress import Progress
from sweeps.records import layout, status, submissions
from sweeps.scheduling import preflight, scheduler
from sweeps.scheduling.scheduler import Scheduler
from sweeps.study import checks, config, study
from sweeps.study import trial as trials
from sweeps.study.study import Study
from sweeps.study.trial import Trial
from workloads.downstream import suites

# Keys of the study that may be others than those it was trained with.
_CHANGEABLE = ("launcher", "max_attempts", "mesh", *launchers.CLASSES)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One checkpoint of a trial, after `checkpoint` updates, put before one suite's questions."""

    trial: Trial
    checkpoint: int
    suite: str

    @property
    def path(self) -> str:
        """Directory relative to the study's."""
        return f"{self.trial.path}/{layout.downstream_path(self.checkpoint, self.suite)}"

    @property
    def steps(self) -> int:
        """The number of the suite's tasks."""
        return len(suites.get(self.suite).tasks)

    @property
    def program(self) -> tuple[Any, ...]:
        """Evaluations with equal programs share what is compiled."""
        return ("evaluation", self.suite, *self.trial.program)


def of_trials(
    study: Study, stage: Iterable[Trial], suite: str, checkpoints: int = 1
) -> list[Evaluation]:
    """Returns the evaluations of trials' last checkpoints, of trials that are done alone.

    Raises ValueError if a trial has fewer checkpoints that an evaluation of its training goes
    with.
    """
    wanted = []
    for trial in stage:
        directory = study.directory / trial.path
        if status.read(directory)["state"] != "done":
            continue
        steps = [step for step in layout.checkpoint_steps(directory) if trial.evaluates_at(step)]
        if not steps:
            raise ValueError(
                f"{directory} has no checkpoint, so its model is lost: copy its "
                f"{layout.CHECKPOINTS}/ back, or move the trial's directory away and resume the "
                "study, which trains it anew"
            )
        if len(steps) < checkpoints:
            raise ValueError(
                f"{directory} has {len(steps)} checkpoints and {checkpoints} are asked: give "
                f"--checkpoints={len(steps)}; a study keeps {checkpoints} where it is trained with "
                f"--config.keep_checkpoints={checkpoints} (it had "
                f"{study.settings['keep_checkpoints']})"
            )
        wanted += [Evaluation(trial, step, suite) for step in steps[-checkpoints:]]
    return wanted


def run(jobs: Scheduler, wanted: list[Evaluation]) -> list[Evaluation]:
    """Has jobs make the evaluations that have no results; returns those without in the end.

    Raises Interrupted when told to stop, ValueError if none can be made at all.
    """
    left = _without_results(jobs.root, wanted)
    if left:
        for evaluation in left:
            (jobs.root / evaluation.path).mkdir(parents=True, exist_ok=True)
        jobs.progress.stage(f"evaluate by {left[0].suite}", wanted, jobs.root)
        jobs.run(left)
    return _without_results(jobs.root, left)


def _without_results(root: pathlib.Path, evaluations: list[Evaluation]) -> list[Evaluation]:
    return [
        evaluation
        for evaluation in evaluations
        if not (root / evaluation.path / layout.RESULTS).exists()
    ]


class Evaluate:
    """What `sweeps evaluate` is asked, checked: nothing is written, and no model loaded, before.

    checkpoints: how many of each trial, the last ones. stage: '' for the last that has begun.
    data_dir: None for the study's own. overrides: '--config.KEY=VALUE' of who runs it, and on what
    mesh. Raises ValueError for whatever could not be evaluated.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        suite: str,
        checkpoints: int = 1,
        stage: str = "",
        data_dir: str | pathlib.Path | None = None,
        overrides: list[str] | None = None,
    ) -> None:
        record = layout.study_record(directory)
        trained = study.from_record(record, directory)
        self.changed = config.changed(trained.settings, overrides or [], _CHANGEABLE)
        if data_dir:
            self.changed["data_dir"] = str(files.typed_path(str(data_dir)).absolute())
        self.study: Study = dataclasses.replace(trained, settings=trained.settings | self.changed)
        checks.check_downstream(self.study.settings, suite)
        launchers.launcher_class(self.study.settings["launcher"]).check(self.study.settings)
        self.suite = suite
        self.stage, rows = layout.planned_stage(directory, record, stage or None)
        planned = [trials.read(self.study.directory / row["path"]) for row in rows]
        states = [str(status.read(self.study.directory / trial.path)["state"]) for trial in planned]
        counts = Counter(state for state in states if state != "done")
        self.left_out = ", ".join(f"{count} {state}" for state, count in counts.items())
        self.wanted = of_trials(self.study, planned, suite, checkpoints)
        if not self.wanted:
            raise ValueError(
                f"{directory}: no trial of stage {self.stage} is done ({self.left_out}); train it "
                f"first: python -m sweeps resume {files.quoted(directory)}"
            )
        preflight.check_kernel(self.study)
        preflight.check_mesh(self.study)
        preflight.check_engine(self.study)

    def run(self, progress: Progress) -> list[Evaluation]:
        """Evaluates what is not evaluated; returns what could not be.

        Raises Interrupted when told to stop, ValueError if data or libraries are missing.
        """
        (self.study.directory / submissions.CANCELLED).unlink(missing_ok=True)
        if self.left_out:
            progress.say(f"stage {self.stage}: {self.left_out}, not evaluated")
        with scheduler.stopping_signals() as stop:
            preflight.check_data(self.study, self.suite)
            jobs = scheduler.of_study(self.study, progress, stop, self.changed)
            with contextlib.closing(jobs.launcher):
                return jobs.outage.wait_out(lambda: run(jobs, self.wanted))
