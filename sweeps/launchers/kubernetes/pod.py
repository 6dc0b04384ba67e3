"""The pod of a job: what it runs, on which nodes, with which devices, volume and variables."""

import math
from typing import Any

from sweeps.distributed import bootstrap
from sweeps.launchers import remote
from sweeps.launchers.protocol import Batch

CONTAINER, VOLUME, PORT = "trial", "study", 8476
# Labels of Google's node pools; other clusters give gpu_type as label=value.
GPU_LABEL = "cloud.google.com/gke-accelerator"
TPU_LABEL, TOPOLOGY_LABEL = (
    "cloud.google.com/gke-tpu-accelerator",
    "cloud.google.com/gke-tpu-topology",
)
SPOT_LABEL = "cloud.google.com/gke-spot"
# A FUSE mount caches attributes for 60 s by default: claims and heartbeats must be seen at once.
_FUSE_OPTIONS = "metadata-cache:ttl-secs:0"


def chips(own: dict[str, Any]) -> int:
    """Returns how many TPU chips one host has: the topology's over the hosts."""
    return math.prod(map(int, own["tpu_topology"].split("x"))) // own["hosts"]


def coordinator(jobset: str, job: str) -> str:
    """Returns the address of a JobSet's first pod, the same after every restart."""
    return f"{jobset}-{job}-0-0.{jobset}:{PORT}"


