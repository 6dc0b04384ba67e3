"""The SkyPilot task of a job, and the schema it is checked by before it is handed over.

SkyPilot 0.14's client passes unknown keys of `job_recovery` on without a word; here they are
refused. Source of the keys: SkyPilot's own schema of tasks (sky/utils/schemas.py, 0.14.1).
"""

import shlex
from typing import Any

from sweeps.launchers import remote
from sweeps.launchers.manifest_schema import (
    COUNT,
    EXIT_CODES,
    FLAG,
    NAME,
    TEXT,
    TEXTS,
    Schema,
    keys,
    one_of,
)
from sweeps.launchers.protocol import AGAIN, Batch

_RESOURCES = keys(
    infra=NAME,
    accelerators=NAME,
    accelerator_args=keys(runtime_version=NAME, tpu_name=NAME, tpu_vm=FLAG),
    cpus=NAME,
    memory=NAME,
    instance_type=NAME,
    use_spot=FLAG,
    disk_size={"type": "integer", "minimum": 1},
    disk_tier=one_of("low", "medium", "high", "ultra", "best"),
    image_id=NAME,
    labels=TEXTS,
    job_recovery=keys(
        strategy=one_of("EAGER_NEXT_REGION", "FAILOVER"),
        max_restarts_on_errors=COUNT,
        recover_on_exit_codes=EXIT_CODES,
    ),
)
_BUCKET = keys(
    "source mode",
    source={"type": "string", "pattern": "^gs://[a-z0-9]"},
    mode=one_of("MOUNT"),
    store=one_of("gcs"),
    persistent=FLAG,
)
TASK: Schema = keys(
    "name resources run",
    name={"type": "string", "pattern": r"^[a-zA-Z]([-_.a-zA-Z0-9]*[a-zA-Z0-9])?$"},
    num_nodes={"type": "integer", "const": 1},
    resources=_RESOURCES,
    envs={
        "type": "object",
        "propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"},
        "additionalProperties": TEXT,
    },
    file_mounts={
        "type": "object",
        "propertyNames": {"pattern": "^/"},
        "additionalProperties": _BUCKET,
    },
    volumes={
        "type": "object",
        "propertyNames": {"pattern": "^/"},
        "additionalProperties": NAME,
    },
    setup=TEXT,
    run=NAME,
)


def name(batch: Batch, index: int) -> str:
    """Returns the managed job's name, which is also the handle."""
    return f"{batch.name}-{index}"


def task(batch: Batch, index: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the task of job `index`; `settings` is the whole config."""
    own = settings["skypilot"]
    mapped = remote.mapping(settings, own)
    found = {
        "name": name(batch, index),
        "resources": _resources(own),
        "envs": remote.environment(batch, own, mapped),
        **_storage(own, str(mapped.mount_path)),
        "setup": own["setup"],
        # Its exit code is the job's.
        "run": shlex.join(remote.command(batch, index, own, mapped)),
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
