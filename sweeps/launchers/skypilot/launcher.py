"""The SkyPilot launcher: managed jobs on rented machines, restarted wherever there are some.

Keys are checked offline, and tasks are written to `<study>/jobs/<batch>.<index>.yaml`; SkyPilot is
run by its command line alone and never imported (433 MB). docs/skypilot.md says what it needs.
"""

import contextlib
import os
import pathlib
import re
import shlex
import subprocess
from collections.abc import Sequence
from typing import Any

from sweeps.launchers import config_keys, remote
from sweeps.launchers.config_keys import Key, OneOf, Range, Text, text
from sweeps.launchers.protocol import AGAIN, EngineError, State
from sweeps.records.submissions import Batch

KEYS = {
    "infra": text(
        "empty: the cheapest",
        "cloud[/region[/zone]], such as gcp/us-central1, or k8s",
        r"[A-Za-z0-9*][^\s]*",
    ),
    "accelerators": text(
        "of a machine; empty: trials compute on its CPUs",
        "NAME or NAME:COUNT, such as A100:2",
        r"[A-Za-z][\w-]*(:[1-9]\d{0,3})?",
    ),
    "cpus": text("of a machine", "such as 8 or 8+", r"[1-9]\d*\+?", 20),
    "memory": text("of a machine", "gigabytes, such as 32 or 32+", r"[1-9]\d*\+?", 20),
    "disk_gb": Key(256, "of a machine", Range(1, 1_000_000)),
    "spot": Key(True, "machines that may be taken away, at a lower price"),
    "image": Key("", "such as docker:registry/attnperf:1", Text()),
    "bucket": text(
        "with hierarchical namespace: holds the study, or volume, or setup",
        "gs://NAME: mounts of other stores do not rename directories atomically, and a claim "
        "on a trial is such a rename",
        r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/\S*)?",
    ),
    "volume": text(
        "of SkyPilot's, that holds the study",
        "a volume's name, as `sky volumes ls` prints it",
        r"[a-z0-9]([-a-z0-9]*[a-z0-9])?",
    ),
    **remote.volume_keys("storage", "machines"),
    "setup": Key(
        "",
        "shell commands before the job, on every new machine; may mount a share at mount_path",
        Text(),
    ),
    "recovery": Key(
        "EAGER_NEXT_REGION",
        "where a preempted job goes on; FAILOVER: the same region first",
        OneOf(("EAGER_NEXT_REGION", "FAILOVER")),
    ),
    "retries": remote.RETRIES,
    "trials_per_job": remote.TRIALS_PER_JOB,
    "workers": remote.workers("per machine that run trials"),
    "max_jobs": remote.max_jobs(20),
    "python": Key("python", "the command of Python on the machines", Text()),
    "environment": remote.ENVIRONMENT,
    "poll_seconds": remote.poll_seconds(60, "SkyPilot"),
}
# What fits on one host, and the devices that JAX sees there (v4 and v5p: two cores are one device).
_TPUS = {
    "tpu-v2-8": 8,
    "tpu-v3-8": 8,
    "tpu-v4-8": 4,
    "tpu-v5p-8": 4,
    **{f"tpu-{kind}-{n}": n for kind in ("v5e", "v5litepod", "v6e") for n in (1, 4, 8)},
}
# Starting its local server takes 45 s; choosing and renting a controller takes minutes.
_TIMEOUT_S = 1200
_QUEUED = ("PENDING", "SUBMITTED", "STARTING", "RECOVERING")
_RUNNING = ("RUNNING", "WINDING_DOWN", "CANCELLING")
# Of jobs of one name the first of these counts.
_LIVELIEST = (State.RUNNING, State.QUEUED, State.UNKNOWN, State.GONE)
_NO_CONTROLLER = "No in-progress managed jobs"
_NEEDED = "skypilot>=0.12, in an environment of its own: pip install 'skypilot[gcp]'"


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError for what no cloud could run; no cloud is asked."""
    own = settings["skypilot"]
    config_keys.check(KEYS, own, "skypilot.")
    if own["bucket"] and own["volume"]:
        raise ValueError("give one of skypilot.bucket and skypilot.volume")
    if not (own["bucket"] or own["volume"] or own["setup"]):
        raise ValueError(
            "the machines must see the study: give skypilot.bucket, skypilot.volume, or a "
            "skypilot.setup that mounts a share at skypilot.mount_path"
        )
    if not own["python"]:
        raise ValueError("skypilot.python is empty; give the command of Python on the machines")
    remote.check_workers("skypilot", own, _count(own))  # none: each process has CPUs of its own
    remote.check_paths("skypilot", settings, own)
    task(remote.sample(settings), 0, settings)  # what can be said but not written


def platform(settings: dict[str, Any]) -> str:
    """Returns 'gpu', 'tpu' or 'cpu'."""
    accelerators = settings["skypilot"]["accelerators"]
    if not accelerators:
        return "cpu"
    return "tpu" if accelerators.startswith("tpu-") else "gpu"


def devices(settings: dict[str, Any]) -> int:
    """Returns how many devices a trial sees."""
    own = settings["skypilot"]
    return (_count(own) or own["workers"]) // int(own["workers"])


def _count(own: dict[str, Any]) -> int:
    """Returns how many devices a machine has, 0 where it computes on its CPUs."""
    kind, _, count = own["accelerators"].partition(":")
    if not kind.startswith("tpu-"):
        return int(count or 1) if kind else 0
    if kind not in _TPUS or count not in ("", "1"):
        raise ValueError(
            f"skypilot.accelerators is {own['accelerators']!r}; TPUs of one host are "
            f"{', '.join(_TPUS)}. Larger slices: launcher kubernetes"
        )
    return _TPUS[kind]


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
    resources = {
        **{key: own[key] for key in ("infra", "accelerators", "cpus", "memory")},
        "use_spot": own["spot"],
        "disk_size": own["disk_gb"],
        "image_id": own["image"],
    }
    recovery = {"strategy": own["recovery"], "max_restarts_on_errors": own["retries"]}
    recovery["recover_on_exit_codes"] = [AGAIN]
    mount_path = str(mounted.mount_path)
    bucket = {mount_path: {"source": own["bucket"], "mode": "MOUNT"}}
    found = {
        "name": remote.job_name(batch, index),
        "resources": remote.filled(resources) | {"job_recovery": recovery},
        "envs": remote.environment(batch, own, mounted),
        # With neither, `setup` mounts a share there.
        "file_mounts": bucket if own["bucket"] else {},
        "volumes": {mount_path: own["volume"]} if own["volume"] else {},
        "setup": own["setup"],
        # Its exit code is the job's.
        "run": shlex.join(remote.command(batch, index, own, mounted)),
    }
    return remote.filled(found)


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
        return {
            handle: min(states, default=State.GONE, key=_LIVELIEST.index)
            for handle, states in found.items()
        }

    def cancel(self, handles: Sequence[str]) -> None:
        """Cancels jobs by their numbers; what is on their machines is lost since the last save."""
        if not (wanted := set(handles)):
            return
        known = [record for record in self._queue() if record["job_name"] in wanted]
        alive = [record for record in known if state(record["status"]) is not State.GONE]
        if numbers := [str(record["job_id"]) for record in alive]:
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
        for records in remote.json_values(done.stdout):
            with contextlib.suppress(KeyError, TypeError):
                return [{key: r[key] for key in ("job_id", "job_name", "status")} for r in records]
        raise EngineError(f"sky's answer is no list of jobs: {_last(done)}; {_NEEDED}")

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


def _last(done: subprocess.CompletedProcess[str]) -> str:
    return remote.last_line(done.stdout + done.stderr)
