"""The driver: takes a study from its points to its last trial, whatever dies on the way.

It loads neither JAX nor TensorFlow. Files are the truth: interrupt it and run it again, or run it
twice; finished trials are not repeated and a trial has one worker at a time.
"""

import os
import pathlib
import queue
import signal
import time
from typing import Any

from sweeps import attempts, layout, provenance, space, status
from sweeps.launchers import local
from sweeps.progress import Progress
from sweeps.schedule import Schedule
from sweeps.study import Study, check_same, is_paper_protocol
from sweeps.trial import Trial

_POLL_S = 0.5
# How often trials that another driver's workers hold are looked at.
_LOOK_S = 5.0


class Interrupted(Exception):  # noqa: N818  (an order to stop, not an error)
    """The driver was told to stop; workers have saved their trials."""


class Driver:
    """Runs a study's stages one after the other."""

    def __init__(self, study: Study, progress: Progress) -> None:
        self.study = study
        self.progress = progress
        self._stop = False

    def run(self) -> dict[str, int]:
        """Runs what is not finished. Returns how many trials ended in which state.

        Raises Interrupted on SIGINT or SIGTERM, after the workers have saved; ValueError where
        the directory holds another study or cannot be written.
        """
        prepare(self.study)
        counts: dict[str, int] = {}
        with _signals(self):
            for stage in self.study.stages:
                trials = self._trials(stage)
                self.progress.stage(stage, trials, self.study.directory)
                self._run_stage(trials)
                for trial in trials:
                    state = status.read(self.study.directory / trial.path)["state"]
                    counts[state] = counts.get(state, 0) + 1
        return counts

    def _trials(self, stage: str) -> list[Trial]:
        selection = None
        if stage == "compare":
            selection = self.study.select()
            layout.write_json(self.study.directory / layout.SELECTION, selection)
            self.progress.selected(selection)
        trials = self.study.trials(stage, selection)
        materialise(self.study, stage, trials)
        return trials

    def _run_stage(self, trials: list[Trial]) -> None:
        open_trials = [trial for trial in trials if not self._finished(trial)]
        if not open_trials:
            return
        workers = local.LocalWorkers(
            self.study.settings["local"], self.study.directory / "workers.log"
        )
        workers.size = min(workers.size, len(open_trials))
        try:
            _Stage(self, workers, open_trials).run()
        finally:
            workers.close()

    def _finished(self, trial: Trial) -> bool:
        state = status.read(self.study.directory / trial.path)["state"]
        if state == "failed":
            return not self.may_retry(trial)
        return state in layout.FINISHED

    def may_retry(self, trial: Trial) -> bool:
        """Whether a trial that failed or was killed gets another attempt."""
        directory = self.study.directory / trial.path
        tries = attempts.fruitless(directory)
        retry = bool(attempts.last_error(directory).get("retry", True))
        return retry and tries < self.study.settings["max_attempts"]

    def request_stop(self) -> None:
        """Makes the driver save and stop at the next opportunity."""
        self._stop = True

    @property
    def stop_requested(self) -> bool:
        """Whether SIGINT or SIGTERM came."""
        return self._stop


