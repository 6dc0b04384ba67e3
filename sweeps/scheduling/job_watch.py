"""A look at the jobs that an engine has: how far their trials are, which are gone or silent."""

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
from sweeps.records import clock, lease, status
from sweeps.scheduling.engines import Engines
from sweeps.scheduling.follow_up import FollowUp
from sweeps.scheduling.places import Places, SubmittedJob, batches_of
from sweeps.scheduling.retry_policy import Next
from sweeps.scheduling.submitter import Submitter
from sweeps.study.study import Study

# Jobs whose trials' progress is read at each look, in turn: a bound on file operations.
_READ_AT_ONCE = 20


class JobWatch:
    """Looks at jobs; trials of those that are gone are followed up."""

    def __init__(
        self,
        study: Study,
        progress: Progress,
        launcher: Launcher,
        engines: Engines,
        places: Places,
        submitter: Submitter,
        follow_up: FollowUp,
    ) -> None:
        self._root, self._progress, self._places = study.directory, progress, places
        self._is_this_host, self._engines = launcher.is_this_host, engines
        self._submitter, self._follow_up = submitter, follow_up
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
                self._follow_up.follow_up_job(job, held, claimed)
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
            self._follow_up.finish(trial, record["state"], None)
        elif record["state"] != "failed":
            self._progress.looked(trial, record)
        elif self._follow_up.policy.decide(trial)[0] is Next.GIVE_UP:
            self._follow_up.follow_up(trial)

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
