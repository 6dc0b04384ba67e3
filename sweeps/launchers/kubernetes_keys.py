"""The keys of `--config.kubernetes`, and what they must be; the cluster itself is not asked."""

import math
from typing import Any

from sweeps.launchers import pod, remote

DEFAULTS: dict[str, Any] = {
    "namespace": "default",
    "context": "",  # of kubectl's configuration; empty: its current one
    "queue": "",  # Kueue's LocalQueue; empty: no queue
    "image": "",  # with Python and attnperf's dependencies
    "gpus": 0,  # per host
    "gpu_type": "",  # such as nvidia-h100-80gb, or label=value
    "tpu_type": "",  # such as tpu-v5-lite-podslice
    "tpu_topology": "",  # such as 4x4
    "hosts": 1,  # that compute one trial together
    "cpus": 4,  # per host
    "memory": "16Gi",  # per host
    "volume_claim": "",  # the shared volume that holds the study, or
    "bucket": "",  # the Cloud Storage bucket (with hierarchical namespace) that holds it
    "local_root": "",  # where the volume is mounted here; empty: experiment_dir
    "mount_path": "",  # where the pods mount it; empty: local_root
    "run_as": "",  # UID or UID:GID that owns what pods write; empty: the image's
    "spot": False,  # on Google's spot nodes
    "tolerations": "",  # key=value:NoSchedule,...
    "priority_class": "",
    "service_account": "",
    "save_seconds": 120,  # between the order to stop and the end
    "retries": 3,  # of a job that crashed; preemptions do not count
    "ttl_seconds": 3600,  # after which a finished JobSet is deleted
    "trials_per_job": 1,
    "workers": 1,  # processes per pod that run trials
    "max_jobs": 100,
    "python": "python",
    "environment": "",  # NAME=VALUE NAME=VALUE
    "poll_seconds": 30,
}
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*"
_NAMES = "a name of Kubernetes: lower-case letters, digits, '-' and '.'"
_PATTERNS = {
    "namespace": (_LABEL, "lower-case letters, digits and '-', at most 63"),
    "context": (r"\S+", "a name without spaces"),
    "queue": (_LABEL, "the name of a LocalQueue: lower-case letters, digits and '-', at most 63"),
    "image": (r"[^\s:/][^\s]*", "an image's reference without spaces"),
    "gpu_type": (
        r"([a-z0-9.-]+/)?([\w.-]+=)?[A-Za-z0-9][\w.-]*",
        "a value of the label cloud.google.com/gke-accelerator, or label=value",
    ),
    "tpu_type": (r"tpu[a-z0-9-]*", "a value of the label cloud.google.com/gke-tpu-accelerator"),
    "tpu_topology": (r"[1-9]\d*(x[1-9]\d*){1,2}", "such as 2x4 or 2x2x4"),
    "memory": (r"[1-9]\d*(\.\d+)?([kMGT]i?|Ki)?", "a quantity such as 16Gi"),
    "volume_claim": (_SUBDOMAIN, _NAMES),
    "bucket": (r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", "a bucket's name without gs://"),
    "run_as": (r"\d+(:\d+)?", "UID or UID:GID"),
    "priority_class": (_SUBDOMAIN, _NAMES),
    "service_account": (_SUBDOMAIN, _NAMES),
}


def check_keys(settings: dict[str, Any]) -> None:
    """Raises ValueError for what no cluster could run."""
    own = settings["kubernetes"]
    for key, (pattern, wanted) in _PATTERNS.items():
        remote.require("kubernetes", own, key, pattern, wanted)
    for key in ("image", "namespace", "memory", "python"):
        if not own[key]:
            raise ValueError(f"launcher kubernetes needs --config.kubernetes.{key}")
    remote.at_least("kubernetes", own, hosts=1, cpus=1, trials_per_job=1, workers=1, max_jobs=1)
    remote.at_least("kubernetes", own, gpus=0, save_seconds=1, retries=0, ttl_seconds=0)
    remote.at_least("kubernetes", own, poll_seconds=1)
    if bool(own["volume_claim"]) == bool(own["bucket"]):
        raise ValueError(
            "give one of kubernetes.volume_claim and kubernetes.bucket: where all pods and this "
            "host see the study"
        )
    _check_devices(own)
    remote.check_paths("kubernetes", settings, own)


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
    if own["tpu_type"] and not _is_slice(own):
        raise ValueError(
            f"topology {own['tpu_topology']} over {own['hosts']} hosts is no slice: hosts have "
            "1, 4 or 8 chips. kubernetes.hosts is the number of nodes in the slice's node pool"
        )
    per_host = own["gpus"] or (pod.chips(own) if own["tpu_type"] else own["workers"])
    if per_host % own["workers"]:
        raise ValueError(f"kubernetes.workers={own['workers']} cannot share {per_host} devices")


def _is_slice(own: dict[str, Any]) -> bool:
    chips = math.prod(map(int, own["tpu_topology"].split("x")))
    return chips % own["hosts"] == 0 and pod.chips(own) in (1, 4, 8)


def platform(settings: dict[str, Any]) -> str:
    """Returns 'gpu', 'tpu' or 'cpu'."""
    own = settings["kubernetes"]
    return "tpu" if own["tpu_type"] else "gpu" if own["gpus"] else "cpu"


def devices(settings: dict[str, Any]) -> int:
    """Returns how many devices a trial sees: chips or GPUs, over all hosts."""
    own = settings["kubernetes"]
    per_host = own["gpus"] or (pod.chips(own) if own["tpu_type"] else own["workers"])
    return int(per_host) * int(own["hosts"]) // int(own["workers"])
