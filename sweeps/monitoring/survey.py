"""The survey of a study: its stages, states, running trials and time left at one moment, as data.

`StudyReader` makes one from the study's files; a driver keeps its own up to date
(`sweeps.monitoring.progress`). Standard library only.

File operations of a reader per trial, whatever the study's size: 1 for a trial that is pending,
done or diverged, 3 for a failed one, 10 for a running one (reads of /proc are not counted).
"""

import collections
import dataclasses
import operator
import pathlib
import statistics
from collections import Counter
from typing import Any

from sweeps.records import attempts, clock, layout, stages, status, submissions

# `preempted` is a pending trial that has begun and was stopped or killed.
COLUMNS = (*layout.STATES, "preempted")
# Trials of a kind that are listed; a study may have 100,000.
LISTED = 20
# Measured times per step that an estimate is the median of.
_TIMES = 32


@dataclasses.dataclass
class TrialStatus:
    """A trial of `steps` updates at one moment.

    state: one of COLUMNS. status: as `sweeps.records.status.read` returns it. log_tail: the last
    lines of its log, of failed trials that are listed.
    """

    path: str
    stage: str
    variant: str
    state: str
    steps: int
    status: dict[str, Any]
    log_tail: list[str] = dataclasses.field(default_factory=list)

    @property
    def steps_left(self) -> int:
        """Updates that are left, 0 for a trial that has ended."""
        has_ended = self.state in layout.FINISHED
        return 0 if has_ended else max(0, self.steps - int(self.status["global_step"]))


@dataclasses.dataclass
class StageRow:
    """The trials of a variant in a stage.

    counts: trials by column. steps_left: of all of them. preemptions: of all of them so far.
    step_seconds: the last measured ones.
    """

    stage: str
    variant: str
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    steps_left: int = 0
    preemptions: int = 0
    step_seconds: collections.deque[float] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_TIMES)
    )

    @property
    def unfinished(self) -> int:
        """How many trials have not ended."""
        return self.counts.total() - sum(self.counts[state] for state in layout.FINISHED)

    def count(self, trial: TrialStatus, sign: int = 1) -> None:
        """Counts a trial; with sign −1, counts it no longer."""
        self.counts[trial.state] += sign
        self.steps_left += sign * trial.steps_left
        self.preemptions += sign * int(trial.status["preemption_count"])


@dataclasses.dataclass
class EngineJob:
    """A job at an engine, number `index` of its batch.

    state: 'running' where one of its trials runs, 'waiting' where one has not ended, else 'over'.
    queued_s: `Survey.queued_s`. reason: why it is in the engine's queue; None unless the engine
    says that it is there.
    """

    batch: submissions.Batch
    index: int
    state: str
    queued_s: float = 0.0
    reason: str | None = None