class _Stage:
    """One stage at work: workers, what each has at hand, what is left."""

    def __init__(self, driver: Driver, workers: local.LocalWorkers, trials: list[Trial]) -> None:
        self.driver, self.workers, self.progress = driver, workers, driver.progress
        self.root = driver.study.directory
        self.schedule = Schedule(trials)
        self.by_path = {str(self.root / trial.path): trial for trial in trials}
        self.at_hand: dict[int, Trial] = {}
        self.idle: set[int] = set()
        self.elsewhere: list[Trial] = []
        self._looked = 0.0

    def run(self) -> None:
        """Returns when every trial of the stage is finished."""
        for slot in range(self.workers.size):
            self.workers.start(slot)
        while self.schedule.pending or self.at_hand or self.elsewhere:
            if self.driver.stop_requested:
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
                self.workers.send(slot, self.root / trial.path, self.driver.study.data_dir)
                self.progress.started(trial, slot)

    def _handle(self, slot: int, event: dict[str, Any] | None) -> None:
        trial = self.at_hand.get(slot)
        if event is None:
            self._worker_died(slot, trial)
        elif event["event"] == "ready":
            self.idle.add(slot)
        elif trial is not None and event["event"] == "compiled":
            self.schedule.compiled(trial.program, slot)
            self.progress.compiled(trial, event)
        elif trial is not None and event["event"] == "eval":
            self.progress.evaluated(trial, event)
        elif trial is not None and event["event"] == "end":
            self.at_hand.pop(slot)
            self.idle.add(slot)
            self.schedule.gave_up(trial.program, slot)
            self._ended(trial, event["outcome"], event.get("error"))

    def _ended(self, trial: Trial, outcome: str, error: str | None) -> None:
        if outcome in ("claimed elsewhere", "lost"):
            self.elsewhere.append(trial)
            self.progress.ended(trial, outcome, None)
            return
        if outcome == "failed" and self.driver.may_retry(trial):
            self.progress.ended(trial, "failed, will be tried again", error)
            self.schedule.put_back(trial)
            return
        tail = attempts.log_tail(self.root / trial.path) if outcome == "failed" else None
        self.progress.ended(trial, outcome, error, tail)

    def _worker_died(self, slot: int, trial: Trial | None) -> None:
        self.idle.discard(slot)
        self.schedule.forget(slot)
        self.at_hand.pop(slot, None)
        if self.driver.stop_requested:
            return
        if trial is None:
            raise RuntimeError(
                f"worker {slot} ended before it took a trial; see {self.root / 'workers.log'}"
            )
        directory = self.root / trial.path
        reason = "the worker process died"
        if status.read(directory)["state"] not in ("done", "diverged"):
            if not self.driver.may_retry(trial):
                reason = f"{reason} {attempts.fruitless(directory)} times at the same step"
                status.write(directory, "failed", reason=reason)
            self._ended(trial, "failed", reason)
        self.workers.start(slot)

    def _look_elsewhere(self) -> None:
        """Takes back trials whose other worker has died, drops those it has finished."""
        if not self.elsewhere or time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        for trial in list(self.elsewhere):
            state = status.read(self.root / trial.path)["state"]
            if state in layout.FINISHED:
                self.elsewhere.remove(trial)
                self.progress.ended(trial, f"{state} elsewhere", None)
            elif state == "pending":
                self.elsewhere.remove(trial)
                self.schedule.put_back(trial)

    def _stop(self) -> None:
        self.progress.say("stopping: workers save the trials at hand")
        self.workers.terminate()
        deadline = time.monotonic() + 60
        while self.at_hand and time.monotonic() < deadline:
            try:
                slot, event = self.workers.events.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            self._handle(slot, event)
        raise Interrupted


class _signals:  # noqa: N801  (a context manager, used like a function)
    """Turns SIGINT and SIGTERM into `request_stop` while it lasts."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __enter__(self) -> None:
        def stop(signum: int, frame: Any) -> None:
            del signum, frame
            self._driver.request_stop()

        self._old = [(s, signal.signal(s, stop)) for s in (signal.SIGINT, signal.SIGTERM)]

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._old:
            signal.signal(number, handler)


def prepare(study: Study) -> None:
    """Makes the study's directory, or checks that the one there is this study.

    Never asks a question. Raises ValueError where it is another study's or not writable.
    """
    directory = study.directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".probe-{os.getpid()}"
        probe.write_bytes(b"\0" * 4096)
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"{directory} cannot be written: {error.strerror or error}. Choose another "
            "--config.experiment_dir, or make room and permission there"
        ) from error
    record = layout.read_json_if_there(directory / layout.STUDY)
    if record is not None:
        check_same(study, record)
    layout.write_json(
        directory / layout.STUDY,
        {
            "format": layout.FORMAT,
            "name": study.name,
            "config": study.settings,
            "points": list(study.points),
            "space_sha256": space.sha256(list(study.points)),
            "stages": list(study.stages),
            "is_paper_protocol": is_paper_protocol(study.settings),
            "versions": provenance.versions(),
            "git_commit": provenance.git_commit(),
        },
    )


def materialise(study: Study, stage: str, trials: list[Trial]) -> None:
    """Writes trials.json of a stage, and each trial's record where it is not there yet.

    Raises ValueError where a trial's directory holds another trial.
    """
    folder = study.directory / stage
    folder.mkdir(exist_ok=True)
    rows = []
    for trial in trials:
        directory = study.directory / trial.path
        _write_trial(directory, trial)
        rows.append({"path": trial.path, **trial.to_json()})
    layout.write_json(folder / layout.TRIALS, {"stage": stage, "trials": rows})


def _write_trial(directory: pathlib.Path, trial: Trial) -> None:
    path = directory / layout.TRIAL
    found = layout.read_json_if_there(path)
    if found is None:
        directory.mkdir(parents=True, exist_ok=True)
        versions = {"versions": provenance.versions(), "git_commit": provenance.git_commit()}
        layout.write_json(directory / layout.HPARAMS, trial.hyperparameters)
        layout.write_json(directory / "flags_0.json", trial.to_json())
        layout.write_json(path, {**trial.to_json(), **versions})
    elif found.get("id") != trial.id:
        raise ValueError(
            f"{directory} holds trial {found.get('id')}, this study wants {trial.id} there. "
            "Choose another --config.name, or remove that directory"
        )
