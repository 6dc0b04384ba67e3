"""What follows when whoever had a trial is gone: decided by the trial's files alone."""

import enum
import pathlib
from collections import Counter
from typing import Any

from sweeps.records import attempts, lease, status
from sweeps.study.trial import WorkItem

# Jobs of one trial that never ran or were refused: a cluster has many nodes, but not for ever.
_MOST_EXCUSED = 20


class Next(enum.Enum):
    """What is to be done with a trial."""

    NOTHING = "finished"
    AGAIN = "again"
    WATCH = "a live job has it"
    GIVE_UP = "given up"


class RetryPolicy:
    """Counts a trial's failures in one run of its study, and decides.

    See `attempts.count_failures`. Attempts that were killed without a word count up to `max_kills`:
    nodes vanish, no trial's fault.
    """

    def __init__(self, root: pathlib.Path, max_attempts: int, max_kills: int = 0) -> None:
        self._root, self._max_attempts = root, max_attempts
        self._max_kills = max(max_kills, max_attempts)
        # Of each trial, its last attempt before this run.
        self._before: dict[str, int] = {}
        # Jobs that left no attempt, by trial, kind of end and step: progress begins the count anew.
        self._unrecorded: Counter[tuple[str, str, int]] = Counter()

    def begin(self, trial: WorkItem) -> str:
        """Notes where a trial stands as this run begins; returns its state."""
        directory = self._root / trial.path
        self._before.setdefault(trial.path, lease.latest(directory))
        return str(status.read(directory)["state"])

    def count_unrecorded(self, trial: WorkItem, excused: bool = False) -> int:
        """Counts an end of which the trial's files know nothing; returns how many there were.

        `excused` ends are those of jobs that never ran, or that a node refused.
        """
        key = self._at(trial, "excused" if excused else "failed")
        self._unrecorded[key] += 1
        return self._unrecorded[key]

    def _at(self, trial: WorkItem, kind: str) -> tuple[str, str, int]:
        """Returns the key of a trial's unrecorded ends at the step where it is."""
        return trial.path, kind, status.recorded(self._root / trial.path)["global_step"]

    def count_failures(self, trial: WorkItem) -> tuple[int, int]:
        """Returns how often a trial failed in this run, and how often it was killed, since it last
        made progress."""
        ends = attempts.ends(self._root / trial.path, self._before.get(trial.path, 0))
        failed, killed = attempts.count_failures(ends)
        return failed + self._unrecorded[self._at(trial, "failed")], killed

    def may_retry(self, trial: WorkItem) -> bool:
        """Whether a trial that is not finished gets another attempt in this run."""
        directory = self._root / trial.path
        # A person who runs the study again has looked at earlier failures.
        is_new = lease.latest(directory) > self._before.get(trial.path, 0)
        if is_new and not attempts.last_error(directory).get("retry", True):
            return False
        failed, killed = self.count_failures(trial)
        return (
            failed < self._max_attempts
            and failed + killed < self._max_kills
            and self._unrecorded[self._at(trial, "excused")] < _MOST_EXCUSED
        )

    def decide(self, trial: WorkItem) -> tuple[Next, dict[str, Any]]:
        """Returns what follows for a trial that its job has left, and the trial's status."""
        directory = self._root / trial.path
        record = status.read(directory)
        if record["state"] in status.COMPLETE:
            return Next.NOTHING, record
        # An attempt that is alive may have claimed the trial and not begun to train.
        if record["state"] == "running" or lease.is_alive(lease.last(directory)):
            return Next.WATCH, record
        return Next.AGAIN if self.may_retry(trial) else Next.GIVE_UP, record