@dataclasses.dataclass
class Survey:
    """A study at one moment.

    rows: by stage and variant. unfinished, running, problems: trials by their path; a problem is a
    trial that is preempted, diverged or failed. damaged: a sentence per file that cannot be read,
    by its path. jobs: of each launcher that runs jobs, how many are running, waiting and over.
    at_engines: those that are running and waiting, by their handles. unanswered: a sentence per
    engine that could not be asked. queue_warn_s: a longer time in a queue is pointed out, 0: none.
    at_once: trials that ran side by side when the last one began.
    """

    directory: pathlib.Path
    name: str
    stages: list[str]
    rows: dict[tuple[str, str], StageRow] = dataclasses.field(default_factory=dict)
    unfinished: dict[str, TrialStatus] = dataclasses.field(default_factory=dict)
    running: dict[str, TrialStatus] = dataclasses.field(default_factory=dict)
    problems: dict[str, TrialStatus] = dataclasses.field(default_factory=dict)
    damaged: dict[str, str] = dataclasses.field(default_factory=dict)
    jobs: dict[str, Counter[str]] = dataclasses.field(default_factory=dict)
    at_engines: dict[str, EngineJob] = dataclasses.field(default_factory=dict)
    unanswered: list[str] = dataclasses.field(default_factory=list)
    queue_warn_s: float = 0.0
    at_once: int = 0

    @property
    def complete(self) -> bool:
        """Whether every trial of every stage has ended."""
        return not any(row.unfinished for row in self.rows.values())

    def of_stage(self, stage: str) -> list[StageRow]:
        """Returns the rows of a stage."""
        return [row for row in self.rows.values() if row.stage == stage]

    def counts(self, stage: str) -> Counter[str]:
        """Returns the trials of a stage by column."""
        return sum((row.counts for row in self.of_stage(stage)), Counter[str]())

    def begin(self, stage: str) -> None:
        """Drops the planned rows of a stage; its trials follow."""
        self.rows = {key: row for key, row in self.rows.items() if row.stage != stage}
        if stage not in self.stages:
            self.stages.append(stage)

    def put(self, trial: TrialStatus) -> None:
        """Takes a trial's status, in place of its earlier one where it had not ended."""
        row = self.rows.setdefault(
            (trial.stage, trial.variant), StageRow(trial.stage, trial.variant)
        )
        earlier = self.unfinished.get(trial.path)
        if earlier is not None:
            row.count(earlier, -1)
        row.count(trial)
        seconds = trial.status.get("step_seconds")
        # A trial that stands still would outweigh those that move.
        if seconds and (earlier is None or trial.steps_left < earlier.steps_left):
            row.step_seconds.append(seconds)
        tables = (
            (self.unfinished, trial.state not in layout.FINISHED),
            (self.running, trial.state == "running"),
            (self.problems, trial.state in (*layout.LOST, "preempted")),
        )
        for table, holds in tables:
            if holds:
                table[trial.path] = trial
            else:
                table.pop(trial.path, None)
        if trial.state == "running" and (earlier is None or earlier.state != "running"):
            self.at_once = len(self.running)
        if "damaged" in trial.status:
            self.damaged[trial.path] = trial.status["damaged"]

    def queued_s(self, batch: submissions.Batch, index: int) -> float:
        """Returns the seconds since a job that waits was submitted or, after a preemption, since
        its trials wrote their status last. Clocks of two hosts: good enough for hours."""
        trials = (self.unfinished[path] for path in batch.jobs[index] if path in self.unfinished)
        heartbeats = (float(trial.status.get("heartbeat", 0.0)) for trial in trials)
        return clock.clock.time() - max([batch.created_at, *heartbeats])

    def time_left(self) -> dict[str, float]:
        """Returns the estimated seconds left of each stage that has not ended, one after the other.

        A stage takes its work, by the measured times per step, over the trials that run at once,
        and no less than the running trial with most left. A variant that was not measured takes the
        median of all that were. {} where nothing was measured, or no trial runs.
        """
        rates = self._rates()
        if not rates or not self.at_once:
            return {}
        left = {}
        for stage in self.stages:
            rows = self.of_stage(stage)
            if unfinished := sum(row.unfinished for row in rows):
                work = sum(row.steps_left * rates[row.variant] for row in rows)
                longest = [
                    trial.steps_left * rates[trial.variant]
                    for trial in self.running.values()
                    if trial.stage == stage
                ]
                left[stage] = max([work / min(self.at_once, unfinished), *longest])
        return left

    def _rates(self) -> dict[str, float]:
        measured: dict[str, list[float]] = collections.defaultdict(list)
        for row in self.rows.values():
            measured[row.variant] += row.step_seconds
        everything = [seconds for row in self.rows.values() for seconds in row.step_seconds]
        items = measured.items() if everything else ()
        return {variant: statistics.median(values or everything) for variant, values in items}


def column(record: dict[str, Any]) -> str:
    """Returns the column that a trial counts in, by its status."""
    if record["state"] == "pending" and "heartbeat" in record:  # it was begun
        return "preempted"
    return str(record["state"])


