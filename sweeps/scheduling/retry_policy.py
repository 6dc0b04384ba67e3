"""What follows when whoever had a trial is gone: decided by the trial's files alone."""

import enum
import pathlib
from typing import NamedTuple

from sweeps.records import attempts, lease, status
from sweeps.study.evaluation import Work

# Jobs of one trial that never ran or were refused: a cluster has many nodes, but not for ever.
_MOST_EXCUSED = 20


class Next(enum.Enum):
    """What is to be done with a trial."""

    NOTHING = "finished"
    AGAIN = "again"
    WATCH = "a live worker has it"
    GIVE_UP = "given up"


class Decision(NamedTuple):
    """`state` is the trial's; `reason` is for people."""

    next: Next
    state: str
    reason: str | None


class RetryPolicy:
    """Counts failures and decides; failures before this driver's run are forgiven.

    Preemptions never count, nor does a crash after progress: see `attempts.fruitless`. Attempts
    that were killed without a word count up to `max_kills`: nodes vanish, no trial's fault.
    """

    def __init__(self, root: pathlib.Path, max_attempts: int, max_kills: int = 0) -> None:
        self._root, self._max_attempts = root, max_attempts
        self._max_kills = max(max_kills, max_attempts)
        # Of each trial as this run began: its last attempt, fruitless failures and kills.
        self._began: dict[str, tuple[int, int, int]] = {}
        # Of each trial: its last attempt then, and how many ends followed that it knows nothing of.
        self._unrecorded: dict[str, tuple[int, int]] = {}
        self._excused: dict[str, int] = {}

    def begin(self, trial: Work) -> str:
        """Notes where a trial stands as this run begins; returns its state."""
        directory = self._root / trial.path
        state = str(status.read(directory)["state"])
        if state not in ("pending", *status.COMPLETE) or lease.latest(directory):
            self._began[trial.path] = lease.latest(directory), *attempts.fruitless(directory)
        return state

    def count_unrecorded(self, trial: Work, excused: bool = False) -> int:
        """Counts an end of which the trial's files know nothing; returns how many there were.

        `excused` ends are those of jobs that never ran, or that a node refused.
        """
        if excused:
            self._excused[trial.path] = self._excused.get(trial.path, 0) + 1
            return self._excused[trial.path]
        latest = lease.latest(self._root / trial.path)
        at, count = self._unrecorded.get(trial.path, (latest, 0))
        self._unrecorded[trial.path] = latest, count + 1 if at == latest else 1
        return self._unrecorded[trial.path][1]

    def may_retry(self, trial: Work) -> bool:
        """Whether a trial that failed or was killed gets another attempt in this run."""
        directory = self._root / trial.path
        latest = lease.latest(directory)
        first, failed_before, killed_before = self._began.get(trial.path, (0, 0, 0))
        # A person who runs the study again has looked at earlier failures.
        if latest > first and not attempts.last_error(directory).get("retry", True):
            return False
        failed, killed = attempts.fruitless(directory)
        failed, killed = failed - failed_before, killed - killed_before
        at, unrecorded = self._unrecorded.get(trial.path, (latest, 0))
        failed += unrecorded if at == latest else 0
        return (
            failed < self._max_attempts
            and failed + killed < self._max_kills
            and self._excused.get(trial.path, 0) < _MOST_EXCUSED
        )

    def decide(self, trial: Work) -> Decision:
        """Returns what follows for a trial that its worker or job has left."""
        directory = self._root / trial.path
        found = status.read(directory)
        state, reason = str(found["state"]), found["reason"]
        if state in status.COMPLETE:
            return Decision(Next.NOTHING, state, reason)
        if state == "running":
            return Decision(Next.WATCH, state, reason)
        if lease.latest(directory) and lease.is_alive(lease.last(directory)):
            return Decision(Next.WATCH, "running", "claimed, not yet training")
        if attempts.last_error(directory)["outcome"] == "preempted" or self.may_retry(trial):
            return Decision(Next.AGAIN, state, reason)
        return Decision(Next.GIVE_UP, "failed", reason)
