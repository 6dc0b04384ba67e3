"""What follows for a trial whose job is gone: done, tried again, watched, or given up."""

import contextlib

from sweeps.launchers.protocol import Launcher
from sweeps.monitoring.progress import Progress
from sweeps.records import attempts, status
from sweeps.scheduling.places import Places, SubmittedJob
from sweeps.scheduling.retry_policy import Next, RetryPolicy
from sweeps.scheduling.submitter import Submitter
from sweeps.study.study import Study
from sweeps.study.trial import WorkItem

# Kills at one step that a trial is forgiven on an engine: nodes vanish.
_MOST_KILLS = 10


class FollowUp:
    """Looks after the trials of jobs that are gone.

    policy: decides by a trial's files whether it gets another attempt.
    """

    def __init__(
        self,
        study: Study,
        progress: Progress,
        launcher: Launcher,
        places: Places,
        submitter: Submitter,
    ) -> None:
        self._root, self._progress, self._places = study.directory, progress, places
        self._is_this_host, self._submitter = launcher.is_this_host, submitter
        self._max_attempts: int = study.settings["max_attempts"]
        kills = 0 if launcher.is_this_host else _MOST_KILLS
        self.policy = RetryPolicy(study.directory, self._max_attempts, kills)
        self._died_early = 0

    def follow_up_job(self, job: SubmittedJob, held: set[str], claimed: set[str]) -> None:
        """Looks after the trials of a job that is gone.

        held: trials that other jobs have, or may have. claimed: trials that they are known to have.
        """
        places = self._places
        if places.left.keys().isdisjoint(job.trials):
            return
        job.read_claims()
        refusal = job.batch.refusal(job.index)
        if refusal is not None:
            self._submitter.avoid[refusal["host"]] = None
        if self._is_this_host:
            self._bound_early_deaths(job, refusal)
        for path, trial in job.trials.items():
            if path not in places.left or path in places.watched or path in claimed:
                continue
            if path in job.claimed:
                self.follow_up(trial)
            elif not job.has_ended and (job.offset or self._is_this_host):
                places.waiting.setdefault(path, trial)
            elif path not in held and path not in places.waiting:
                self._follow_up_unclaimed(job, trial, refusal["reason"] if refusal else None)

    def _bound_early_deaths(self, job: SubmittedJob, refusal: dict[str, str] | None) -> None:
        """Raises ValueError if this host can run no job, or its jobs end before they claim."""
        # A driver that is killed while it submits leaves jobs that never start.
        if job.offset or job.batch.has_started(job.index):
            self._died_early = 0 if job.offset else self._died_early + 1
        if refusal is not None or self._died_early >= self._max_attempts:
            log = job.batch.log(job.index)
            tail = "\n".join(attempts.tail(log))
            raise ValueError(f"a job ended before it claimed a trial; {log} ends with\n{tail}")

    def _follow_up_unclaimed(self, job: SubmittedJob, trial: WorkItem, reason: str | None) -> None:
        """Looks after a trial whose job ended, or never began, without a trace in the trial."""
        if self.policy.decide(trial)[0] is not Next.AGAIN:
            self.follow_up(trial)
            return
        has_started = job.batch.has_started(job.index)
        if not has_started:
            self._submitter.hold_back()
        count = self.policy.count_unrecorded(trial, reason is not None or not has_started)
        log, reason = job.batch.log(job.index), reason or "its job ended without claiming it"
        if self.policy.may_retry(trial):
            self._put_back(trial, reason)
        else:
            self._give_up(
                trial, f"{reason} ({count} jobs; the last one's log: {log})", attempts.tail(log)
            )

    def follow_up(self, trial: WorkItem) -> None:
        """Does what a trial's files ask for once its job is gone."""
        decision, record = self.policy.decide(trial)
        reason = attempts.last_error(self._root / trial.path).get("error") or record["reason"]
        if decision is Next.WATCH:
            self._places.watch([trial])
        elif decision is Next.AGAIN:
            self._put_back(trial, reason)
        elif decision is Next.GIVE_UP:
            failed, killed = self.policy.count_failures(trial)
            counts = f"(without progress: {failed} failures, {killed} kills)"
            self._give_up(trial, f"{reason} {counts}", attempts.log_tail(self._root / trial.path))
        else:
            self.finish(trial, record["state"], None)

    def _put_back(self, trial: WorkItem, reason: str | None) -> None:
        self._progress.ended(trial, "pending", reason)
        self._places.put_back(trial)

    def _give_up(self, trial: WorkItem, reason: str, tail: list[str]) -> None:
        """Writes down that a trial failed for good. Raises ValueError if the disk is full."""
        if self.policy.decide(trial)[0] is Next.GIVE_UP:  # no live process has it
            with contextlib.suppress(OSError):
                status.write(self._root / trial.path, "failed", reason=reason)
        is_disk_full = attempts.last_error(self._root / trial.path).get("is_disk_full", False)
        self.finish(trial, "failed", reason, [] if is_disk_full else tail)
        if is_disk_full:
            raise ValueError(reason)  # the other trials would fail, too

    def finish(
        self, trial: WorkItem, state: str, error: str | None, tail: list[str] | None = None
    ) -> None:
        """Shows how a trial ended; nothing more is done for it."""
        self._places.finish(trial)
        self._progress.ended(trial, state, error, tail)
