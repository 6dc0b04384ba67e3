"""The keys of `--config.kubernetes`, and what they must be; the cluster itself is not asked."""

import math
from typing import Any

from sweeps.launchers import config_keys, remote
from sweeps.launchers.config_keys import Key, Range, Text
from sweeps.launchers.protocol import Devices

_ANY = Text()
_ABSOLUTE = Text("an absolute path below /, without ':'", r"/+[^:/][^:]*")
# The server judges names, labels and quantities. Patterns stand where it would accept a mistake, or
# where the launcher computes with the value.
KEYS = {
    "namespace": Key("default", "of the pods", _ANY),
    "context": Key("", "of kubectl's configuration; empty: its current one", _ANY),
    "queue": Key("", "Kueue's LocalQueue; empty: none", _ANY),
    "image": Key("", "with Python and attnperf's dependencies", _ANY),
    "gpus": Key(0, "per host", Range(0, 1024)),
    "gpu_type": Key(
        "", "label cloud.google.com/gke-accelerator, such as nvidia-l4, or label=value", _ANY
    ),
    "tpu_type": Key(
        "", "label cloud.google.com/gke-tpu-accelerator, such as tpu-v5-lite-podslice", _ANY
    ),
    "tpu_topology": Key(
        "", "of the slice", Text("such as 2x4 or 2x2x4", r"[1-9]\d*(x[1-9]\d*){1,2}", 20)
    ),
    "hosts": Key(1, "that compute one trial together", Range(1, 100_000)),
    "cpus": Key(4, "per host", Range(1, 65_536)),
    "memory": Key("16Gi", "per host", _ANY),
    "volume_claim": Key("", "the shared volume that holds the study, or bucket", _ANY),
    "bucket": Key(
        "",
        "of Cloud Storage, with hierarchical namespace, that holds the study",
        Text("a bucket's name without gs://", r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]"),
    ),
    "local_root": Key("", "where the volume is mounted here; empty: experiment_dir", _ABSOLUTE),
    "mount_path": Key("", "where the pods mount it; empty: local_root", _ABSOLUTE),
    "run_as": Key(
        "",
        "who owns what pods write; empty: the image's user",
        Text("UID or UID:GID", r"\d{1,9}(:\d{1,9})?", 20),
    ),
    "spot": Key(False, "on Google's spot nodes"),
    "tolerations": Key("", "key=value:NoSchedule,...", _ANY),
    "priority_class": Key("", "of the pods", _ANY),
    "service_account": Key("", "of the pods", _ANY),
    "save_seconds": Key(120, "between the order to stop and the end", Range(1, 86_400)),
    "retries": Key(3, "of a job that crashed; preemptions do not count", Range(0, 1_000_000)),
    "ttl_seconds": Key(3600, "after which a finished JobSet is deleted", Range(0, 31_536_000)),
    "trials_per_job": remote.TRIALS_PER_JOB,
    "workers": Key(1, "processes per pod that run trials", remote.PROCESSES),
    "max_jobs": Key(100, "queued or running at a time", remote.COUNT),
    "python": Key("python", "the command of Python in the image", _ANY),
    "environment": Key("", "NAME=VALUE NAME=VALUE", _ANY),
    "poll_seconds": Key(30, "between questions to the cluster", remote.SECONDS),
}


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError for what no cluster could run."""
    keys = settings["kubernetes"]
    config_keys.check(KEYS, keys, "kubernetes.")
    for key in ("image", "namespace", "memory", "python"):
        if not keys[key]:
            raise ValueError(f"launcher kubernetes needs --config.kubernetes.{key}")
    if bool(keys["volume_claim"]) == bool(keys["bucket"]):
        raise ValueError(
            "give one of kubernetes.volume_claim and kubernetes.bucket: where all pods and this "
            "host see the study"
        )
    if keys["gpus"] and keys["tpu_type"]:
        raise ValueError("give one of kubernetes.gpus and kubernetes.tpu_type")
    if bool(keys["tpu_type"]) != bool(keys["tpu_topology"]):
        raise ValueError("kubernetes.tpu_type and kubernetes.tpu_topology go together")
    if keys["gpu_type"] and not keys["gpus"]:
        raise ValueError("kubernetes.gpu_type needs kubernetes.gpus=1 or more")
    devices = hardware(settings)
    if devices.kind == "tpu" and (
        _chips(keys) % keys["hosts"] or devices.per_node not in (1, 4, 8)
    ):
        raise ValueError(
            f"topology {keys['tpu_topology']} over {keys['hosts']} hosts is no slice: hosts have "
            "1, 4 or 8 chips. kubernetes.hosts is the number of nodes in the slice's node pool"
        )
    devices.check("kubernetes")


def hardware(settings: dict[str, Any]) -> Devices:
    """Returns the devices of a job: of a TPU slice, each host has its part of the chips."""
    keys = settings["kubernetes"]
    if keys["tpu_type"]:
        return Devices("tpu", _chips(keys) // keys["hosts"], keys["hosts"], keys["workers"])
    return Devices("gpu" if keys["gpus"] else "cpu", keys["gpus"], keys["hosts"], keys["workers"])


def _chips(keys: dict[str, Any]) -> int:
    """Returns how many TPU chips a slice has."""
    return math.prod(map(int, keys["tpu_topology"].split("x")))
