"""A study's trials as jobs of a launcher: submitted, looked at, followed up until none is left.

Jobs outlive a driver that is killed; another driver adopts them from `<study>/jobs`. The engine is
asked whether a job is queued, running or gone, never how it ended: the trials' files say that. What
is said of a trial holds of an evaluation of a trained one, too (`sweeps.scheduling.downstream`).
"""

import collections
import contextlib
import dataclasses
import itertools
import math
import os
import pathlib
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sweeps.launchers import table as launchers
from sweeps.launchers.protocol import EngineError, Launcher, State
from sweeps.monitoring import view
from sweeps.monitoring.progress import Progress
from sweeps.monitoring.survey import EngineJob
from sweeps.records import attempts, clock, code_snapshot, disk, lease, outages, status, submissions
from sweeps.records.submissions import Batch
from sweeps.scheduling import engines
from sweeps.scheduling.retry_policy import Next, RetryPolicy
from sweeps.study.study import Study
from sweeps.study.trial import Task, jobs_of
from workloads import catalog

# Jobs whose trials' progress is read at each look, in turn: a bound on file operations.
_READ_AT_ONCE = 20
# Between two looks at jobs whose launcher has no poll_seconds.
_POLL_S = 0.5
# Trials that somebody else holds are looked at when their lease may have passed.
_WATCH_S, _WATCH_HERE_S = 30.0, 5.0
# Before the engine is tried again after it refused, or dropped, jobs.
_PAUSE_S = 60.0
# Trials that jobs of this host share: each lost job has its list written anew, for its successor.
_MOST_SHARED = 1000
# Kills at one step that a trial is forgiven on an engine: nodes vanish.
_MOST_KILLS = 10
_HOSTS_AVOIDED = 16
_SAY_AGAIN_S = 3600.0
# glibc would give every large buffer of a step back to the kernel and fault it in again for the
# next: keeping them saves 15 % of a digits_vit step (44.8 to 38.1 ms on one core).
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


class Interrupted(KeyboardInterrupt):
    """The driver was told to stop; nothing is lost, and who runs the study again goes on."""


@dataclasses.dataclass
class SubmittedJob:
    """A job that the engine has, and the trials that it may claim, by path.

    claimed: those that it has claimed and that are left. has_ended: it has tried to claim all of
    them. offset: where the part of its claims ends that was read; 0: it has claimed none.
    """

    batch: Batch
    index: int
    trials: dict[str, Task]
    claimed: list[str] = dataclasses.field(default_factory=list)
    has_ended: bool = False
    offset: int = 0

    @property
    def at_work(self) -> list[str]:
        """The trials that the job trains, or may train: of a single one it need not say so."""
        return self.claimed if len(self.trials) > 1 else list(self.trials)

    def read_claims(self) -> list[str]:
        """Returns what the job has claimed since this was asked last."""
        lines, self.offset = self.batch.claims(self.index, self.offset)
        self.has_ended |= submissions.CLAIMS_END in lines
        added = [path for path in dict.fromkeys(lines) if path in self.trials]
        self.claimed += added
        return added


