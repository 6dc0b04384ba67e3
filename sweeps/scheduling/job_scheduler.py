"""The fleet: a study's trials as jobs of an engine, through `launchers.protocol.Launcher`.

Jobs outlive the driver; another driver adopts them from `<study>/jobs`. The engine is asked whether
a job is queued, running or gone, never how it ended: the trials' files say that.
"""

import collections
import itertools
import os
import pathlib
from collections.abc import Callable

from sweeps.launchers.protocol import EngineError, Launcher, State
from sweeps.monitoring.progress import Progress
from sweeps.records import attempts, clock, code_snapshot, status, submissions
from sweeps.records.outages import Outage
from sweeps.scheduling import tasks
from sweeps.scheduling.local_scheduler import Interrupted
from sweeps.scheduling.retry_policy import Next, Verdicts
from sweeps.scheduling.tasks import Task
from sweeps.study.study import Study
from sweeps.study.trial import Trial

# Running trials whose progress is read at each look, in turn: a bound on file operations.
_READ_AT_ONCE = 20
# Trials that somebody else holds are looked at when their lease may have passed.
_WATCH_S = 30.0
# Before the engine is tried again after it refused, or dropped, jobs.
_PAUSE_S = 60.0
# Kills at one step that a trial is forgiven: nodes vanish, and a job's own crew counts crashes.
_MOST_KILLS = 10
_HOSTS_AVOIDED = 16


