"""A study's trials as jobs of an engine, through `launchers.protocol.Launcher`.

Jobs outlive the driver; another driver adopts them from `<study>/jobs`. The engine is asked whether
a job is queued, running or gone, never how it ended: the trials' files say that.
"""

import collections
import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence

from sweeps.launchers.protocol import EngineError, Launcher, State
from sweeps.records import attempts, clock, lease, status, submissions
from sweeps.records.submissions import Batch
from sweeps.scheduling import engines
from sweeps.scheduling.retry_policy import Next
from sweeps.scheduling.scheduler import Interrupted, Run, Scheduler
from sweeps.study.evaluation import Work

# Running trials whose progress is read at each look, in turn: a bound on file operations.
_READ_AT_ONCE = 20
# Trials that somebody else holds are looked at when their lease may have passed.
_WATCH_S = 30.0
# Before the engine is tried again after it refused, or dropped, jobs.
_PAUSE_S = 60.0
# Kills at one step that a trial is forgiven: nodes vanish, and jobs count crashes themselves.
_MOST_KILLS = 10
_HOSTS_AVOIDED = 16
_SAY_AGAIN_S = 3600.0


@dataclasses.dataclass
class SubmittedJob:
    """A job that the engine has: its trials by path, and each one's last attempt before it.

    `before` is None where an earlier driver submitted it: it may have begun since.
    """

    batch: Batch
    index: int
    trials: dict[str, Work]
    before: dict[str, int] | None
    state: State = State.QUEUED