class Scheduler:
    """Jobs at an engine, and trials that are left; it stays from stage to stage.

    `stop_requested()` is asked at each turn. platform: what jobs must compute on, '' for whatever a
    node has. changed: settings of the study that are not those of its study.json.
    """

    def __init__(
        self,
        study: Study,
        progress: Progress,
        stop_requested: Callable[[], bool],
        launcher: Launcher,
        platform: str = "",
        changed: Mapping[str, Any] | None = None,
    ) -> None:
        self.study, self.progress, self.stop_requested = study, progress, stop_requested
        self.root, self.launcher, self.platform = study.directory, launcher, platform
        self._changed = changed
        self.name = str(study.settings["launcher"])
        keys = study.settings[self.name]
        self.poll_s = float(keys.get("poll_seconds", _POLL_S))
        # None: the trials of a stage are shared by as many jobs as there may be.
        self._trials_per_job: int | None = keys.get("trials_per_job")
        row = catalog.get(study.workload)
        modules = (row.name, row.factory, row.data) if catalog.module_of(row.name) else ()
        snapshot = code_snapshot.take(self.root, modules)
        self.environment = _MALLOC | code_snapshot.environment(snapshot)
        if lease_s := os.environ.get("ATTNPERF_LEASE_S"):
            self.environment["ATTNPERF_LEASE_S"] = lease_s
        kills = 0 if launcher.is_this_host else _MOST_KILLS
        self.policy = RetryPolicy(self.root, study.settings["max_attempts"], kills)
        self.engines = engines.Engines(study.settings, self.root, launcher, self._say_once)
        self.outage = outages.Outage(progress.say, self._stop_if_told)
        self.left: dict[str, Task] = {}
        self.pending: collections.OrderedDict[str, Task] = collections.OrderedDict()
        self.jobs: dict[str, SubmittedJob] = {}
        # Batches of which nobody knows whether the engine has them.
        self.unsure: list[Batch] = []
        self.watched: dict[str, tuple[Task, float]] = {}
        self.avoid: dict[str, None] = {}
        self._running: collections.OrderedDict[str, None] = collections.OrderedDict()
        self._submitted = False
        self._died_early = 0
        self._said: dict[str, float] = {}
        self._overdue: set[str] = set()
        self._wait_until = self._look_for_silent_at = 0.0
        # Looks at which the last heartbeat of an attempt was the same, by (attempt, its time).
        self._unchanged: dict[tuple[pathlib.Path, int], int] = {}
        self._back_until = -math.inf
        self._ended: set[pathlib.Path] = set()  # attempts, by this driver: such a kill counts

    def run(self, trials: Sequence[Task]) -> None:
        """Returns when every trial is finished. Raises Interrupted when told to stop.

        Raises ValueError where none can be run at all or a disk is full, OSError from before the
        first turn: it may be called again then.
        """
        for trial in trials:
            if self.policy.begin(trial) not in status.COMPLETE:
                self.left[trial.path] = trial
        self._adopt()
        self._queue(self.left)
        while self._is_busy():
            try:
                self._stop_if_told()
                self._turn()
                self.outage.note_success()
            except OSError as error:
                if self.launcher.is_this_host and disk.is_full(error):
                    raise ValueError(disk.named(error, self.root)) from error
                self.outage.note_error(error)
                # What the error dropped in the middle of a turn is looked after by its files.
                taken = self._held() | self.watched.keys() | self.pending.keys()
                self._watch([self.left[path] for path in self.left.keys() - taken])
                self._hold_back()
            if self._is_busy():
                self._sleep()

    def _sleep(self) -> None:
        """Sleeps until the next turn; notes if this host slept, too, or its clock was set."""
        before = clock.clock.time()
        clock.clock.sleep(self.poll_s)
        if abs(clock.clock.time() - before - self.poll_s) > lease.HEARTBEAT_EVERY_S:
            self._unchanged.clear()
            self._back_until = clock.clock.monotonic() + lease.HEARTBEAT_EVERY_S

    def _is_busy(self) -> bool:
        return bool(self.pending or self.jobs or self.watched or self.unsure)

    def _turn(self) -> None:
        self._ask_again()
        self._submit()
        self._look()
        now = clock.clock.monotonic()
        for path, (trial, due) in list(self.watched.items()):
            if now >= due:
                del self.watched[path]
                self._follow_up(trial)
        self.progress.tick()

    def _watch(self, trials: Iterable[Task]) -> None:
        """Has trials that no job of this driver has looked after by their files."""
        after_s = _WATCH_HERE_S if self.launcher.is_this_host else _WATCH_S
        for trial in trials:
            self.pending.pop(trial.path, None)
            self.watched[trial.path] = trial, clock.clock.monotonic() + after_s

    def _hold_back(self) -> None:
        """Puts off what may fail again at once: after a turn that a file system cut short, and
        where an engine refuses jobs or one of them never started."""
        self._wait_until = clock.clock.monotonic() + _PAUSE_S

    def wait_for_lock(self, holder: str) -> None:
        """Says once who holds the lock of the study's plan. Raises Interrupted when told to
        stop."""
        self._stop_if_told()
        self._say_once(holder)

    def _stop_if_told(self) -> None:
        is_cancelled = submissions.is_cancelled(self.root)
        if not (is_cancelled or self.stop_requested()):
            return
        if self.launcher.is_this_host:
            self.progress.say("stopping: jobs save the trials at hand")
        elif not is_cancelled:
            self.progress.say(
                f"leaving; {len(self.jobs)} jobs go on at the engine. `resume` takes them up "
                "again, `cancel` ends them"
            )
        if is_cancelled or self.launcher.is_this_host:
            self.engines.cancel(_batches(self.jobs))
        raise Interrupted("interrupted; the same command goes on with what is left")

    # What the engine is given.

    def _adopt(self) -> None:
        """Takes up jobs of earlier drivers that hold unfinished trials and are not gone.

        Jobs of other engines are passed over: a trial's lease tells whether it still runs there.
        """
        jobs: dict[str, SubmittedJob] = {}
        for batch in submissions.batches(self.root, self._say_once):
            if batch.launcher != self.name or self.left.keys().isdisjoint(batch.paths):
                continue
            handles = batch.handles
            if handles is None:
                self.unsure.append(batch)
            else:
                jobs |= self._jobs_of(batch, handles)
        states = self.engines.status(_batches(jobs))
        adopted = {handle: job for handle, job in jobs.items() if states[handle] is not State.GONE}
        self.jobs |= adopted
        if adopted:
            self.progress.say(f"{len(adopted)} jobs of an earlier driver are taken up")

    def _jobs_of(self, batch: Batch, handles: Sequence[str]) -> dict[str, SubmittedJob]:
        """Returns {handle: job} of a recorded batch for jobs with trials that are left to do."""
        jobs = {}
        trials: dict[str, Task] = {}
        for index, (handle, paths) in enumerate(zip(handles, batch.jobs, strict=False)):
            if index % batch.sharing == 0:
                trials = {path: self.left[path] for path in paths if path in self.left}
            if trials:
                jobs[handle] = SubmittedJob(batch, index, trials)
        return jobs

    def _ask_again(self) -> None:
        """Asks the engine for batches whose submission was cut short before it was recorded."""
        for batch in list(self.unsure):
            try:
                handles = self.engines.of(batch).find(batch)
            except EngineError as error:
                self._say_once(f"{error}; nothing is submitted twice, so this waits")
                continue
            if batch.handles is None:  # its own driver knows better what it has submitted
                batch.record(handles or [])
            self.unsure.remove(batch)
            self.jobs |= self._jobs_of(batch, batch.handles or [])
            self._queue(sorted(batch.paths & self.left.keys()))

    def _queue(self, paths: Iterable[str]) -> None:
        """Has trials wait for a job where no job has them, or may have them."""
        if self._trials_per_job is None:  # a job that shares trials has those that it has claimed
            for handle, job in self.jobs.items():
                for path in job.read_claims():
                    self._note_claim(handle, job, path)
            taken = self._claimed().union(*(batch.paths for batch in self.unsure))
        else:
            taken = self._held()
        self.pending.update((path, self.left[path]) for path in paths if path not in taken)

    def _claimed(self) -> set[str]:
        """Returns trials that jobs are known to have claimed."""
        return {path for job in self.jobs.values() for path in job.claimed}

    def _held(self) -> set[str]:
        """Returns trials that a job has, or may have."""
        held = [job.trials.keys() for job in self.jobs.values()]
        return set().union(*held, *(batch.paths for batch in self.unsure))

    def _submit(self) -> None:
        # Ray's capacity is a question to the cluster: nobody asks while nothing is to be submitted.
        if not self.pending or clock.clock.monotonic() < self._wait_until:
            return
        capacity = self.launcher.capacity()
        free = capacity - len(self.jobs) - sum(batch.size for batch in self.unsure)
        wanted = -(-len(self.pending) // (self._trials_per_job or 1))
        # Few large batches: an engine takes an array of a hundred as easily as one job.
        if free < min(wanted, max(1, len(self.jobs) // 10)):
            return
        most = free * self._trials_per_job if self._trials_per_job else _MOST_SHARED
        waiting = itertools.islice(self.pending.values(), most)
        if self._trials_per_job is None:
            together = list(itertools.chain(*jobs_of(waiting, most)))
            # Where no other job has them, the next slots to be free are for them, too.
            has_others = not self._held().isdisjoint(trial.path for trial in together)
            jobs = free if has_others else capacity
            self._submit_jobs([together], min(jobs, len(together)))
            return
        self._submit_jobs(jobs_of(waiting, self._trials_per_job)[:free])

    def _submit_jobs(self, groups: list[list[Task]], sharing: int = 1) -> None:
        """Submits a job for each group of trials, or `sharing` jobs that share them."""
        batch = submissions.new(
            self.root,
            self.name,
            [tuple(trial.path for trial in group) for group in groups],
            self.environment,
            tuple(self.avoid)[-_HOSTS_AVOIDED:],
            self.platform,
            self.launcher.place,
            sharing,
            self._changed,
        )
        # Whatever happens until its handles are on disk: the engine is asked by the batch's name.
        self.unsure.append(batch)
        for path in batch.paths:
            self.pending.pop(path, None)
        is_first = not self._submitted and not self.jobs
        try:
            if is_first:
                self._ask_before(batch)
            handles = self.launcher.submit(batch)
        except EngineError as error:
            if is_first:
                self._ask_again()  # what the engine refused is noted as not submitted
                raise ValueError(f"{self.name} does not take the jobs: {error}") from error
            self._say_once(f"{error}; tried again in a minute")
            self.avoid.clear()  # there may be no other host
            self._hold_back()
            return
        self._submitted = True
        batch.record(handles)
        self.unsure.remove(batch)
        self.jobs |= self._jobs_of(batch, handles)
        jobs = view.plural("job", len(handles))
        self.progress.say(f"{len(handles)} {jobs} submitted as {batch.name}")

    def _ask_before(self, batch: Batch) -> None:
        """Raises EngineError where the engine cannot be asked: the batch is noted as not
        submitted, and the next driver does not wait for it."""
        try:
            self.launcher.find(batch)
        except EngineError:
            batch.record([])
            self.unsure.remove(batch)
            raise

    # What became of it.

    def _look(self) -> None:
        if not self.jobs:
            return
        states = self.engines.status(_batches(self.jobs))
        if not self.launcher.is_this_host:
            self._say_overdue(handle for handle, state in states.items() if state is State.QUEUED)
        gone = []
        for handle, state in states.items():
            if state is State.GONE:
                gone.append(self.jobs.pop(handle))
                self._running.pop(handle, None)
            elif state is State.RUNNING and handle not in self._running:
                self._running[handle] = None
                job = self.jobs[handle]
                if len(job.trials) == 1:  # its claims need not be read
                    self._started(job, handle, job.trials)
        if gone:
            held, claimed = self._held(), self._claimed()
            for job in gone:
                self._follow_up_job(job, held, claimed)
        for handle in list(itertools.islice(self._running, _READ_AT_ONCE)):
            self._running.move_to_end(handle)
            self._look_at(handle, self.jobs[handle])
        if self.launcher.is_this_host:
            self._end_silent()

    def _say_overdue(self, handles: Iterable[str]) -> None:
        """Says once of each job that it is queued for longer than config.queue_warn_hours."""
        limit_s = 3600.0 * self.study.settings["queue_warn_hours"]
        new = {handle: self.jobs[handle] for handle in handles if handle not in self._overdue}
        waits = self.progress.survey.queued_s
        overdue = {
            handle: EngineJob(job.batch, job.index, "waiting", seconds)
            for handle, job in new.items()
            if (seconds := waits(job.batch, job.index)) > limit_s > 0
        }
        for handle, reason in self.engines.queued(_batches(overdue)).items():
            overdue[handle].reason = reason
            self._overdue.add(handle)
        for line in view.queue(self.root, overdue, limit_s):
            self.progress.say(line)

    def _started(self, job: SubmittedJob, handle: str, paths: Iterable[str]) -> None:
        for path in paths:
            if path in self.left:
                self.progress.started(job.trials[path], f"{self.name} job {handle}")

    def _note_claim(self, handle: str, job: SubmittedJob, path: str) -> None:
        self._started(job, handle, [path])
        self.pending.pop(path, None)

    def _look_at(self, handle: str, job: SubmittedJob) -> None:
        """Shows how far the trials are that a job has claimed: first those that it had. Of those it
        has claimed since, all but the last have often ended."""
        for path in list(job.at_work):
            self._look_at_trial(path)
        if len(job.trials) > 1:
            for path in job.read_claims():
                self._note_claim(handle, job, path)
                self._look_at_trial(path)
        job.claimed = [path for path in job.claimed if path in self.left]

    def _look_at_trial(self, path: str) -> None:
        trial = self.left.get(path)
        if trial is None:
            return
        # One file operation, not ten: the engine says that it runs.
        record = status.recorded(self.root / path)
        if record["state"] in status.COMPLETE:
            self._over(trial, record["state"], None)
        elif record["state"] != "failed":
            self.progress.looked(trial, record)
        elif self.policy.decide(trial).next is Next.GIVE_UP:
            self._follow_up(trial)

    def _end_silent(self) -> None:
        """Kills processes of this host whose heartbeat did not change for as long as their lease.

        The looks are one heartbeat apart, and the looks count, not the time: a driver that was
        stopped between two of them learns nothing of the jobs, and no clock can be wrong.
        """
        now = clock.clock.monotonic()
        if now < self._look_for_silent_at:
            return
        self._look_for_silent_at = now + lease.HEARTBEAT_EVERY_S
        before, self._unchanged = self._unchanged, {}
        for path in {path for job in self.jobs.values() for path in job.at_work}:
            attempt = lease.last(self.root / path)
            record, pid = lease.unended(attempt), lease.process_here(attempt)
            if pid is None:
                continue
            heartbeat = attempt / lease.HEARTBEAT
            beat = attempt, os.stat(heartbeat).st_mtime_ns if heartbeat.exists() else 0
            self._unchanged[beat] = looks = before.get(beat, -1) + 1
            if looks * lease.HEARTBEAT_EVERY_S < record["expires_after_s"]:
                continue
            self._ended.add(attempt)
            self.progress.say(f"{path}: its job has been silent for too long and is ended")
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _follow_up_job(self, job: SubmittedJob, held: set[str], claimed: set[str]) -> None:
        """Looks after the trials of a job that is gone; other jobs have those in `held`."""
        if self.left.keys().isdisjoint(job.trials):
            return
        job.read_claims()
        refusal = job.batch.refusal(job.index)
        if refusal is not None:
            self.avoid[refusal["host"]] = None
        if self.launcher.is_this_host:
            self._bound_early_deaths(job, refusal)
        for path, trial in job.trials.items():
            if path not in self.left or path in self.watched or path in claimed:
                continue
            if path in job.claimed:
                is_back = clock.clock.monotonic() < self._back_until
                if is_back and lease.last(self.root / path) not in self._ended:
                    self.policy.excuse_kill(trial)
                self._follow_up(trial)
            elif not job.has_ended and (job.offset or self.launcher.is_this_host):
                self.pending.setdefault(path, trial)
            elif path not in held and path not in self.pending:
                self._unclaimed(job, trial, refusal["reason"] if refusal else None)

    def _bound_early_deaths(self, job: SubmittedJob, refusal: dict[str, str] | None) -> None:
        """Raises ValueError where this host can run no job, or its jobs end before they claim."""
        # A driver that is killed while it submits leaves jobs that never start.
        if job.offset or job.batch.has_started(job.index):
            self._died_early = 0 if job.offset else self._died_early + 1
        if refusal is not None or self._died_early >= self.study.settings["max_attempts"]:
            log = job.batch.log(job.index)
            tail = "\n".join(attempts.tail(log))
            raise ValueError(f"a job ended before it claimed a trial; {log} ends with\n{tail}")

    def _unclaimed(self, job: SubmittedJob, trial: Task, reason: str | None) -> None:
        """A job ended, or never began, without a trace in a trial."""
        if self.policy.decide(trial).next is not Next.AGAIN:
            self._follow_up(trial)
            return
        has_started = job.batch.has_started(job.index)
        if not has_started:
            self._hold_back()
        count = self.policy.count_unrecorded(trial, reason is not None or not has_started)
        log, reason = job.batch.log(job.index), reason or "its job ended without claiming it"
        if self.policy.may_retry(trial):
            self._put_back(trial, reason)
        else:
            self._give_up(
                trial, f"{reason} ({count} jobs; the last one's log: {log})", attempts.tail(log)
            )

    def _follow_up(self, trial: Task) -> None:
        """Does what a trial's files ask for once its job is gone."""
        decision = self.policy.decide(trial)
        reason = attempts.last_error(self.root / trial.path).get("error") or decision.reason
        if decision.next is Next.WATCH:
            self._watch([trial])
        elif decision.next is Next.AGAIN:
            self._put_back(trial, reason)
        elif decision.next is Next.GIVE_UP:
            failed, killed = self.policy.count_failures(trial)
            counts = f"(without progress: {failed} failures, {killed} kills)"
            tail = attempts.log_tail(self.root / trial.path)
            self._give_up(trial, f"{reason} {counts}", tail)
        else:
            self._over(trial, decision.state, None)

    def _put_back(self, trial: Task, reason: str | None) -> None:
        self.progress.ended(trial, "will be tried again", reason)
        self.pending[trial.path] = trial
        self.pending.move_to_end(trial.path, last=False)

    def _give_up(self, trial: Task, reason: str, tail: list[str]) -> None:
        """Writes down that a trial failed for good. Raises ValueError where the disk is full."""
        if self.policy.decide(trial).next is Next.GIVE_UP:  # no live process has it
            with contextlib.suppress(OSError):
                status.write(self.root / trial.path, "failed", reason=reason)
        self._over(trial, "failed", reason, [] if disk.is_reason(reason) else tail)
        if disk.is_reason(reason):
            raise ValueError(reason)  # the other trials would fail, too

    def _over(
        self, trial: Task, outcome: str, error: str | None, tail: list[str] | None = None
    ) -> None:
        """Nothing more is done for a trial."""
        self.left.pop(trial.path, None)
        self.pending.pop(trial.path, None)
        self.progress.ended(trial, outcome, error, tail)

    def _say_once(self, text: str) -> None:
        """Says something that stays true for a while, once an hour."""
        now = clock.clock.monotonic()
        if now - self._said.get(text, -math.inf) > _SAY_AGAIN_S:
            self._said[text] = now
            self.progress.say(text)


def of_study(
    study: Study,
    progress: Progress,
    stop_requested: Callable[[], bool],
    changed: Mapping[str, Any] | None = None,
) -> Scheduler:
    """Returns the scheduler of a study, on the launcher of config.launcher."""
    launcher_class = launchers.launcher_class(study.settings["launcher"])
    platform = launcher_class.hardware(study.settings).kind
    launcher = launcher_class(study.settings, study.directory.resolve())
    if launcher.is_this_host:  # without an accelerator it may compute on whatever JAX finds
        platform = platform.replace("cpu", "")
    launcher.say = progress.say
    return Scheduler(study, progress, stop_requested, launcher, platform, changed)


def _batches(jobs: Mapping[str, SubmittedJob | EngineJob]) -> dict[str, Batch]:
    """Returns the batch of each job, by its handle."""
    return {handle: job.batch for handle, job in jobs.items()}


# SIGHUP: the terminal or the connection is gone.
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def stopping_signals() -> Iterator[Callable[[], bool]]:
    """Yields whether a signal has told this process to save and end."""
    signals: list[int] = []
    earlier = [
        (number, signal.signal(number, lambda signum, frame: signals.append(signum)))
        for number in _STOPPING
    ]
    try:
        yield lambda: bool(signals)
    finally:
        for number, handler in earlier:
            signal.signal(number, handler)
