"""The SkyPilot launcher: managed jobs on rented machines, restarted wherever there are some.

Tasks are checked offline and written to `<study>/jobs/<batch>.<index>.yaml`; SkyPilot is run by its
command line alone and never imported (433 MB). docs/skypilot.md says what it needs.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from sweeps.launchers import manifest_schema
from sweeps.launchers.protocol import Batch, EngineError, State
from sweeps.launchers.skypilot import task as sky_task
from sweeps.launchers.skypilot.keys import DEFAULTS, KEYS, check_keys, devices, platform
from sweeps.records import layout

__all__ = [
    "DEFAULTS",
    "KEYS",
    "SkyPilot",
    "check",
    "devices",
    "launcher",
    "platform",
    "preview",
    "requeue",
]

# Starting its local server takes 45 s; choosing and renting a controller takes minutes.
_TIMEOUT_S = 1200
_QUEUED = ("PENDING", "SUBMITTED", "STARTING", "RECOVERING")
_RUNNING = ("RUNNING", "WINDING_DOWN", "CANCELLING")
_NO_CONTROLLER = "No in-progress managed jobs"
_NEEDED = "skypilot>=0.12, in an environment of its own: pip install 'skypilot[gcp]'"


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError for what no cloud could run; no cloud is asked."""
    check_keys(settings)
    root = pathlib.Path(settings["experiment_dir"]).resolve() / settings["name"]
    sample = Batch("sample", root / "jobs" / "sample.json", 1, {"PYTHONPATH": str(root / "code")})
    _checked_task(sample, 0, settings)


def preview(settings: dict[str, Any], batch: Batch) -> str:
    """Returns what would be submitted for a batch's first job; the engine is not needed."""
    return manifest_schema.to_yaml(_checked_task(batch, 0, settings))


def requeue() -> bool:
    """Returns whether exit code 75 has SkyPilot run this job again."""
    return "SKYPILOT_TASK_ID" in os.environ


def launcher(settings: dict[str, Any], study_directory: pathlib.Path) -> "SkyPilot":
    """Returns the launcher of a study."""
    del study_directory
    return SkyPilot(settings)


def _checked_task(batch: Batch, index: int, settings: dict[str, Any]) -> dict[str, Any]:
    task = sky_task.task(batch, index, settings)
    title = f"the task of job {index} of {batch.name}"
    manifest_schema.check(task, sky_task.TASK, title)
    return task


class SkyPilot:
    """Jobs as managed jobs; a handle is a job's name, which SkyPilot does not keep unique."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings, self._own = settings, settings["skypilot"]

    def capacity(self) -> int:
        """Returns skypilot.max_jobs."""
        return int(self._own["max_jobs"])

    def submit(self, batch: Batch) -> list[str]:
        """Writes and launches the tasks; those whose name is in the queue are not launched again.

        Raises EngineError where one is refused, after cancelling those that were launched, and
        where there was no answer: `find` tells.
        """
        files = self._write(batch)
        there = {record["job_name"] for record in self._queue()}
        handles = [sky_task.name(batch, index) for index in range(batch.size)]
        there &= set(handles)
        for handle, file in zip(handles, files, strict=True):
            if handle not in there:
                self._launch(handle, file, sorted(there))
                there.add(handle)
        return handles

    def _launch(self, handle: str, file: pathlib.Path, before: list[str]) -> None:
        """Launches a task; where that is refused, cancels those `before` it."""
        done = self._sky("jobs", "launch", "--name", handle, "--yes", "--detach-run", str(file))
        if done.returncode:
            with contextlib.suppress(EngineError):  # `find` tells what is there
                self.cancel(before)
            again = f"sky jobs launch --name {handle} {file}"
            raise EngineError(f"sky jobs launch failed: {_last(done)}. Try: {again}")

    def _write(self, batch: Batch) -> list[pathlib.Path]:
        files = []
        for index in range(batch.size):
            file = batch.file.with_name(f"{batch.file.stem}.{index}.yaml")
            task = _checked_task(batch, index, self._settings)
            layout.write_atomically(file, manifest_schema.to_yaml(task))
            files.append(file)
        return files

    def find(self, batch: Batch) -> list[str] | None:
        """Returns the batch's handles where at least one of its jobs is known.

        Raises EngineError where SkyPilot cannot be asked.
        """
        handles = [sky_task.name(batch, index) for index in range(batch.size)]
        return handles if {r["job_name"] for r in self._queue()} & set(handles) else None

    def status(self, handles: Sequence[str]) -> dict[str, State]:
        """Returns a state per handle; GONE for a job that SkyPilot does not know."""
        try:
            queue = self._queue()
        except EngineError:
            return dict.fromkeys(handles, State.UNKNOWN)
        found: dict[str, list[State]] = {handle: [] for handle in handles}
        for record in queue:
            if record["job_name"] in found:
                found[record["job_name"]].append(state(record["status"]))
        return {handle: _liveliest(states) for handle, states in found.items()}

    def cancel(self, handles: Sequence[str]) -> None:
        """Cancels jobs by their numbers; what is on their machines is lost since the last save."""
        wanted = set(handles)
        numbers = [
            str(record["job_id"])
            for record in self._queue()
            if record["job_name"] in wanted and state(record["status"]) is not State.GONE
        ]
        if numbers:
            done = self._sky("jobs", "cancel", "--yes", *numbers)
            if done.returncode:
                raise EngineError(f"sky jobs cancel failed: {_last(done)}")

    def close(self) -> None:
        """Nothing is held."""

    def _queue(self) -> list[dict[str, Any]]:
        done = self._sky("jobs", "queue", "--all", "--output", "json")
        if done.returncode and _NO_CONTROLLER in done.stdout + done.stderr:
            return []
        if done.returncode:
            raise EngineError(f"sky jobs queue failed: {_last(done)}")
        # The command may say first, on the same stream, that it starts its server.
        start = re.search(r"^\[\s*(\{|\])", done.stdout, re.MULTILINE)
        try:
            text = done.stdout[start.start() :] if start else ""
            records = json.JSONDecoder().raw_decode(text)[0]
            return [{key: r[key] for key in ("job_id", "job_name", "status")} for r in records]
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(f"sky's answer is no list of jobs ({error}); {_NEEDED}") from error

    def _sky(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = shutil.which("sky")
        if program is None:
            raise EngineError(f"there is no command `sky` here: install {_NEEDED}")
        try:
            return subprocess.run(
                [program, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineError(f"sky {' '.join(arguments[:2])} did not answer: {error}") from error


def state(status: str) -> State:
    """Returns the state of a managed job's status; a word that is not known is UNKNOWN."""
    if status in _QUEUED:
        return State.QUEUED
    if status in _RUNNING:
        return State.RUNNING
    ended = re.fullmatch(r"SUCCEEDED|CANCELLED|FAILED(_[A-Z]+)*", status)
    return State.GONE if ended else State.UNKNOWN


def _liveliest(states: list[State]) -> State:
    for one in (State.RUNNING, State.QUEUED, State.UNKNOWN):
        if one in states:
            return one
    return State.GONE


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"
