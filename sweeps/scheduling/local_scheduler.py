"""Worker processes at work on trials on this host: which trial an idle one gets next, and what
happens when one dies."""

import pathlib
import queue
import time
from collections.abc import Hashable, Iterable
from typing import Any

from sweeps.launchers import local
from sweeps.records import attempts, disk, layout, lease, status
from sweeps.scheduling.retry_policy import Next
from sweeps.scheduling.scheduler import Interrupted, Run, Scheduler
from sweeps.study.evaluation import Work

_POLL_S = 0.5
# How often trials that others hold, and slots that others occupy, are looked at.
_LOOK_S = 2.0
_SAVE_S = 600.0


class Schedule:
    """Pending trials and what is known of compiled programs.

    The first trial of a program warms JAX's persistent cache before others of it start elsewhere;
    a worker prefers programs that it has in memory, then ones that nobody compiles yet.
    """

    def __init__(self) -> None:
        self.pending: list[Work] = []
        self._warm: set[Hashable] = set()
        self._warming: dict[Hashable, int] = {}
        self._in_memory: dict[int, set[Hashable]] = {}

    def next_for(self, slot: int) -> Work | None:
        """Takes a trial for a worker; None where it should wait or nothing is left."""
        mine = self._in_memory.get(slot, set())
        ranked = (
            lambda program: program in mine,
            lambda program: program not in self._warm and program not in self._warming,
            lambda program: program in self._warm,
        )
        for suits in ranked:
            for trial in self.pending:
                if suits(trial.program):
                    self.pending.remove(trial)
                    if trial.program not in self._warm:
                        self._warming.setdefault(trial.program, slot)
                    return trial
        return None

    def compiled(self, program: Hashable, slot: int) -> None:
        """Notes that a worker has compiled or loaded a program."""
        self._warm.add(program)
        self._warming.pop(program, None)
        self._in_memory.setdefault(slot, set()).add(program)

    def put_back(self, trial: Work) -> None:
        """Makes a trial pending again, to be tried first."""
        self.pending.insert(0, trial)

    def forget(self, slot: int) -> None:
        """Notes that a worker's process is gone, with what it had in memory or was compiling."""
        self._in_memory.pop(slot, None)
        self._warming = {p: s for p, s in self._warming.items() if s != slot}

    def gave_up(self, program: Hashable, slot: int) -> None:
        """Notes that a worker ended a trial before it had compiled the program."""
        if self._warming.get(program) == slot:
            del self._warming[program]


