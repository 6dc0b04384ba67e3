"""The SkyPilot launcher: managed jobs on rented machines, restarted wherever there are some.

Keys are checked offline, and tasks are written to `<study>/jobs/<batch>.<index>.yaml`; SkyPilot is
run by its command line alone and never imported (433 MB). docs/skypilot.md says what it needs.
"""

import contextlib
import json
import os
import pathlib
import re
import shlex
import subprocess
from collections.abc import Sequence
from typing import Any

from sweeps.launchers import remote
from sweeps.launchers.protocol import AGAIN, EngineError, State
from sweeps.launchers.skypilot import keys
from sweeps.records.submissions import Batch

KEYS, platform, devices = keys.KEYS, keys.platform, keys.devices
# Starting its local server takes 45 s; choosing and renting a controller takes minutes.
_TIMEOUT_S = 1200
_QUEUED = ("PENDING", "SUBMITTED", "STARTING", "RECOVERING")
_RUNNING = ("RUNNING", "WINDING_DOWN", "CANCELLING")
_NO_CONTROLLER = "No in-progress managed jobs"
_NEEDED = "skypilot>=0.12, in an environment of its own: pip install 'skypilot[gcp]'"


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError for what no cloud could run; no cloud is asked."""
    keys.check(settings)
    task(remote.sample(settings), 0, settings)  # what can be said but not written


def preview(settings: dict[str, Any], batch: Batch) -> str:
    """Returns what would be submitted for a batch's first job; the engine is not needed."""
    return remote.to_yaml(task(batch, 0, settings))


def requeue() -> bool:
    """Returns whether exit code 75 has SkyPilot run this job again."""
    return "SKYPILOT_TASK_ID" in os.environ


def launcher(settings: dict[str, Any], study_directory: pathlib.Path) -> "SkyPilot":
    """Returns the launcher of a study."""
    del study_directory
    return SkyPilot(settings)


def task(batch: Batch, index: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the task of job `index`; `settings` is the whole config.

    Source of its keys: SkyPilot's schema of tasks (0.14.1).
    """
    own = settings["skypilot"]
    mounted = remote.volume(settings, own)
    found = {
        "name": remote.job_name(batch, index),
        "resources": _resources(own),
        "envs": remote.environment(batch, own, mounted),
        **_storage(own, str(mounted.mount_path)),
        "setup": own["setup"],
        # Its exit code is the job's.
        "run": shlex.join(remote.command(batch, index, own, mounted)),
    }
    return {key: value for key, value in found.items() if value != ""}


def _resources(own: dict[str, Any]) -> dict[str, Any]:
    found = {
        "infra": own["infra"],
        "accelerators": own["accelerators"],
        "cpus": own["cpus"],
        "memory": own["memory"],
        "use_spot": own["spot"],
        "disk_size": own["disk_gb"],
        "image_id": own["image"],
    }
    recovery = {
        "strategy": own["recovery"],
        "max_restarts_on_errors": own["retries"],
        "recover_on_exit_codes": [AGAIN],
    }
    return {key: value for key, value in found.items() if value != ""} | {"job_recovery": recovery}


def _storage(own: dict[str, Any], mount_path: str) -> dict[str, Any]:
    if own["bucket"]:
        return {"file_mounts": {mount_path: {"source": own["bucket"], "mode": "MOUNT"}}}
    if own["volume"]:
        return {"volumes": {mount_path: own["volume"]}}
    return {}  # `setup` mounts a share there


class SkyPilot(remote.Engine):
    """Jobs as managed jobs; a handle is a job's name, which SkyPilot does not keep unique."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings["skypilot"])
        self._settings = settings

    def submit(self, batch: Batch) -> list[str]:
        """Writes and launches the tasks; those whose name is in the queue are not launched again.

        Raises EngineError where one is refused, after cancelling those that were launched, and
        where there was no answer: `find` tells.
        """
        files = remote.write_manifests(batch, task, self._settings)
        handles = remote.job_names(batch)
        there = {record["job_name"] for record in self._queue()} & set(handles)
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

    def find(self, batch: Batch) -> list[str] | None:
        """Returns the batch's handles where at least one of its jobs is known.

        Raises EngineError where SkyPilot cannot be asked.
        """
        handles = remote.job_names(batch)
        return handles if {r["job_name"] for r in self._queue()} & set(handles) else None

    def states(self, handles: Sequence[str]) -> dict[str, State]:
        """Returns a state per handle; GONE for a job that SkyPilot does not know."""
        found: dict[str, list[State]] = {handle: [] for handle in handles}
        for record in self._queue():
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
        absent = f"there is no command `sky` here: install {_NEEDED}"
        return remote.run(["sky", *arguments], absent, _TIMEOUT_S)


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
    return remote.last_line(done.stdout + done.stderr)