class Fleet:
    """Jobs at an engine, and what is left to submit.

    poll_s: how often the engine is asked, seconds. `stop_requested()` is asked as often. platform:
    what jobs must compute on, '' for whatever a node has.
    """

    def __init__(
        self,
        study: Study,
        progress: Progress,
        stop_requested: Callable[[], bool],
        snapshot: pathlib.Path,
        launcher: Launcher,
        poll_s: float,
        platform: str = "",
    ) -> None:
        self.study, self.progress, self.stop_requested = study, progress, stop_requested
        self.root, self.launcher, self.poll_s = study.directory, launcher, poll_s
        self.platform = platform
        self.environment = code_snapshot.environment(snapshot)
        if lease_s := os.environ.get("ATTNPERF_LEASE_S"):
            self.environment["ATTNPERF_LEASE_S"] = lease_s
        self.settings = study.settings[study.settings["launcher"]]
        self.pending: collections.deque[Trial] = collections.deque()
        self.tasks: dict[str, Task] = {}
        self.unsure: list[submissions.Submission] = []
        self.watched: dict[str, tuple[Trial, float]] = {}
        self.avoid: dict[str, None] = {}
        self.verdicts = Verdicts(self.root, study.settings["max_attempts"], _MOST_KILLS)
        self._running: dict[str, Trial] = {}
        self._left: dict[str, Trial] = {}
        self._submitted, self._said = False, ""
        self._outage = Outage(progress.say)
        self._wait_until = 0.0

    def run(self, trials: list[Trial]) -> None:
        """Returns when every trial is finished. Raises Interrupted when told to stop.

        Raises ValueError where the engine refuses the first submission.
        """
        left = {t.path: t for t in trials if self.verdicts.begin(t) not in ("done", "diverged")}
        self._left = left
        self._adopt()
        held = self._held()
        self.pending.extend(trial for path, trial in left.items() if path not in held)
        while self.pending or self.tasks or self.watched or self.unsure:
            try:
                self._stop_if_told()
                self._turn()
                self._outage.over()
            except OSError as error:
                self._outage.met(error)
                self._wait_until = clock.clock.monotonic() + _PAUSE_S
                self._take_up()
            if self.pending or self.tasks or self.watched or self.unsure:
                clock.clock.sleep(self.poll_s)

    def _turn(self) -> None:
        self._ask_again()
        self._submit()
        self._look()
        self._watch()
        self.progress.tick()

    def _take_up(self) -> None:
        """Has what an error in the middle of a turn dropped looked after by its files."""
        held = self._held() | set(self.watched) | {trial.path for trial in self.pending}
        for path in self._left.keys() - held:
            self.watched[path] = self._left[path], clock.clock.monotonic()

    def _stop_if_told(self) -> None:
        if submissions.is_cancelled(self.root):
            self.launcher.cancel(list(self.tasks))
            raise Interrupted
        if self.stop_requested():
            self.progress.say(
                f"leaving; {len(self.tasks)} jobs go on at the engine. `resume` takes them up "
                "again, `cancel` ends them"
            )
            raise Interrupted

    def _adopt(self) -> None:
        """Takes up jobs of earlier drivers that hold unfinished trials and are not gone."""
        found: dict[str, Task] = {}
        for submission in tasks.earlier(self.root, self.study.settings["launcher"], self._left):
            handles = submission.handles
            if handles is None:
                self.unsure.append(submission)
            else:
                found |= tasks.tasks_of(submission, handles, self._left)
        states = self.launcher.status(list(found)) if found else {}
        self.tasks |= {h: task for h, task in found.items() if states[h] is not State.GONE}
        if self.tasks:
            self.progress.say(f"{len(self.tasks)} jobs of an earlier driver are taken up")

    def _ask_again(self) -> None:
        """Asks the engine for batches whose submission was cut short before it was recorded."""
        for submission in list(self.unsure):
            try:
                handles = self.launcher.find(submission.batch)
            except EngineError as error:
                self._say_once(f"{error}; nothing is submitted twice, so this waits")
                continue
            submission.record(handles or [])
            self.unsure.remove(submission)
            self.tasks |= tasks.tasks_of(submission, handles or [], self._left)
            held = self._held()
            paths = {path for task in submission.tasks for path in task}
            for path in sorted(paths & set(self._left) - held):
                self.pending.append(self._left[path])

    def _held(self) -> set[str]:
        """Returns trials that a job has, or may have."""
        held = {path for task in self.tasks.values() for path in task.trials}
        return held | {path for one in self.unsure for task in one.tasks for path in task}

    def _submit(self) -> None:
        doubtful = sum(submission.batch.size for submission in self.unsure)
        free = self.launcher.capacity() - len(self.tasks) - doubtful
        per_job = self.settings["trials_per_job"]
        wanted = -(-len(self.pending) // per_job)
        # Few large batches: an engine takes an array of a hundred as easily as one job.
        if not wanted or free < min(wanted, max(1, len(self.tasks) // 10)):
            return
        if clock.clock.monotonic() < self._wait_until:
            return
        chosen = [self.pending.popleft() for _ in range(min(len(self.pending), free * per_job))]
        wanted_jobs = tasks.grouped(chosen, per_job)
        for extra in wanted_jobs[free:]:
            self.pending.extendleft(reversed(extra))
        self._submit_jobs(wanted_jobs[:free])

    def _submit_jobs(self, groups: list[tuple[Trial, ...]]) -> None:
        paths = [tuple(trial.path for trial in group) for group in groups]
        name = self.study.settings["launcher"]
        avoid = tuple(self.avoid)[-_HOSTS_AVOIDED:]
        submission = submissions.new(self.root, name, paths, self.environment, avoid, self.platform)
        # Whatever happens until its handles are on disk: the engine is asked by the batch's name.
        self.unsure.append(submission)
        try:
            handles = self.launcher.submit(submission.batch)
        except EngineError as error:
            if not self._submitted and not self.tasks:
                raise ValueError(f"{name} does not take the jobs: {error}") from error
            self._say_once(f"{error}; tried again in a minute")
            self.avoid.clear()  # there may be no other host
            self._wait_until = clock.clock.monotonic() + _PAUSE_S
            return
        self._submitted = True
        submission.record(handles)
        self.unsure.remove(submission)
        for index, (handle, group) in enumerate(zip(handles, groups, strict=True)):
            self.tasks[handle] = tasks.task(self.root, submission, index, group)
        self.progress.say(f"{len(handles)} jobs submitted as {submission.batch.name}")

    def _look(self) -> None:
        if not self.tasks:
            return
        states = self.launcher.status(list(self.tasks))
        if all(state is State.UNKNOWN for state in states.values()):
            self._say_once("the engine does not answer; jobs are left as they are")
        for handle, state in states.items():
            task = self.tasks[handle]
            if state is State.GONE:
                del self.tasks[handle]
                self._gone(task)
            elif state is State.RUNNING and task.state is not State.RUNNING:
                task.state = state
                for trial in task.trials.values():
                    self.progress.started(trial, f"{self.study.settings['launcher']} job {handle}")
                    self._running[trial.path] = trial
            elif state is State.QUEUED:
                task.state = state
        self._read_some()

    def _read_some(self) -> None:
        """Reads how far a few running trials are."""
        for path in list(itertools.islice(self._running, _READ_AT_ONCE)):
            trial = self._running.pop(path)
            # One file operation, not ten: the engine says that it runs.
            found = status.recorded(self.root / path)
            if found["state"] in ("pending", "running"):
                self.progress.looked(trial, found)
                self._running[path] = trial

    def _gone(self, task: Task) -> None:
        refusal = task.submission.refusal(task.index)
        if refusal is not None:
            self.avoid[refusal["host"]] = None
        touched = task.touched(self.root)
        for trial in task.trials.values():
            self._running.pop(trial.path, None)
            verdict = self.verdicts.of(trial)
            if verdict.next is Next.AGAIN and not touched:
                self._unclaimed(task, trial, refusal["reason"] if refusal else None)
            else:
                self._follow(trial)

    def _unclaimed(self, task: Task, trial: Trial, reason: str | None) -> None:
        """A job ended, or never began, without a trace in any of its trials."""
        excused = reason is not None or not task.ran()
        if not task.ran():
            self._wait_until = clock.clock.monotonic() + _PAUSE_S
        count = self.verdicts.unclaimed(trial, excused)
        tail = task.submission.log_tail(task.index)
        reason = reason or "its job ended without claiming it"
        if self.verdicts.may_retry(trial):
            self.progress.ended(trial, "will be submitted again", reason)
            self.pending.appendleft(trial)
            return
        reason = (
            f"{reason} ({count} jobs; the last one's log: {task.submission.batch.log(task.index)})"
        )
        self.verdicts.give_up(trial, reason)
        self._over(trial, "failed", reason, tail)

    def _follow(self, trial: Trial) -> None:
        """Does what a trial's files ask for once its job is gone."""
        verdict, directory = self.verdicts.of(trial), self.root / trial.path
        if verdict.next is Next.WATCH:
            self.watched[trial.path] = trial, clock.clock.monotonic() + _WATCH_S
        elif verdict.next is Next.AGAIN:
            self.progress.ended(trial, "will be submitted again", verdict.reason)
            self.pending.appendleft(trial)
        elif verdict.next is Next.GIVE_UP:
            reason = attempts.last_error(directory).get("error") or verdict.reason
            self.verdicts.give_up(trial, str(reason))
            self._over(trial, "failed", str(reason), attempts.log_tail(directory))
        else:
            self._over(trial, verdict.state, None)

    def _over(
        self, trial: Trial, outcome: str, error: str | None, tail: list[str] | None = None
    ) -> None:
        """Nothing more is done for a trial."""
        self._left.pop(trial.path, None)
        self.progress.ended(trial, outcome, error, tail)

    def _watch(self) -> None:
        """Looks after trials whose job is gone while a worker still seems to live."""
        now = clock.clock.monotonic()
        for path, (trial, due) in list(self.watched.items()):
            if now >= due:
                del self.watched[path]
                self._follow(trial)

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self.progress.say(text)

    def close(self) -> None:
        """Lets go of the engine; jobs go on."""
        self.launcher.close()
