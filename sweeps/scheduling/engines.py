"""The engines that have a study's jobs: each batch is asked for where it was submitted.

The study's own keys may name another cluster by now, or another namespace: there its jobs would
look gone.
"""

import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from attention.common import files
from attention.table import unknown
from sweeps.launchers import table as launchers
from sweeps.launchers.config_keys import check as check_keys
from sweeps.launchers.protocol import EngineError, Launcher, State
from sweeps.monitoring.survey import Survey
from sweeps.records import layout, submissions
from sweeps.records.submissions import Batch
from sweeps.study import config, keys

Answer = TypeVar("Answer")


class Engines:
    """Launchers by what batches record of their engine.

    settings: the study's, with every launcher's keys. current: the launcher of config.launcher.
    `say` is told of engines that this host cannot ask.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        directory: pathlib.Path,
        current: Launcher | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._settings, self._directory, self._say = settings, directory.resolve(), say
        self._launchers: dict[Any, Launcher] = {}
        if current is not None:
            self._launchers[_key(settings["launcher"], current.place)] = current

    def of(self, batch: Batch) -> Launcher:
        """Returns the launcher of a batch. Raises EngineError if this host has none."""
        key = _key(batch.launcher, batch.place)
        if key not in self._launchers:
            try:
                settings = {
                    **self._settings,
                    batch.launcher: {**self._settings[batch.launcher], **batch.place},
                }
                launcher = launchers.launcher_class(batch.launcher)
                self._launchers[key] = launcher(settings, self._directory)
            except (KeyError, ValueError, TypeError) as error:  # TypeError: of an edited record
                where = " ".join(f"{name}={value}" for name, value in batch.place.items())
                raise EngineError(
                    f"cannot reach {batch.launcher} {where}, which has jobs of {batch.file}: "
                    f"{error}. Run this on a host that reaches it; if those jobs have ended, "
                    "remove the file"
                ) from error
        return self._launchers[key]

    def status(self, jobs: Mapping[str, Batch]) -> dict[str, State]:
        """Returns the state of every job, by its handle; UNKNOWN if its engine has no answer."""
        states = dict.fromkeys(jobs, State.UNKNOWN)
        states |= self._ask(jobs, lambda launcher, handles: launcher.status(handles), self._left)
        withdrawn = submissions.withdrawn(self._directory, self._say)
        gone = [job for job, batch in jobs.items() if f"{batch.name} {job}" in withdrawn]
        return states | dict.fromkeys(gone, State.GONE)

    def queued(self, jobs: Mapping[str, Batch]) -> dict[str, str]:
        """Returns the engines' reasons for the jobs that wait in their queues, by handle."""
        return self._ask(jobs, lambda launcher, handles: launcher.queued(handles), self._left)

    def _left(self, problem: str) -> None:
        self._say(f"{problem}; its jobs are left as they are")

    def _ask(
        self,
        jobs: Mapping[str, Batch],
        question: Callable[[Launcher, list[str]], Mapping[str, Answer]],
        say: Callable[[str], None],
    ) -> dict[str, Answer]:
        """Returns the engines' answers on jobs; `say` gets a sentence per engine without one."""
        engines: dict[Any, tuple[Batch, list[str]]] = {}
        for handle, batch in jobs.items():
            engines.setdefault(_key(batch.launcher, batch.place), (batch, []))[1].append(handle)
        answers: dict[str, Answer] = {}
        for batch, handles in engines.values():
            try:
                answers |= question(self.of(batch), handles)
            except EngineError as error:
                say(str(error))
        return answers

    def cancel(self, jobs: Mapping[str, Batch]) -> None:
        """Asks jobs to save and end. Raises EngineError, at the end, if an engine cannot be
        reached."""
        errors: list[str] = []
        self._ask(jobs, lambda launcher, handles: launcher.cancel(handles) or {}, errors.append)
        if errors:
            raise EngineError("; ".join(errors))


def _key(launcher: str, place: Mapping[str, str]) -> tuple[Any, ...]:
    return launcher, *sorted(place.items())


