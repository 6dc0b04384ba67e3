"""The keys of `--config.kubernetes`, and what they must be; the cluster itself is not asked."""

import math
from typing import Any

from sweeps.launchers import config_keys, remote
from sweeps.launchers.config_keys import Key, Range, Text, text

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
    "tpu_topology": text("of the slice", "such as 2x4 or 2x2x4", r"[1-9]\d*(x[1-9]\d*){1,2}", 20),
    "hosts": Key(1, "that compute one trial together", Range(1, 100_000)),
    "cpus": Key(4, "per host", Range(1, 65_536)),
    "memory": Key("16Gi", "per host", _ANY),
    "volume_claim": Key("", "the shared volume that holds the study, or bucket", _ANY),
    "bucket": text(
        "of Cloud Storage, with hierarchical namespace, that holds the study",
        "a bucket's name without gs://",
        r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]",
    ),
    "local_root": Key("", "where the volume is mounted here; empty: experiment_dir", _ABSOLUTE),
    "mount_path": Key("", "where the pods mount it; empty: local_root", _ABSOLUTE),
    "run_as": text(
        "who owns what pods write; empty: the image's user",
        "UID or UID:GID",
        r"\d{1,9}(:\d{1,9})?",
        20,
    ),
    "spot": Key(False, "on Google's spot nodes"),
    "tolerations": Key("", "key=value:NoSchedule,...", _ANY),
    "priority_class": Key("", "of the pods", _ANY),
    "service_account": Key("", "of the pods", _ANY),
    "save_seconds": Key(120, "between the order to stop and the end", Range(1, 86_400)),
    "retries": Key(3, "of a job that crashed; preemptions do not count", Range(0, 1_000_000)),
    "ttl_seconds": Key(3600, "after which a finished JobSet is deleted", Range(0, 31_536_000)),
    "trials_per_job": remote.TRIALS_PER_JOB,
    "workers": remote.workers("per pod that run trials"),
    "max_jobs": remote.max_jobs(100),
    "python": Key("python", "the command of Python in the image", _ANY),
    "environment": Key("", "NAME=VALUE NAME=VALUE", _ANY),
    "poll_seconds": remote.poll_seconds(30, "the cluster"),
}


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError for what no cluster could run."""
    own = settings["kubernetes"]
    config_keys.check(KEYS, own, "kubernetes.")
    for key in ("image", "namespace", "memory", "python"):
        if not own[key]:
            raise ValueError(f"launcher kubernetes needs --config.kubernetes.{key}")
    if bool(own["volume_claim"]) == bool(own["bucket"]):
        raise ValueError(
            "give one of kubernetes.volume_claim and kubernetes.bucket: where all pods and this "
            "host see the study"
        )
    _check_devices(own)


def _check_devices(own: dict[str, Any]) -> None:
    if own["gpus"] and own["tpu_type"]:
        raise ValueError("give one of kubernetes.gpus and kubernetes.tpu_type")
    if bool(own["tpu_type"]) != bool(own["tpu_topology"]):
        raise ValueError("kubernetes.tpu_type and kubernetes.tpu_topology go together")
    if own["gpu_type"] and not own["gpus"]:
        raise ValueError("kubernetes.gpu_type needs kubernetes.gpus=1 or more")
    if own["hosts"] > 1 and not (own["gpus"] or own["tpu_type"]):
        raise ValueError("kubernetes.hosts above 1 needs gpus or tpu_type")
    if own["hosts"] > 1 and own["workers"] > 1:
        raise ValueError("with kubernetes.hosts above 1 a trial takes all hosts: workers must be 1")
    if own["tpu_type"] and (_topology(own) % own["hosts"] or chips(own) not in (1, 4, 8)):
        raise ValueError(
            f"topology {own['tpu_topology']} over {own['hosts']} hosts is no slice: hosts have "
            "1, 4 or 8 chips. kubernetes.hosts is the number of nodes in the slice's node pool"
        )
    if _per_host(own) % own["workers"]:
        raise ValueError(
            f"kubernetes.workers={own['workers']} cannot share {_per_host(own)} devices"
        )


def chips(own: dict[str, Any]) -> int:
    """Returns how many TPU chips one host has: the topology's over the hosts."""
    return _topology(own) // int(own["hosts"])


def _topology(own: dict[str, Any]) -> int:
    return math.prod(map(int, own["tpu_topology"].split("x")))


def _per_host(own: dict[str, Any]) -> int:
    """Returns how many devices a host has; each process on CPUs counts one."""
    return int(own["gpus"] or (chips(own) if own["tpu_type"] else own["workers"]))


def platform(settings: dict[str, Any]) -> str:
    """Returns 'gpu', 'tpu' or 'cpu'."""
    own = settings["kubernetes"]
    return "tpu" if own["tpu_type"] else "gpu" if own["gpus"] else "cpu"


def devices(settings: dict[str, Any]) -> int:
    """Returns how many devices a trial sees: chips or GPUs, over all hosts."""
    own = settings["kubernetes"]
    return _per_host(own) * int(own["hosts"]) // int(own["workers"])