def metadata(own: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    """Returns the pod's metadata; the annotation asks for the sidecar that mounts the bucket."""
    if not own["bucket"]:
        return {"labels": labels}
    return {"labels": labels, "annotations": {"gke-gcsfuse/volumes": "true"}}


def spec(
    batch: Batch, index: int, settings: dict[str, Any], coordinator_address: str
) -> dict[str, Any]:
    """Returns the pod's specification. `settings` is the whole config."""
    own = settings["kubernetes"]
    found: dict[str, Any] = {
        # Required by podFailurePolicy.
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": own["save_seconds"],
        "containers": [_container(batch, index, settings, coordinator_address)],
        "volumes": [_volume(own), {"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "nodeSelector": _node_selector(own),
        "tolerations": _tolerations(own),
        "affinity": _avoid(batch.avoid),
        "priorityClassName": own["priority_class"],
        "serviceAccountName": own["service_account"],
        "securityContext": _identity(own),
    }
    return {key: value for key, value in found.items() if value not in ("", {}, [], None)}


def _container(
    batch: Batch, index: int, settings: dict[str, Any], coordinator_address: str
) -> dict[str, Any]:
    own = settings["kubernetes"]
    mapped = remote.mapping(settings, own)
    command = remote.command(batch, index, own, mapped)
    if own["volume_claim"]:  # a bucket takes a file when it is closed: there, `kubectl logs`
        # `exec`: the job is process 1, so that SIGTERM reaches it.
        script = 'log=$1; shift; exec "$@" >>"$log" 2>&1'
        if own["hosts"] > 1:  # each host its own
            other = '[ "$JOB_COMPLETION_INDEX" = 0 ] || log=$log.$JOB_COMPLETION_INDEX; '
            script = script.replace("shift; ", "shift; " + other)
        command = ["/bin/sh", "-c", script, "sh", mapped.path(batch.log(index)), *command]
    variables = _hosts(own, coordinator_address) | remote.environment(batch, own, mapped)
    amounts = _amounts(own)
    return {
        "name": CONTAINER,
        "image": own["image"],
        "command": [_literal(part) for part in command],
        "env": _fields(own)
        + [{"name": key, "value": _literal(value)} for key, value in variables.items()],
        # Equal requests and limits: evicted last when a node runs out of memory.
        "resources": {"requests": amounts, "limits": amounts},
        "volumeMounts": [
            {"name": VOLUME, "mountPath": str(mapped.mount_path)},
            {"name": "shm", "mountPath": "/dev/shm"},  # 64 MiB otherwise: too small for NCCL
        ],
    }


def _hosts(own: dict[str, Any], coordinator_address: str) -> dict[str, str]:
    """Returns what a process needs to find the other hosts (`sweeps.distributed.bootstrap`) and its
    devices."""
    found = {}
    if own["gpus"]:
        # The files of the devices carry the node's numbers, CUDA counts the container's from 0.
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(own["gpus"])))
    if own["hosts"] > 1 and not own["tpu_type"]:  # the hosts of a TPU slice know of each other
        found[bootstrap.COORDINATOR] = coordinator_address
        found[bootstrap.COUNT] = str(own["hosts"])
    return found


def _fields(own: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns variables that only the cluster can fill in."""
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    paths = {"ATTNPERF_NODE": "spec.nodeName"}
    if own["hosts"] > 1 and not own["tpu_type"]:
        paths[bootstrap.ID] = index
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in paths.items()
    ]


def _literal(text: str) -> str:
    """Returns a text that Kubernetes leaves as it is: it would fill in $(NAME)."""
    return text.replace("$(", "$$(")


def _amounts(own: dict[str, Any]) -> dict[str, str]:
    amounts = {"cpu": str(own["cpus"]), "memory": own["memory"]}
    if own["gpus"]:
        amounts["nvidia.com/gpu"] = str(own["gpus"])
    if own["tpu_type"]:
        amounts["google.com/tpu"] = str(chips(own))
    return amounts


def _volume(own: dict[str, Any]) -> dict[str, Any]:
    if own["volume_claim"]:
        return {"name": VOLUME, "persistentVolumeClaim": {"claimName": own["volume_claim"]}}
    options = _FUSE_OPTIONS
    if own["run_as"]:
        uid, _, gid = own["run_as"].partition(":")
        options += f",uid={uid},gid={gid or uid}"
    attributes = {"bucketName": own["bucket"], "mountOptions": options}
    driver = {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes}
    return {"name": VOLUME, "csi": driver}


def _identity(own: dict[str, Any]) -> dict[str, Any]:
    if not own["run_as"]:
        return {}
    uid, _, gid = own["run_as"].partition(":")
    group = int(gid or uid)
    return {
        "runAsUser": int(uid),
        "runAsGroup": group,
        "fsGroup": group,
        "fsGroupChangePolicy": "OnRootMismatch",  # not file by file at every start
    }


def _node_selector(own: dict[str, Any]) -> dict[str, str]:
    found = {}
    if own["gpu_type"]:
        label, separator, value = own["gpu_type"].rpartition("=")
        found[label if separator else GPU_LABEL] = value
    if own["tpu_type"]:
        found |= {TPU_LABEL: own["tpu_type"], TOPOLOGY_LABEL: own["tpu_topology"]}
    if own["spot"]:
        found[SPOT_LABEL] = "true"
    return found


def _tolerations(own: dict[str, Any]) -> list[dict[str, str]]:
    keys = ["nvidia.com/gpu"] * bool(own["gpus"]) + ["google.com/tpu"] * bool(own["tpu_type"])
    keys += [SPOT_LABEL] * own["spot"]
    found = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    return found + tolerations(own["tolerations"])


def tolerations(text: str) -> list[dict[str, str]]:
    """Returns the tolerations of "team=vision:NoSchedule,dedicated:NoExecute".

    Raises ValueError for anything else.
    """
    found = []
    for part in filter(None, text.split(",")):
        taint, _, effect = part.partition(":")
        key, separator, value = taint.partition("=")
        if not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise ValueError(f"{part!r} is no taint; give KEY:EFFECT or KEY=VALUE:EFFECT")
        equal = {"operator": "Equal", "value": value} if separator else {"operator": "Exists"}
        found.append({"key": key, **equal, "effect": effect})
    return found


def _avoid(hosts: tuple[str, ...]) -> dict[str, Any]:
    if not hosts:
        return {}
    # By the node's name, which a field holds alone: labels may differ from it.
    fields = [
        {"key": "metadata.name", "operator": "NotIn", "values": [host]} for host in sorted(hosts)
    ]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
