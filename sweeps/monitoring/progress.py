"""The progress of a run: a driver's survey of its study, kept up to date by events and shown.

An event costs the same in a study of 100 trials and of 100,000. Files are read when a stage begins
and when a trial ends. The scheduler reads the status of running trials and passes it on.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

from sweeps.monitoring import view
from sweeps.monitoring.survey import Survey, TrialStatus, column
from sweeps.records import layout, status
from sweeps.study.trial import WorkItem


class Progress(view.Display):
    """Shows how a study goes while it is run.

    brief: no line for a trial that begins, or ends as it should.
    """

    _stage = ""

    def __init__(self, survey: Survey | None = None, brief: bool = False) -> None:
        super().__init__(survey)
        self._is_brief = brief

    def stage(self, name: str, trials: Sequence[WorkItem], directory: pathlib.Path) -> None:
        """A stage begins: the status of its trials takes the place of the plan."""
        if name not in self.survey.stages:
            self.survey = Survey(directory, directory.name, [])
        self._stage = name
        self.survey.begin(name)
        for trial in trials:
            record = status.read(directory / trial.path)
            # A trial that failed before is tried again.
            self._put(trial, "pending" if record["state"] == "failed" else column(record), record)
        ended, total = self._counts()
        self.say(f"stage {name}: {total} {view.plural('trial', total)}, {ended} already finished")

    def selected(self, selection: dict[str, Any]) -> None:
        """The next stage's points were chosen: of each variant that was tuned."""
        points = selection["points"]
        tuned = [row.variant for row in self.survey.of_stage("tune") if row.variant in points]
        listing = ", ".join(f"point {points[variant]} of {variant}" for variant in tuned or points)
        lost = len(selection["lost"])
        worst = f"; {lost} lost {view.plural('trial', lost)} counted as the worst" if lost else ""
        self.say(f"selected by {selection['metric']}: {listing}{worst}")

    def started(self, trial: WorkItem, where: str) -> None:
        """A trial began, where the text says ("slurm job 12_3")."""
        known = self.survey.unfinished.get(trial.path)
        self._put(trial, "running", known.status if known else status.NEW)
        if self._terminal is None and not self._is_brief:  # else the table shows it
            self.say(f"{trial.path} started on {where}")

    def ended(
        self, trial: WorkItem, state: str, error: str | None, tail: list[str] | None = None
    ) -> None:
        """A trial ended in a state of layout.FINISHED; 'pending': it will be tried again."""
        if trial.path in self.survey.unfinished:
            record = status.seen(self.survey.directory / trial.path)
            shown = column(record) if state == "pending" and record["state"] != "failed" else state
            self._put(trial, shown, {**record, "reason": error or record["reason"]})
        if self._is_brief and state == "done":
            return
        ended, total = self._counts()
        detail = f": {error}" if error else ""
        outcome = "will be tried again" if state == "pending" else state
        self.say(f"{trial.path} {outcome}{detail} [{ended}/{total}]")
        for line in tail or []:
            self.say(f"    {line}")

    def looked(self, trial: WorkItem, record: dict[str, Any]) -> None:
        """The status of a running trial was read."""
        self._put(trial, "running", record)

    def _put(self, trial: WorkItem, state: str, record: dict[str, Any]) -> None:
        variant = trial.path.split("/")[1]
        self.survey.put(TrialStatus(trial.path, self._stage, variant, state, trial.steps, record))

    def _counts(self) -> tuple[int, int]:
        """Returns how many trials of the stage have ended, and how many there are."""
        counts = self.survey.counts(self._stage)
        return sum(counts[state] for state in layout.FINISHED), counts.total()