class JobScheduler(Scheduler):
    """Jobs at an engine, and what is left to submit.

    poll_s: how often the engine is asked, seconds. `stop_requested()` is asked as often. platform:
    what jobs must compute on, '' for whatever a node has.
    """

    def __init__(self, about: Run, launcher: Launcher, poll_s: float, platform: str = "") -> None:
        super().__init__(about, _MOST_KILLS)
        self.launcher = launcher
        self.poll_s, self.platform = poll_s, platform
        if lease_s := os.environ.get("ATTNPERF_LEASE_S"):
            self.environment["ATTNPERF_LEASE_S"] = lease_s
        self.name = str(self.study.settings["launcher"])
        self.pending: collections.deque[Work] = collections.deque()
        self.jobs: dict[str, SubmittedJob] = {}
        self.engines = engines.Engines(self.study.settings, self.root, launcher, self._say_once)
        # Batches of which nobody knows whether the engine has them.
        self.unsure: list[Batch] = []
        self.watched: dict[str, tuple[Work, float]] = {}
        self.avoid: dict[str, None] = {}
        self._running: dict[str, Work] = {}
        self._submitted = False
        self._said: dict[str, float] = {}
        self._wait_until = 0.0

    def _begin(self) -> None:
        self._adopt()
        held = self._held()
        self.pending.extend(trial for path, trial in self.left.items() if path not in held)

    def _is_busy(self) -> bool:
        return bool(self.pending or self.jobs or self.watched or self.unsure)

    def _turn(self) -> bool:
        self._ask_again()
        self._submit()
        self._look()
        # Trials whose job is gone while a worker still seems to live.
        now = clock.clock.monotonic()
        for path, (trial, due) in list(self.watched.items()):
            if now >= due:
                del self.watched[path]
                self._follow_up(trial)
        self.progress.tick()
        return True

    def _taken_care_of(self) -> set[str]:
        return self._held() | set(self.watched) | {trial.path for trial in self.pending}

    def _watch(self, trials: Iterable[Work]) -> None:
        for trial in trials:
            self.watched[trial.path] = trial, clock.clock.monotonic() + _WATCH_S

    def close(self) -> None:
        """Lets go of the engine."""
        self.launcher.close()

    def _hold_back(self) -> None:
        self._wait_until = clock.clock.monotonic() + _PAUSE_S

    def _pause(self) -> None:
        if self._is_busy():
            clock.clock.sleep(self.poll_s)

    def _stop_if_told(self) -> None:
        if submissions.is_cancelled(self.root):
            self.engines.cancel(_batches(self.jobs))
            raise Interrupted
        if self.stop_requested():
            self.progress.say(
                f"leaving; {len(self.jobs)} jobs go on at the engine. `resume` takes them up "
                "again, `cancel` ends them"
            )
            raise Interrupted

    def _adopt(self) -> None:
        """Takes up jobs of earlier drivers that hold unfinished trials and are not gone.

        Jobs of other engines are passed over: a trial's lease tells whether it still runs there.
        """
        found: dict[str, SubmittedJob] = {}
        unsure: list[Batch] = []
        for batch in submissions.batches(self.root):
            if batch.launcher != self.name or self.left.keys().isdisjoint(batch.paths):
                continue
            handles = batch.handles
            if handles is None:
                unsure.append(batch)
            else:
                found |= self._jobs_of(batch, handles)
        states = self.engines.status(_batches(found))
        self.unsure += unsure
        self.jobs |= {h: job for h, job in found.items() if states[h] is not State.GONE}
        if self.jobs:
            self.progress.say(f"{len(self.jobs)} jobs of an earlier driver are taken up")

    def _jobs_of(self, batch: Batch, handles: Sequence[str]) -> dict[str, SubmittedJob]:
        """Returns {handle: job} of a recorded batch for jobs with trials that are left to do."""
        found = {}
        for index, (handle, paths) in enumerate(zip(handles, batch.jobs, strict=False)):
            trials = {path: self.left[path] for path in paths if path in self.left}
            if trials:
                found[handle] = SubmittedJob(batch, index, trials, None)
        return found

    def _ask_again(self) -> None:
        """Asks the engine for batches whose submission was cut short before it was recorded."""
        for batch in list(self.unsure):
            try:
                handles = self.engines.of(batch).find(batch)
            except EngineError as error:
                self._say_once(f"{error}; nothing is submitted twice, so this waits")
                continue
            batch.record(handles or [])
            self.unsure.remove(batch)
            self.jobs |= self._jobs_of(batch, handles or [])
            free = batch.paths & self.left.keys() - self._held()
            self.pending.extend(self.left[path] for path in sorted(free))

    def _held(self) -> set[str]:
        """Returns trials that a job has, or may have."""
        held = [job.trials.keys() for job in self.jobs.values()]
        return set().union(*held, *(batch.paths for batch in self.unsure))

    def _submit(self) -> None:
        doubtful = sum(batch.size for batch in self.unsure)
        free = self.launcher.capacity() - len(self.jobs) - doubtful
        per_job = self.study.settings[self.name]["trials_per_job"]
        wanted = -(-len(self.pending) // per_job)
        # Few large batches: an engine takes an array of a hundred as easily as one job.
        waits = clock.clock.monotonic() < self._wait_until
        if waits or not wanted or free < min(wanted, max(1, len(self.jobs) // 10)):
            return
        # Trials of a job share a program, so that it compiles once.
        by_program: dict[object, list[Work]] = {}
        for _ in range(min(len(self.pending), free * per_job)):
            trial = self.pending.popleft()
            by_program.setdefault(trial.program, []).append(trial)
        wanted_jobs = [
            tuple(same[start : start + per_job])
            for same in by_program.values()
            for start in range(0, len(same), per_job)
        ]
        for extra in wanted_jobs[free:]:
            self.pending.extendleft(reversed(extra))
        self._submit_jobs(wanted_jobs[:free])

    def _submit_jobs(self, groups: list[tuple[Work, ...]]) -> None:
        paths = [tuple(trial.path for trial in group) for group in groups]
        avoid = tuple(self.avoid)[-_HOSTS_AVOIDED:]
        began = {trial.path: self.policy.began[trial.path] for group in groups for trial in group}
        batch = submissions.new(
            self.root,
            self.name,
            paths,
            self.environment,
            avoid,
            self.platform,
            began,
            self.launcher.place,
        )
        # Whatever happens until its handles are on disk: the engine is asked by the batch's name.
        self.unsure.append(batch)
        try:
            handles = self.launcher.submit(batch)
        except EngineError as error:
            if not self._submitted and not self.jobs:
                raise ValueError(f"{self.name} does not take the jobs: {error}") from error
            self._say_once(f"{error}; tried again in a minute")
            self.avoid.clear()  # there may be no other host
            self._hold_back()
            return
        self._submitted = True
        batch.record(handles)
        self.unsure.remove(batch)
        for index, (handle, group) in enumerate(zip(handles, groups, strict=True)):
            before = {trial.path: lease.latest(self.root / trial.path) for trial in group}
            trials = {trial.path: trial for trial in group}
            self.jobs[handle] = SubmittedJob(batch, index, trials, before)
        self.progress.say(f"{len(handles)} jobs submitted as {batch.name}")

    def _look(self) -> None:
        if not self.jobs:
            return
        states = self.engines.status(_batches(self.jobs))
        if State.UNKNOWN in states.values():
            self._say_once("an engine does not answer; its jobs are left as they are")
        for handle, state in states.items():
            job = self.jobs[handle]
            if state is State.GONE:
                del self.jobs[handle]
                self._gone(job)
            elif state is State.RUNNING and job.state is not State.RUNNING:
                for trial in job.trials.values():
                    self.progress.started(trial, f"{self.name} job {handle}")
                    self._running[trial.path] = trial
            if state in (State.RUNNING, State.QUEUED):
                job.state = state
        for path in list(itertools.islice(self._running, _READ_AT_ONCE)):
            trial = self._running.pop(path)
            # One file operation, not ten: the engine says that it runs.
            found = status.recorded(self.root / path)
            if found["state"] in ("pending", "running"):
                self.progress.looked(trial, found)
                self._running[path] = trial

    def _gone(self, job: SubmittedJob) -> None:
        refusal = job.batch.refusal(job.index)
        if refusal is not None:
            self.avoid[refusal["host"]] = None
        # As far as is known the job has begun an attempt at a trial.
        before = (job.before or {}).items()
        begun = job.before is None or any(lease.latest(self.root / p) != n for p, n in before)
        for trial in job.trials.values():
            self._running.pop(trial.path, None)
            if self.policy.decide(trial).next is Next.AGAIN and not begun:
                self._ended_without_attempt(job, trial, refusal["reason"] if refusal else None)
            else:
                self._follow_up(trial)

    def _ended_without_attempt(self, job: SubmittedJob, trial: Work, reason: str | None) -> None:
        """A job ended, or never began, without a trace in any of its trials."""
        started = job.batch.has_started(job.index)
        if not started:
            self._hold_back()
        count = self.policy.count_unrecorded(trial, reason is not None or not started)
        tail = attempts.tail(job.batch.log(job.index))
        reason = reason or "its job ended without claiming it"
        if self.policy.may_retry(trial):
            self._put_back(trial, "will be tried again", reason)
            return
        self._give_up(
            trial, f"{reason} ({count} jobs; the last one's log: {job.batch.log(job.index)})", tail
        )

    def _put_back(self, trial: Work, outcome: str, error: str | None) -> None:
        self.progress.ended(trial, outcome, error)
        self.pending.appendleft(trial)

    def _say_once(self, text: str) -> None:
        """Says something that stays true for a while, once an hour."""
        now = clock.clock.monotonic()
        if now - self._said.get(text, -math.inf) > _SAY_AGAIN_S:
            self._said[text] = now
            self.progress.say(text)


def _batches(jobs: Mapping[str, SubmittedJob]) -> dict[str, Batch]:
    """Returns the batch of each job, by its handle."""
    return {handle: job.batch for handle, job in jobs.items()}
