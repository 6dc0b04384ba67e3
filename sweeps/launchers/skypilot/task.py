"""The SkyPilot task of a job. Source of its keys: SkyPilot's schema of tasks (0.14.1)."""

import shlex
from typing import Any

from sweeps.launchers import remote
from sweeps.launchers.protocol import AGAIN
from sweeps.records.submissions import Batch


def task(batch: Batch, index: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the task of job `index`; `settings` is the whole config."""
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
