"""What brings a study's trials to their end, whoever runs them: what all schedulers share.

What is said of a trial holds of an evaluation of a trained one, too (`sweeps.study.evaluation`).
"""

import abc
import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from sweeps.monitoring.progress import Progress
from sweeps.records import attempts, code_snapshot, outages, status, submissions
from sweeps.scheduling.retry_policy import Next, RetryPolicy
from sweeps.study.evaluation import Work
from sweeps.study.study import Study


class Interrupted(Exception):  # noqa: N818  (an order to stop, not an error)
    """The driver was told to stop; nothing is lost, and who runs the study again goes on."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What every scheduler of a run has: the study, who shows it, and the snapshot of its code.

    `stop_requested()` is asked at each turn. `check()` raises ValueError where no trial should
    begin; it may be called more than once, and ends before the first trial is handed out. began: of
    trials, the last attempt before the run where an earlier process began it (see RetryPolicy).
    """

    study: Study
    progress: Progress
    stop_requested: Callable[[], bool]
    snapshot: pathlib.Path
    check: Callable[[], None] = lambda: None
    began: Mapping[str, int] = dataclasses.field(default_factory=dict)


class Scheduler(abc.ABC):
    """Trials of a stage that are left, and turns until none is; scheduling stays from stage to
    stage.

    max_kills: see RetryPolicy. A subclass says what a turn does, which trials it takes care of, and
    what it does when told to stop.
    """

    def __init__(self, about: Run, max_kills: int = 0) -> None:
        self.about, self.study, self.progress = about, about.study, about.progress
        self.stop_requested = about.stop_requested
        self.root = self.study.directory
        self.environment = code_snapshot.environment(about.snapshot)
        max_attempts = self.study.settings["max_attempts"]
        self.policy = RetryPolicy(self.root, max_attempts, max_kills, about.began)
        self.left: dict[str, Work] = {}
        self.outage = outages.Outage(self.progress.say, self._stop_if_told)

    def run(self, trials: Sequence[Work]) -> None:
        """Returns when every trial is finished. Raises Interrupted when told to stop.

        Raises ValueError where none can be run at all, OSError from before the first turn: it may
        be called again then.
        """
        for trial in trials:
            if self.policy.begin(trial) not in status.COMPLETE:
                self.left[trial.path] = trial
        self._begin()
        while self._is_busy():
            try:
                self._stop_if_told()
                if not self._turn():
                    return
                self.outage.note_success()
            except OSError as error:
                self.outage.note_error(error)
                # What the error dropped in the middle of a turn is looked after by its files.
                self._watch([self.left[p] for p in self.left.keys() - self._taken_care_of()])
                self._hold_back()
            self._pause()

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of the engine, or of workers."""

    @abc.abstractmethod
    def _begin(self) -> None:
        """Takes up what is left; the first turn follows."""

    @abc.abstractmethod
    def _is_busy(self) -> bool:
        """Whether another turn is needed."""

    @abc.abstractmethod
    def _turn(self) -> bool:
        """Does what is due; returns False where nothing more can be done from here."""

    @abc.abstractmethod
    def _stop_if_told(self) -> None:
        """Raises Interrupted where told to stop."""

    @abc.abstractmethod
    def _taken_care_of(self) -> set[str]:
        """Returns the paths of trials that are pending, at work or watched."""

    @abc.abstractmethod
    def _watch(self, trials: Iterable[Work]) -> None:
        """Has trials that are in nobody's hands here looked after by their files."""

    @abc.abstractmethod
    def _put_back(self, trial: Work, outcome: str, error: str | None) -> None:
        """Says how a trial ended and makes it pending again, to be tried first."""

    def _hold_back(self) -> None:  # noqa: B027
        """Puts off what may fail again at once: after a turn that a file system cut short, and
        where an engine refuses jobs or one of them never started."""

    def _pause(self) -> None:  # noqa: B027
        """Waits between two turns."""

    def _is_told(self) -> bool:
        return self.stop_requested() or submissions.is_cancelled(self.root)

    def _over(
        self, trial: Work, outcome: str, error: str | None, tail: list[str] | None = None
    ) -> None:
        """Nothing more is done for a trial."""
        self.left.pop(trial.path, None)
        self.progress.ended(trial, outcome, error, tail)

    def _follow_up(self, trial: Work) -> None:
        """Does what a trial's files ask for once its worker or job is gone."""
        decision = self.policy.decide(trial)
        reason = attempts.last_error(self.root / trial.path).get("error") or decision.reason
        if decision.next is Next.WATCH:
            self._watch([trial])
        elif decision.next is Next.AGAIN:
            self._put_back(trial, "will be tried again", reason)
        elif decision.next is Next.GIVE_UP:
            failed, killed = self.policy.count_failures(trial)
            self._give_up(
                trial,
                f"{reason} (without progress: {failed} failures, {killed} kills)",
            )
        else:
            self._over(trial, decision.state, None)

    def _give_up(self, trial: Work, reason: str, tail: list[str] | None = None) -> None:
        """Writes down that a trial failed for good; `tail`: of its job's log, its own otherwise."""
        if self.policy.decide(trial).next is Next.GIVE_UP:  # no live worker has it
            with contextlib.suppress(OSError):
                status.write(self.root / trial.path, "failed", reason=reason)
        self._over(
            trial,
            "failed",
            reason,
            attempts.log_tail(self.root / trial.path) if tail is None else tail,
        )
