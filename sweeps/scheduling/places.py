"""Where a scheduler has each trial that is left, and the jobs that an engine has of them."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

from sweeps.records import clock, submissions
from sweeps.records.submissions import Batch
from sweeps.study.trial import WorkItem


@dataclasses.dataclass
class SubmittedJob:
    """A job that the engine has, and the trials that it may claim, by path.

    claimed: the trials that it has claimed and that are left. has_ended: it has tried to claim all
    of them. offset: where the part of its claims ends that was read; 0: it has claimed none.
    """

    batch: Batch
    index: int
    trials: dict[str, WorkItem]
    claimed: list[str] = dataclasses.field(default_factory=list)
    has_ended: bool = False
    offset: int = 0

    @property
    def at_work(self) -> list[str]:
        """The trials that the job trains, or may train: it need not claim a single one."""
        return self.claimed if len(self.trials) > 1 else list(self.trials)

    def read_claims(self) -> list[str]:
        """Returns what the job has claimed since the last call."""
        lines, self.offset = self.batch.claims(self.index, self.offset)
        self.has_ended |= submissions.CLAIMS_END in lines
        added = [path for path in dict.fromkeys(lines) if path in self.trials]
        self.claimed += added
        return added


class Places:
    """The trials that are left, by path: each waits, is watched, or jobs have it.

    waiting: to be submitted. jobs: at an engine, by handle. unconfirmed: batches that an engine may
    have. watched: looked after by their files, each with the time of the next look. No trial that
    waits is watched or claimed. A job that shares its trials may still claim one that waits: its
    lease keeps the trial from being trained twice.
    """

    def __init__(self, watch_s: float) -> None:
        self._watch_s = watch_s
        self.left: dict[str, WorkItem] = {}
        self.waiting: collections.OrderedDict[str, WorkItem] = collections.OrderedDict()
        self.jobs: dict[str, SubmittedJob] = {}
        self.unconfirmed: list[Batch] = []
        self.watched: dict[str, tuple[WorkItem, float]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a trial or a job has to be looked after."""
        return bool(self.waiting or self.jobs or self.watched or self.unconfirmed)

    def claimed(self) -> set[str]:
        """Returns trials that jobs are known to have claimed."""
        return {path for job in self.jobs.values() for path in job.claimed}

    def held(self) -> set[str]:
        """Returns trials that a job has, or may have."""
        trials = [job.trials.keys() for job in self.jobs.values()]
        return set().union(*trials, *(batch.paths for batch in self.unconfirmed))

    def jobs_of(self, batch: Batch, handles: Sequence[str]) -> dict[str, SubmittedJob]:
        """Returns {handle: job} of a recorded batch for jobs with trials that are left to do."""
        jobs = {}
        trials: dict[str, WorkItem] = {}
        for index, (handle, paths) in enumerate(zip(handles, batch.jobs, strict=False)):
            if index % batch.sharing == 0:
                trials = {path: self.left[path] for path in paths if path in self.left}
            if trials:
                jobs[handle] = SubmittedJob(batch, index, trials)
        return jobs

    def watch(self, trials: Iterable[WorkItem]) -> None:
        """Has trials that no job of this driver has looked after by their files."""
        for trial in trials:
            self.waiting.pop(trial.path, None)
            self.watched[trial.path] = trial, clock.clock.monotonic() + self._watch_s

    def watch_lost(self) -> None:
        """Watches the trials that an error dropped in the middle of a turn."""
        placed = self.held() | self.watched.keys() | self.waiting.keys()
        self.watch([self.left[path] for path in self.left.keys() - placed])

    def take_due(self) -> list[WorkItem]:
        """Returns watched trials whose files are to be looked at; they are watched no more."""
        now = clock.clock.monotonic()
        due = [trial for trial, at in self.watched.values() if now >= at]
        for trial in due:
            del self.watched[trial.path]
        return due

    def put_back(self, trial: WorkItem) -> None:
        """Has a trial wait, ahead of all others."""
        self.waiting[trial.path] = trial
        self.waiting.move_to_end(trial.path, last=False)

    def finish(self, trial: WorkItem) -> None:
        """Forgets a trial for which nothing more is done."""
        self.left.pop(trial.path, None)
        self.waiting.pop(trial.path, None)


def batches_of(jobs: dict[str, SubmittedJob]) -> dict[str, Batch]:
    """Returns the batch of each job, by its handle."""
    return {handle: job.batch for handle, job in jobs.items()}
