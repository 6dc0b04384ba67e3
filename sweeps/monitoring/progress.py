"""Progress: the survey of a study, shown while it is run or watched.

A driver keeps its survey up to date by events, `watch` reads the study again and again. An event
costs the same in a study of 100 trials and of 100,000. Files are read when a stage begins and when
a trial ends. The scheduler reads the status of running trials and passes it on.
"""

import contextlib
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

from sweeps.monitoring import view
from sweeps.monitoring.survey import StudyReader, Survey, TrialStatus, column
from sweeps.records import layout, status
from sweeps.study.trial import WorkItem

# Between two lines of a survey where no terminal shows it.
_LINE_S = 60.0
# Looking takes at most this part of the time: 100,000 trials on a slow disk are looked at rarely.
_SHARE = 0.1


class Progress:
    """Shows a study while it goes on: renewed in place on a terminal, elsewhere in lines.

    survey: what is shown, of the study as planned at first, None where no plan is known. brief: no
    line for a trial that begins, or ends as it should.
    """

    _stage = ""

    def __init__(self, survey: Survey | None = None, brief: bool = False) -> None:
        self.survey = survey or Survey(pathlib.Path(), "", [])
        self._is_brief = brief
        self._terminal: Any = None
        self._began = self._shown = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            from rich.live import Live

            self._terminal = Live(auto_refresh=False, vertical_overflow="crop")
            self._terminal.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._terminal is not None:
            self.tick()  # the last survey stays on the screen
            self._terminal.__exit__(*exception)
            self._terminal = None

    def say(self, text: str) -> None:
        """Prints a line with the time since the start."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        text = f"[{minutes:02d}:{seconds:02d}] {text}"
        if self._terminal is not None:
            self._terminal.console.print(text, markup=False, highlight=False)
        else:
            with contextlib.suppress(OSError):  # a run outlives its reader
                print(text, flush=True)

    def tick(self, is_news: bool = False) -> None:
        """Renews the screen; elsewhere prints a line of news, or once a minute. Call it often."""
        if self._terminal is not None:
            from rich.text import Text

            self._terminal.update(Text(view.render(self.survey)), refresh=True)
        elif is_news or time.monotonic() - self._shown > _LINE_S:
            self._shown = time.monotonic()
            self.say(view.line(self.survey))

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


def watch(directory: pathlib.Path, every_s: float = 2.0) -> None:
    """Shows a study until it is complete; Ctrl-C ends it without a word.

    Raises ValueError where the directory holds no study.
    """
    shown: list[Any] = []
    with contextlib.suppress(KeyboardInterrupt), Progress() as display:
        for survey in looks(StudyReader(directory), every_s):
            display.survey = survey
            counts = [row.counts for row in survey.rows.values()]
            display.tick(is_news=counts != shown)
            shown = counts


def looks(reader: StudyReader, every_s: float) -> Iterator[Survey]:
    """Yields surveys, at least `every_s` apart, the last one of a study that is complete."""
    was_complete = False
    while True:
        began = time.monotonic()
        survey = reader.look()
        yield survey
        # A trial that failed may be tried again in the next moment: it must look so twice.
        failed = any(trial.state == "failed" for trial in survey.problems.values())
        if survey.complete and (was_complete or not failed):
            return
        was_complete = survey.complete
        took = time.monotonic() - began
        time.sleep(max(every_s, took / _SHARE - took))
