"""A survey of a study: what its files say at one moment. Standard library only.

File operations per trial, whatever the study's size: 1 for a trial that is pending or
diverged, 3 for one that is done or failed, 9 for one that is running (reads of /proc
not counted).
"""

import dataclasses
import math
import operator
import pathlib
from collections import Counter
from typing import Any

from sweeps.records import layout, measurements, stages, status

# `preempted` is a pending trial that has begun and was stopped or killed.
COLUMNS = (*layout.STATES, "preempted")


@dataclasses.dataclass
class StageRow:
    """The trials of a variant in a stage.

    counts: trials by column. steps_left: of all of them; longest: the most that one has left.
    step_seconds: measured, of the trials that know it. preemptions: of all of them so far.
    """

    stage: str
    variant: str
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    steps_left: int = 0
    longest: int = 0
    step_seconds: list[float] = dataclasses.field(default_factory=list)
    preemptions: int = 0

    def add(self, state: str, found: dict[str, Any], steps: int) -> None:
        """Counts a trial that trains for `steps`, by its status."""
        self.counts[state] += 1
        self.preemptions += found["preemption_count"]
        seconds = found.get("step_seconds")
        if isinstance(seconds, int | float) and 0 < seconds < math.inf:  # not nan
            self.step_seconds.append(float(seconds))
        if state not in layout.FINISHED:
            left = max(0, steps - found["global_step"])
            self.steps_left += left
            self.longest = max(self.longest, left)

    @property
    def unfinished(self) -> int:
        """How many trials have not ended."""
        return sum(count for state, count in self.counts.items() if state not in layout.FINISHED)


@dataclasses.dataclass(frozen=True)
class TrialStatus:
    """A trial that a person may want to look at; status as `sweeps.records.status.seen` returns
    it."""

    path: str
    state: str
    steps: int
    status: dict[str, Any]


@dataclasses.dataclass
class Survey:
    """A study at one moment.

    metric: what validation selects by, '' before the first stage. unfinished: paths of trials on
    disk that have not ended. broken: `<path> (<what is missing>)` of each trial that is done
    without whole records. damaged: a sentence per file that cannot be read as what it is.
    """

    directory: pathlib.Path
    record: dict[str, Any]
    metric: str = ""
    rows: list[StageRow] = dataclasses.field(default_factory=list)
    begun: list[str] = dataclasses.field(default_factory=list)
    running: list[TrialStatus] = dataclasses.field(default_factory=list)
    troubles: list[TrialStatus] = dataclasses.field(default_factory=list)
    unfinished: list[str] = dataclasses.field(default_factory=list)
    broken: list[str] = dataclasses.field(default_factory=list)
    damaged: list[str] = dataclasses.field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        """Trials of the whole study by column."""
        return sum((row.counts for row in self.rows), Counter[str]())

    @property
    def complete(self) -> bool:
        """Whether every stage has begun and every trial has ended."""
        begun = set(self.begun) == set(self.record["stages"])
        return begun and not any(row.unfinished for row in self.rows)


class StudyReader:
    """Looks at a study again and again; trials that are done are read once."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._ended: dict[str, dict[str, Any]] = {}
        self._planned: dict[str, tuple[Any, list[dict[str, Any]]]] = {}
        self._metric = ""

    def look(self) -> Survey:
        """Returns the study as it is now.

        Raises ValueError where the directory holds no study, or its study.json is damaged.
        """
        survey = Survey(self._directory, layout.study_record(self._directory))
        for stage in survey.record["stages"]:
            trials = self._trials(survey, stage)
            if trials is not None:
                survey.begun.append(stage)
                self._add(survey, stage, trials)
                continue
            try:
                survey.rows += not_begun(survey.record, stage)
            except (KeyError, TypeError) as problem:
                raise ValueError(
                    f"{self._directory / layout.STUDY} is damaged: its config cannot be counted "
                    f"with ({type(problem).__name__}: {problem}); copy it back"
                ) from problem
        return survey

    def _trials(self, survey: Survey, stage: str) -> list[dict[str, Any]] | None:
        """Returns a stage's rows of trials.json, None where there is none to be read."""
        path = self._directory / stage / layout.TRIALS
        try:
            found = path.stat()
            version = (found.st_mtime_ns, found.st_ino, found.st_size)
            if self._planned.get(stage, (None, []))[0] != version:
                keys = ("path", "variant", "steps")
                rows = layout.planned(self._directory, stage, *keys, "targets") or []
                self._metric = rows[0]["targets"]["metric"]
                # 100,000 whole records would stay in memory.
                self._planned[stage] = version, [{key: row[key] for key in keys} for row in rows]
        except FileNotFoundError:
            return None
        except (ValueError, IndexError, KeyError, TypeError, OSError) as error:  # `[0]` of none
            text = str(error)
            named = text if str(path) in text else f"{path}: {type(error).__name__}: {text}"
            survey.damaged.append(named)
            return None
        survey.metric = self._metric
        return self._planned[stage][1]

    def _add(self, survey: Survey, stage: str, trials: list[dict[str, Any]]) -> None:
        rows: dict[str, StageRow] = {}
        for trial in trials:
            found = self._status(trial["path"], trial["steps"])
            state, reason = found["state"], str(found.get("reason") or "")
            if state == "pending" and reason.startswith(("preempted", "interrupted")):
                state = "preempted"
            variant = trial["variant"]
            rows.setdefault(variant, StageRow(stage, variant)).add(state, found, trial["steps"])
            seen = TrialStatus(trial["path"], state, trial["steps"], found)
            if lacking := found.get("lacking"):
                survey.broken.append(f"{seen.path} ({lacking})")
            if state not in layout.FINISHED:
                survey.unfinished.append(seen.path)
            if state == "running":
                survey.running.append(seen)
            elif state in (*layout.LOST, "preempted"):
                survey.troubles.append(seen)
            if "damaged" in found:
                survey.damaged.append(found["damaged"])
        survey.rows += rows.values()

    def _status(self, path: str, steps: int) -> dict[str, Any]:
        if path in self._ended:
            return self._ended[path]
        found = status.seen(self._directory / path)
        if found["state"] in status.COMPLETE:
            keys = ("state", "global_step", "preemption_count", "reason", "step_seconds")
            found = {key: found.get(key) for key in keys}
            if found["state"] == "done":
                try:
                    found["lacking"] = measurements.unsound(self._directory / path, steps)
                except OSError:  # of the file server: looked at again the next time
                    return found
            if not found.get("lacking"):  # which `resume` may mend
                self._ended[path] = found
        return found


def not_begun(record: dict[str, Any], stage: str) -> list[StageRow]:
    """Returns the rows of a stage whose trials are not on disk yet."""
    steps = operator.index(record["config"]["steps"])
    return [
        StageRow(
            stage,
            group.variant,
            Counter(pending=group.trials),
            steps_left=group.trials * steps,
            longest=steps,
        )
        for group in stages.groups(record["config"], stage)
    ]
