"""The crew: worker processes at work on a study's trials, and what happens when one dies."""

import contextlib
import queue
import time
from collections.abc import Callable
from typing import Any

from sweeps import attempts, layout, status
from sweeps.launchers import local
from sweeps.progress import Progress
from sweeps.schedule import Schedule
from sweeps.study import Study
from sweeps.trial import Trial

_POLL_S = 0.5
# How often trials that another driver's workers hold are looked at.
_LOOK_S = 5.0
_SAVE_S = 600.0


class Interrupted(Exception):  # noqa: N818  (an order to stop, not an error)
    """The driver was told to stop; workers have saved their trials."""


class Crew:
    """Workers, what each has at hand, and what is left; workers stay from stage to stage.

    `stop_requested()` is asked twice a second.
    """

    def __init__(
        self, study: Study, progress: Progress, stop_requested: Callable[[], bool]
    ) -> None:
        self.study, self.progress, self.stop_requested = study, progress, stop_requested
        self.root = study.directory
        self.workers = local.LocalWorkers(study.settings["local"], self.root / "workers.log")
        self.schedule = Schedule()
        self.at_hand: dict[int, Trial] = {}
        self.idle: set[int] = set()
        self.alive: set[int] = set()
        self.ready: set[int] = set()
        self.elsewhere: list[Trial] = []
        # Failures before this run: running again is a person's wish to try them once more.
        self._earlier: dict[str, int] = {}
        self._unclaimed: dict[str, int] = {}
        self._looked = 0.0

    def run(self, trials: list[Trial]) -> None:
        """Returns when every trial is finished. Raises Interrupted when told to stop."""
        for trial in trials:
            state = status.read(self.root / trial.path)["state"]
            self._earlier[trial.path] = attempts.fruitless(self.root / trial.path)
            if state not in ("done", "diverged"):
                self.schedule.add([trial])
        for slot in range(min(self.workers.size, len(self.schedule.pending))):
            if slot not in self.alive:
                self._start(slot)
        while self.schedule.pending or self.at_hand or self.elsewhere:
            if self.stop_requested():
                self._stop()
            self._look_elsewhere()
            self._hand_out()
            try:
                slot, event = self.workers.events.get(timeout=_POLL_S)
            except queue.Empty:
                self.progress.tick()
                continue
            self._handle(slot, event)

    def _hand_out(self) -> None:
        for slot in sorted(self.idle):
            trial = self.schedule.next_for(slot)
            if trial is not None:
                self.idle.discard(slot)
                self.at_hand[slot] = trial
                self.workers.send(
                    slot,
                    trial=str(self.root / trial.path),
                    data_dir=self.study.data_dir,
                    loader_workers=self.study.settings["loader_workers"],
                )
                self.progress.started(trial, slot)

    def _handle(self, slot: int, event: dict[str, Any] | None) -> None:
        trial = self.at_hand.get(slot)
        if event is None:
            self._worker_died(slot, trial)
        elif event["event"] == "ready":
            self.idle.add(slot)
            self.ready.add(slot)
        elif trial is not None and event["event"] == "compiled":
            self.schedule.compiled(trial.program, slot)
            self.progress.compiled(trial, event)
        elif trial is not None and event["event"] == "eval":
            self.progress.evaluated(trial, event)
        elif trial is not None and event["event"] == "end":
            self.at_hand.pop(slot)
            self.idle.add(slot)
            self.schedule.gave_up(trial.program, slot)
            if not event.get("claimed", True):
                # Nothing of this failure is on disk, so it is counted here.
                self._unclaimed[trial.path] = self._unclaimed.get(trial.path, 0) + 1
            self._ended(trial, event["outcome"], event.get("error"))

    def _ended(self, trial: Trial, outcome: str, error: str | None) -> None:
        if outcome in ("claimed elsewhere", "lost"):
            self.elsewhere.append(trial)
            self.progress.ended(trial, outcome, None)
            return
        if outcome == "preempted":  # by somebody else than this driver: it goes on
            self.progress.ended(trial, outcome, None)
            self.schedule.put_back(trial)
            return
        if outcome == "failed" and self.may_retry(trial):
            self.progress.ended(trial, "failed, will be tried again", error)
            self.schedule.put_back(trial)
            return
        tail = attempts.log_tail(self.root / trial.path) if outcome == "failed" else None
        self.progress.ended(trial, outcome, error, tail)

    def _worker_died(self, slot: int, trial: Trial | None) -> None:
        self.idle.discard(slot)
        self.alive.discard(slot)
        self.schedule.forget(slot)
        self.at_hand.pop(slot, None)
        if self.stop_requested():
            return
        if slot not in self.ready:
            log = self.root / "workers.log"
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
            raise ValueError(f"a worker ended before it was ready; {log} ends with\n{tail}")
        self.ready.discard(slot)
        if trial is not None:
            self._trial_died(trial)
        self._start(slot)

    def _trial_died(self, trial: Trial) -> None:
        directory = self.root / trial.path
        reason = "the worker process died"
        if status.read(directory)["state"] not in ("done", "diverged"):
            if not self.may_retry(trial):
                reason = f"{reason} {attempts.fruitless(directory)} times at the same step"
                with contextlib.suppress(OSError):
                    status.write(directory, "failed", reason=reason)
            self._ended(trial, "failed", reason)

    def _start(self, slot: int) -> None:
        self.workers.start(slot)
        self.alive.add(slot)

    def _look_elsewhere(self) -> None:
        """Takes back trials whose other worker has died, drops those it has finished."""
        if not self.elsewhere or time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        for trial in list(self.elsewhere):
            state = status.read(self.root / trial.path)["state"]
            if state == "pending" or (state == "failed" and self.may_retry(trial)):
                self.elsewhere.remove(trial)
                self.schedule.put_back(trial)
            elif state in layout.FINISHED:
                self.elsewhere.remove(trial)
                self.progress.ended(trial, f"{state} elsewhere", None)

    def _stop(self) -> None:
        self.progress.say("stopping: workers save the trials at hand")
        self.workers.terminate()
        # A compilation or a full evaluation may have to end first.
        deadline = time.monotonic() + _SAVE_S
        while self.at_hand and time.monotonic() < deadline:
            try:
                slot, event = self.workers.events.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            self._handle(slot, event)
        if self.at_hand:
            left = ", ".join(trial.path for trial in self.at_hand.values())
            self.progress.say(f"not saved within {_SAVE_S:.0f} s, back to its checkpoint: {left}")
        raise Interrupted

    def may_retry(self, trial: Trial) -> bool:
        """Whether a trial that failed or was killed gets another attempt in this run."""
        directory = self.root / trial.path
        retry = bool(attempts.last_error(directory).get("retry", True))
        failures = attempts.fruitless(directory) - self._earlier.get(trial.path, 0)
        failures += self._unclaimed.get(trial.path, 0)
        return retry and failures < self.study.settings["max_attempts"]

    def close(self) -> None:
        """Ends the workers."""
        self.workers.close()