def ask_queue(study: Survey) -> None:
    """Fills in how long and why jobs of a survey are queued.

    Engines that cannot be asked are named in `unanswered`. None is loaded where no job is alive.
    """
    settings = config.completed(layout.study_record(study.directory)["config"])
    check_keys(
        {"queue_warn_hours": keys.OWN["queue_warn_hours"]},
        settings,
        prefix=f"{study.directory / layout.STUDY}: config.",
    )
    study.queue_warn_s = 3600.0 * settings["queue_warn_hours"]
    known = Engines(settings, study.directory, say=study.unanswered.append)
    jobs = {handle: job.batch for handle, job in study.at_engines.items()}
    for handle, reason in known.queued(jobs).items():
        study.at_engines[handle].reason = reason


def resubmit(directory: pathlib.Path, handles: Sequence[str]) -> str:
    """Withdraws jobs from their engines' queues, so that their trials are submitted again.

    Returns a report. Raises ValueError for a job that is not queued, or where the directory holds
    no study, and EngineError for one whose engine cannot be asked: nothing is withdrawn then.
    """
    problems: list[str] = []
    settings = config.completed(layout.study_record(directory)["config"])
    known = Engines(settings, directory, say=problems.append)
    withdrawn = submissions.withdrawn(directory, config.warn)
    jobs = {
        handle: batch
        for batch in submissions.batches(directory)
        for handle in batch.handles or ()
        if batch.launcher != "local" and f"{batch.name} {handle}" not in withdrawn
    }
    if not jobs:
        raise ValueError(
            f"{directory} has no jobs in an engine's queue; jobs of launcher local are processes "
            "of its driver and are in none"
        )
    queued = known.queued(jobs)
    if missing := [handle for handle in handles if handle not in queued]:
        where = f" in a queue of {directory}'s engines"
        problem = ValueError(unknown("job", missing[0], queued, where))
        raise EngineError("; ".join(problems)) if problems else problem
    chosen = {handle: jobs[handle] for handle in handles}
    known.cancel(chosen)
    submissions.withdraw(directory, chosen)
    return (
        f"withdrawn: {', '.join(chosen)}. The driver submits their trials again; if none runs, "
        f"start one: python -m sweeps resume {files.quoted(directory)}"
    )


def cancel(directory: pathlib.Path) -> str:
    """Marks the study as cancelled and cancels its jobs; returns a report.

    Jobs that cannot be told notice the mark at their next heartbeat, whatever engine they run on;
    `resume`, `run` or `evaluate` takes the mark away, where it is from before. A study that is
    complete is marked, too: a run may be preparing to extend it.

    Raises ValueError if the directory holds no study, or its study.json is damaged, and
    EngineError if an engine cannot be reached: a study is marked by then, and the jobs of other
    engines are withdrawn. What else is damaged is passed over, with a warning.
    """
    if (directory / layout.STUDY).exists():
        mark = directory / submissions.CANCELLED
        try:
            layout.write_json(mark, {"cancelled_at": time.time()})
        except OSError as error:
            raise ValueError(
                f"{mark} cannot be written: {error.strerror or error}. No job was told to stop: "
                "make room and permission there, and cancel again"
            ) from error
    settings = config.completed(layout.study_record(directory)["config"])
    batches = list(submissions.batches(directory, config.warn))
    known, errors = Engines(settings, directory, say=config.warn), []
    jobs = {handle: batch for batch in batches for handle in batch.handles or ()}
    for batch in batches:
        if batch.handles is None:  # by its name: its submission was cut short
            try:
                jobs |= dict.fromkeys(known.of(batch).find(batch) or (), batch)
            except EngineError as error:
                errors.append(str(error))
    states = known.status(jobs)
    living = {handle: jobs[handle] for handle in jobs if states[handle] is not State.GONE}
    try:
        known.cancel(living)
    except EngineError as error:
        errors.append(str(error))
    if errors:
        raise EngineError("; ".join(errors))
    return (
        f"{directory} is cancelled: {len(living)} jobs withdrawn; those that run save first. "
        f"Continue with: python -m sweeps resume {files.quoted(directory)}"
    )
