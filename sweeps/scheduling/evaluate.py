"""`python -m sweeps evaluate STUDY_DIR --suite=NAME`: what a study's trained models can do.

Every trial of a stage that is done, by default of the last stage that has begun, which results are
read from. On the launchers of `sweeps run`; a run that was killed goes on where it was. Without
JAX, as every driver.
"""

import contextlib
import dataclasses
import pathlib
from collections import Counter

from attention import files
from sweeps.launchers import table as launchers
from sweeps.monitoring.progress import Progress
from sweeps.records import layout, status, submissions
from sweeps.scheduling import driver, evaluations, preflight, scheduler
from sweeps.study import checks, config, study
from sweeps.study import trial as trials
from sweeps.study.evaluation import Evaluation
from sweeps.study.study import Study
from sweeps.study.trial import Trial

# Keys of the study that may be others than those it was trained with.
_CHANGEABLE = ("launcher", "max_attempts", "mesh", *launchers.NAMES)


class Evaluate:
    """What is asked, checked: nothing is written, and no model loaded, before it stands.

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
        changed = config.changed(trained.settings, overrides or [], _CHANGEABLE)
        # Of a study of a version that did not write it down, too.
        where = data_dir or trained.settings["data_dir"]
        if where and where != record["config"].get("data_dir"):
            changed["data_dir"] = str(files.typed_path(str(where)).absolute())
        self.study: Study = dataclasses.replace(trained, settings=trained.settings | changed)
        checks.check_downstream(self.study.settings, suite)
        launchers.module(self.study.settings["launcher"]).check(self.study.settings)
        self.suite = suite
        self.stage, rows = layout.planned_stage(directory, record, stage or None)
        found = [trials.read(self.study.directory / row["path"]) for row in rows]
        self.left_out = self._left_out(found)
        self.wanted: list[Evaluation] = evaluations.of_trials(
            self.study, found, suite, checkpoints, changed
        )
        if not self.wanted:
            raise ValueError(
                f"{directory}: no trial of stage {self.stage} is done ({self.left_out}); train it "
                f"first: python -m sweeps resume {files.quoted(directory)}"
            )
        preflight.check_kernel(self.study)
        preflight.check_mesh(self.study)

    def _left_out(self, found: list[Trial]) -> str:
        states = [str(status.read(self.study.directory / trial.path)["state"]) for trial in found]
        counts = Counter(state for state in states if state != "done")
        return ", ".join(f"{count} {state}" for state, count in counts.items())

    def run(self, progress: Progress) -> list[Evaluation]:
        """Evaluates what is not evaluated; returns what could not be.

        Raises Interrupted when told to stop, ValueError where data or libraries are missing.
        """
        directory = self.study.directory
        (directory / submissions.CANCELLED).unlink(missing_ok=True)
        if self.left_out:
            progress.say(f"stage {self.stage}: {self.left_out}, not evaluated")
        with driver.stopping_signals() as told:
            check = preflight.SuiteCheck(self.study, self.suite)
            with contextlib.closing(check):
                check.finish()
            with contextlib.closing(scheduler.of_study(self.study, progress, told)) as jobs:
                return jobs.outage.wait_out(
                    lambda: evaluations.run(self.study, jobs, progress, self.wanted)
                )
