"""The jobs that an engine has: how far their trials are, which are gone or silent, what follows.

What follows for a trial whose job is gone: it is done, tried again, watched, or given up.
"""

import collections
import contextlib
import itertools
import os
import pathlib
import signal
from collections.abc import Iterable

from sweeps.launchers.protocol import Launcher, State
from sweeps.monitoring import view
from sweeps.monitoring.progress import Progress
from sweeps.monitoring.survey import EngineJob
from sweeps.records import attempts, clock, lease, status
from sweeps.scheduling.engines import Engines
from sweeps.scheduling.places import Places, SubmittedJob, batches_of
from sweeps.scheduling.retry_policy import Next, RetryPolicy
from sweeps.scheduling.submitter import Submitter
from sweeps.study.study import Study
from sweeps.study.trial import WorkItem

# Jobs whose trials' progress is read at each look, in turn: a bound on file operations.
_READ_AT_ONCE = 20
# Kills at one step that a trial is forgiven on an engine: nodes vanish.
_MOST_KILLS = 10


class JobWatch:
    """Looks at jobs, and after the trials of those that are gone.

    policy: decides by a trial's files whether it gets another attempt.
    """

    def __init__(
        self,
        study: Study,
        progress: Progress,
        launcher: Launcher,
        engines: Engines,
        places: Places,
        submitter: Submitter,
    ) -> None:
        self._root, self._progress, self._places = study.directory, progress, places
        self._is_this_host, self._engines = launcher.is_this_host, engines
        self._submitter = submitter
        self._max_attempts: int = study.settings["max_attempts"]
        kills = 0 if launcher.is_this_host else _MOST_KILLS
        self.policy = RetryPolicy(study.directory, self._max_attempts, kills)
        self._died_early = 0
        self._queue_warn_s = 3600.0 * study.settings["queue_warn_hours"]
        self._running: collections.OrderedDict[str, None] = collections.OrderedDict()
        self._overdue: set[str] = set()
        self._look_for_silent_at = 0.0
        # Looks at which the last heartbeat of an attempt was the same, by (attempt, its time).
        self._unchanged: dict[tuple[pathlib.Path, int], int] = {}

    def look(self) -> None:
        """Asks the engines for all jobs, and reads the progress of some."""
        jobs = self._places.jobs
        if not jobs:
            return
        states = self._engines.status(batches_of(jobs))
        if not self._is_this_host:
            self._say_overdue(handle for handle, state in states.items() if state is State.QUEUED)
        gone = []
        for handle, state in states.items():
            if state is State.GONE:
                gone.append(jobs.pop(handle))
                self._running.pop(handle, None)
            elif state is State.RUNNING and handle not in self._running:
                self._running[handle] = None
                job = jobs[handle]
                if len(job.trials) == 1:  # its claims need not be read
                    self._submitter.note_started(handle, job, job.trials)
        if gone:
            held, claimed = self._places.held(), self._places.claimed()
            for job in gone:
                self._follow_up_job(job, held, claimed)
        for handle in list(itertools.islice(self._running, _READ_AT_ONCE)):
            self._running.move_to_end(handle)
            self._look_at(handle, jobs[handle])
        if self._is_this_host:
            self.end_silent()

    def _say_overdue(self, handles: Iterable[str]) -> None:
        """Says once of each job that it is queued for longer than config.queue_warn_hours."""
        jobs = self._places.jobs
        new = {handle: jobs[handle] for handle in handles if handle not in self._overdue}
        waits = self._progress.survey.queued_s
        overdue = {
            handle: EngineJob(job.batch, job.index, "waiting", seconds)
            for handle, job in new.items()
            if (seconds := waits(job.batch, job.index)) > self._queue_warn_s > 0
        }
        batches = {handle: job.batch for handle, job in overdue.items()}
        for handle, reason in self._engines.queued(batches).items():
            overdue[handle].reason = reason
            self._overdue.add(handle)
        for line in view.queue(self._root, overdue, self._queue_warn_s):
            self._progress.say(line)

    def _look_at(self, handle: str, job: SubmittedJob) -> None:
        """Shows how far the trials are that a job has claimed: first those that it had.

        Of those that it has claimed since, all but the last have often ended.
        """
        for path in list(job.at_work):
            self._look_at_trial(path)
        if len(job.trials) > 1:
            for path in job.read_claims():
                self._submitter.note_claim(handle, job, path)
                self._look_at_trial(path)
        job.claimed = [path for path in job.claimed if path in self._places.left]

    def _look_at_trial(self, path: str) -> None:
        trial = self._places.left.get(path)
        if trial is None:
            return
        # One file operation, not ten: the engine says that it runs.
        record = status.recorded(self._root / path)
        if record["state"] in status.COMPLETE:
            self._finish(trial, record["state"], None)
        elif record["state"] != "failed":
            self._progress.looked(trial, record)
        elif self.policy.decide(trial)[0] is Next.GIVE_UP:
            self.follow_up(trial)

    def end_silent(self) -> None:
        """Kills processes of this host whose heartbeat did not change for as long as their lease.

        The looks are one heartbeat apart, and the looks count, not the time. So neither a host that
        slept nor a clock that was set ends a job: each costs one look, and a lease has several.
        """
        now = clock.clock.monotonic()
        if now < self._look_for_silent_at:
            return
        self._look_for_silent_at = now + lease.HEARTBEAT_EVERY_S
        before, self._unchanged = self._unchanged, {}
        for path in {path for job in self._places.jobs.values() for path in job.at_work}:
            attempt = lease.last(self._root / path)
            record, pid = lease.unended(attempt), lease.process_here(attempt)
            if pid is None:
                continue
            heartbeat = attempt / lease.HEARTBEAT
            beat = attempt, os.stat(heartbeat).st_mtime_ns if heartbeat.exists() else 0
            self._unchanged[beat] = looks = before.get(beat, -1) + 1
            if looks * lease.HEARTBEAT_EVERY_S < record["expires_after_s"]:
                continue
            self._progress.say(f"{path}: its job has been silent for too long and is ended")
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _follow_up_job(self, job: SubmittedJob, held: set[str], claimed: set[str]) -> None:
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
            self._finish(trial, record["state"], None)

    def _put_back(self, trial: WorkItem, reason: str | None) -> None:
        self._progress.ended(trial, "pending", reason)
        self._places.put_back(trial)

    def _give_up(self, trial: WorkItem, reason: str, tail: list[str]) -> None:
        """Writes down that a trial failed for good. Raises ValueError if the disk is full."""
        if self.policy.decide(trial)[0] is Next.GIVE_UP:  # no live process has it
            with contextlib.suppress(OSError):
                status.write(self._root / trial.path, "failed", reason=reason)
        is_disk_full = attempts.last_error(self._root / trial.path).get("is_disk_full", False)
        self._finish(trial, "failed", reason, [] if is_disk_full else tail)
        if is_disk_full:
            raise ValueError(reason)  # the other trials would fail, too

    def _finish(
        self, trial: WorkItem, state: str, error: str | None, tail: list[str] | None = None
    ) -> None:
        """Shows how a trial ended; nothing more is done for it."""
        self._places.finish(trial)
        self._progress.ended(trial, state, error, tail)