def planned(directory: pathlib.Path) -> Survey:
    """Returns the survey of a study of which no stage has begun.

    Raises ValueError where the directory holds no study, or its study.json is damaged.
    """
    record = layout.study_record(directory)
    survey = Survey(directory, record["name"], record["stages"])
    try:
        steps = operator.index(record["config"]["steps"])
        for stage in survey.stages:
            for group in stages.groups(record["config"], stage):
                counts, steps_left = Counter(pending=group.trials), group.trials * steps
                survey.rows[stage, group.variant] = StageRow(
                    stage, group.variant, counts, steps_left
                )
    except (KeyError, TypeError) as problem:
        raise ValueError(
            f"{directory / layout.STUDY} is damaged: its config cannot be counted with "
            f"({type(problem).__name__}: {problem}); copy it back"
        ) from problem
    return survey


class StudyReader:
    """Looks at a study again and again; the status of trials that have ended well is read once."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._ended: dict[str, dict[str, Any]] = {}

    def look(self) -> Survey:
        """Returns the study as it is now. Raises ValueError as `planned`."""
        survey = planned(self._directory)
        for stage in survey.stages:
            try:
                trials = layout.planned(self._directory, stage, "variant", "steps")
            except (ValueError, OSError) as error:
                survey.damaged[stage] = str(error)
                continue
            if trials is None:
                continue
            expected = survey.of_stage(stage)
            survey.begin(stage)
            for trial in trials:
                path, variant, steps = trial["path"], trial["variant"], trial["steps"]
                record = self._ended.get(path) or status.seen(self._directory / path)
                if record["state"] in status.COMPLETE:
                    self._ended[path] = {**status.NEW, **record, "figures": None}
                survey.put(TrialStatus(path, stage, variant, column(record), steps, record))
            for row in expected:
                _count_unlisted(survey, row)
        failed = [problem for problem in survey.problems.values() if problem.state == "failed"]
        for problem in failed[:LISTED]:
            problem.log_tail = attempts.log_tail(self._directory / problem.path)
        _count_jobs(survey)
        return survey


def _count_unlisted(survey: Survey, expected: StageRow) -> None:
    """Counts trials of study.json that a stage's list lacks: the driver that changed the study has
    not planned them yet. A variant is left out of 'compare' where all its own tuning was lost."""
    key = expected.stage, expected.variant
    row = survey.rows.get(key) or StageRow(*key)
    planned, listed = expected.counts.total(), row.counts.total()
    if planned > listed and (listed or ("tune", expected.variant) not in survey.rows):
        survey.rows[key] = row
        row.counts["pending"] += planned - listed
        row.steps_left += (planned - listed) * expected.steps_left // planned


def _count_jobs(survey: Survey) -> None:
    """Counts the jobs at engines by the files of their trials.

    A trial counts for the last job that got it; jobs that lost all their trials to later ones are
    over. Jobs of a driver's host share trials, and as many run as trials do.
    """
    batches = []
    for path in submissions.files(survey.directory):
        try:
            batches.append(submissions.read(path))
        except (OSError, ValueError) as error:
            survey.damaged[path.name] = str(error)
    jobs: dict[str, EngineJob] = {}
    last: dict[str, str] = {}
    withdrawn = submissions.withdrawn(
        survey.directory, lambda problem: survey.damaged.update({submissions.WITHDRAWN: problem})
    )
    for batch in sorted(batches, key=lambda batch: batch.created_at):
        handles = [] if batch.launcher == "local" else batch.handles
        # None: the submission was cut short. None at all: the engine refused it.
        for index, handle in enumerate([""] * batch.size if handles is None else handles):
            name = f"{batch.name} {handle or index}"
            jobs[name] = EngineJob(batch, index, "over")
            last |= dict.fromkeys(batch.jobs[index], name)
    for state, trials in (("waiting", survey.unfinished), ("running", survey.running)):
        for name in {last[path] for path in trials if path in last} - withdrawn:
            jobs[name].state = state
    for name, job in jobs.items():
        survey.jobs.setdefault(job.batch.launcher, Counter())[job.state] += 1
        if job.state != "over":
            job.queued_s = survey.queued_s(job.batch, job.index)
            survey.at_engines[name.partition(" ")[2]] = job