class LocalScheduler(Scheduler):
    """Workers of a local launcher, what each has at hand, and what is left.

    Where `watches`, `run` waits for trials that others hold; a job rather gives its node back.
    Whether to stop is asked twice a second. A worker that is the primary of several processes
    (`sweeps.distributed.process_group`) is not started again: they all end with it.
    """

    def __init__(self, about: Run, launcher: local.Local, watches: bool = True) -> None:
        super().__init__(about)
        self.workers, self.watches = launcher, watches
        self.schedule = Schedule()
        # Of each slot at work; None between a trial's end and the worker's word that it is free.
        self.at_hand: dict[int, Work | None] = {}
        self.idle: set[int] = set()
        self.alive: set[int] = set()
        self.ready: set[int] = set()
        self.watched: dict[str, Work] = {}
        self._looked = 0.0
        self._killed_early = 0
        self._occupied: set[int] = set()

    def _begin(self) -> None:
        self.schedule.pending = list(self.left.values())
        for slot in range(min(self.workers.capacity(), len(self.schedule.pending))):
            if slot not in self.alive:
                self._start(slot)
        self.about.check()  # while they load

    def close(self) -> None:
        """Ends the workers."""
        self.workers.close()

    def _is_busy(self) -> bool:
        return bool(self.schedule.pending or self.at_hand or self.watched)

    def _turn(self) -> bool:
        if not (self.watches or self.at_hand or self.alive):
            return False  # others have this node's slots or the trials
        self._hand_out()
        # First, so that a file system that fails keeps no worker waiting.
        self._handle_next()
        self.progress.tick()
        self._look_elsewhere()
        return True

    def _taken_care_of(self) -> set[str]:
        held = [*self.at_hand.values(), *self.schedule.pending]
        return {trial.path for trial in held if trial} | set(self.watched)

    def _watch(self, trials: Iterable[Work]) -> None:
        self.watched |= {trial.path: trial for trial in trials}

    def _start(self, slot: int) -> None:
        if self.workers.start(slot, self.environment):
            self.alive.add(slot)
            self._occupied.discard(slot)
        elif slot not in self._occupied:
            self._occupied.add(slot)
            self.progress.say(
                f"slot {slot} of this host is still at work for an earlier driver; its trial is "
                "watched, and the slot taken over when it is free"
            )

    def _hand_out(self) -> None:
        for slot in sorted(self.idle):
            if (trial := self.schedule.next_for(slot)) is not None:
                self.idle.discard(slot)
                self.at_hand[slot] = trial
                order = {"trial": str(self.root / trial.path), "data_dir": self.study.data_dir}
                loaders = self.study.settings["loader_workers"]
                self.workers.send(slot, **order, loader_workers=loaders)
                self.progress.started(trial, slot)

    def _handle_next(self) -> bool:
        """Waits for a worker's event for a moment; returns whether there was one."""
        try:
            slot, event = self.workers.events.get(timeout=_POLL_S)
        except queue.Empty:
            return False
        self._handle(slot, event)
        return True

    def _handle(self, slot: int, event: dict[str, Any] | None) -> None:
        if event is None:
            self._worker_died(slot)
        elif event["event"] == "ready":
            self.idle.add(slot)
            self.ready.add(slot)
            self._killed_early = 0
        elif event["event"] == "free":
            self.at_hand.pop(slot, None)
            self.idle.add(slot)
        elif (trial := self.at_hand.get(slot)) and event["trial"] == str(self.root / trial.path):
            self._handle_trial(slot, trial, event)

    def _handle_trial(self, slot: int, trial: Work, event: dict[str, Any]) -> None:
        if event["event"] == "compiled":
            self.schedule.compiled(trial.program, slot)
        elif event["event"] == "note":
            self.progress.say(f"{trial.path}: {event['text']}")
        elif event["event"] == "end":
            self.at_hand[slot] = None
            self.schedule.gave_up(trial.program, slot)
            if not event.get("claimed", True):
                # Nothing of this failure is on disk, so it is counted here.
                self.policy.count_unrecorded(trial)
            self._ended(trial, event["outcome"], event.get("error"))

    def _ended(self, trial: Work, outcome: str, error: str | None) -> None:
        full = disk.is_reason(error)
        if outcome in ("claimed elsewhere", "lost"):
            if self.watches:
                self._watch([trial])
            else:
                del self.left[trial.path]
            self.progress.ended(trial, outcome, None)
        elif outcome == "preempted":  # by somebody else than this driver: it goes on
            self._put_back(trial, outcome, None)
        elif outcome == "failed" and not full and self.policy.may_retry(trial):
            self._put_back(trial, "failed, will be tried again", error)
        else:
            quiet = full or outcome != "failed"
            self._over(
                trial, outcome, error, None if quiet else attempts.log_tail(self.root / trial.path)
            )
            if full and self.watches:
                raise ValueError(error)  # the other trials would fail, too

    def _put_back(self, trial: Work, outcome: str, error: str | None) -> None:
        self.progress.ended(trial, outcome, error)
        self.schedule.put_back(trial)

    def _worker_died(self, slot: int) -> None:
        self.idle.discard(slot)
        self.alive.discard(slot)
        self.schedule.forget(slot)
        trial = self.at_hand.pop(slot, None)
        if self._is_told():
            return
        if slot not in self.ready and not self.workers.primary:
            # One that was killed, and not too often, is started again.
            self._killed_early += 1
            often = self._killed_early >= self.study.settings["max_attempts"]
            if often or not self.workers.was_killed(slot):
                tail = "\n".join(attempts.tail(self.workers.log))
                raise ValueError(
                    f"a worker ended before it was ready; {self.workers.log} ends with\n{tail}"
                )
        self.ready.discard(slot)
        if not self.workers.primary:
            self._occupied.add(slot)  # started again later, where it cannot be now
            self._start(slot)
        if trial is not None:
            self._follow_up(trial)

    def _look_elsewhere(self) -> None:
        """Takes back trials whose other worker has died, drops those it has finished.

        Without workers of its own, looks after all that is pending, and for a free slot.
        """
        if time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        for slot, trial in self.at_hand.items():
            if trial is not None:
                self.progress.looked(trial, status.recorded(self.root / trial.path))
            if trial is not None and self._hangs(trial, slot):
                self.progress.say(f"worker {slot} has been silent for too long and is ended")
                self.workers.kill(slot)
        if not self.alive:
            self._watch(self.schedule.pending)
            self.schedule.pending = []
        free = 0
        for trial in list(self.watched.values()):
            decision = self.policy.decide(trial)
            if decision.next is Next.AGAIN and self.alive:
                del self.watched[trial.path]
                self.schedule.put_back(trial)
            elif decision.next is Next.AGAIN:
                free += 1
            elif decision.next is not Next.WATCH:
                del self.watched[trial.path]
                self._over(trial, f"{decision.state} elsewhere", None)
        for slot in sorted(self._occupied)[: len(self.schedule.pending) + free]:
            self._start(slot)

    def _hangs(self, trial: Work, slot: int) -> bool:
        """Whether a worker of ours has let its lease pass: on a trial, or on its evaluation."""
        directory = self.root / trial.path
        places = (directory, *directory.glob(f"{layout.DOWNSTREAM}/*/*"))
        return any(self._has_passed(lease.last(place), slot) for place in places)

    def _has_passed(self, attempt: pathlib.Path, slot: int) -> bool:
        mine = lease.process_here(attempt) == self.workers.pid(slot)
        return mine and not (attempt / lease.OUTCOME).exists() and not lease.is_alive(attempt)

    def _stop_if_told(self) -> None:
        if not self._is_told():
            return
        self.progress.say("stopping: workers save the trials at hand")
        self.workers.cancel([str(slot) for slot in self.alive])
        # A compilation or a full evaluation may have to end first.
        deadline = time.monotonic() + _SAVE_S
        while any(self.at_hand.values()) and time.monotonic() < deadline:
            self._handle_next()
        if names := ", ".join(trial.path for trial in self.at_hand.values() if trial):
            self.progress.say(f"not saved within {_SAVE_S:.0f} s, back to its checkpoint: {names}")
        raise Interrupted
