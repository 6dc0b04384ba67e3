"""The manifest of a job: a JobSet of one replicated job, one pod per host, from the config's keys.

One JobSet per job of a batch and not one for all of it: Kueue admits, suspends and preempts whole
JobSets, so that a study's jobs enter a busy cluster one by one, and a job that fails for good ends
nothing else. Exit codes decide about restarts (see sweeps/launchers/protocol.py).
"""

import dataclasses
import json
import os
import pathlib
import re
from typing import Any

from sweeps.launchers import protocol, remote
from sweeps.launchers.kubernetes.keys import hardware
from sweeps.records.submissions import Batch

JOB = "w"
STUDY_LABEL, BATCH_LABEL, INDEX_LABEL = "attnperf/study", "attnperf/batch", "attnperf/index"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
CONTAINER, VOLUME, PORT = "trial", "study", 8476
# Labels of Google's node pools; other clusters give gpu_type as label=value.
GPU_LABEL = "cloud.google.com/gke-accelerator"
TPU_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
SPOT_LABEL = "cloud.google.com/gke-spot"
_TAINT = re.compile(r"([\w./-]+)(?:(=)([\w.-]*))?:(NoSchedule|PreferNoSchedule|NoExecute)")
# A FUSE mount caches attributes for 60 s by default: claims and heartbeats must be seen at once.
_FUSE_OPTIONS = "metadata-cache:ttl-secs:0"


@dataclasses.dataclass(frozen=True)
class Volume:
    """A volume with its root at `local_root` for the driver, at `mount_path` in a pod."""

    local_root: pathlib.PurePosixPath
    mount_path: pathlib.PurePosixPath

    def path(self, local: str | os.PathLike[str]) -> str:
        """Returns a path as a pod sees it. Raises ValueError for one outside of the volume."""
        if not pathlib.PurePosixPath(local).is_relative_to(self.local_root):
            raise ValueError(
                f"{local} is not below {self.local_root}, the part of this host's files that the "
                "pods see: set kubernetes.local_root to where the volume is mounted here, and put "
                "experiment_dir on it"
            )
        return str(self.mount_path / pathlib.PurePosixPath(local).relative_to(self.local_root))

    def value(self, name: str, text: str) -> str:
        """Returns a variable's value with every path of the volume as a pod sees it.

        Raises ValueError if PYTHONPATH names anything else: the code must be on the volume.
        """
        return os.pathsep.join(
            self.path(part)
            if name == "PYTHONPATH" or pathlib.PurePosixPath(part).is_relative_to(self.local_root)
            else part
            for part in text.split(os.pathsep)
        )


def volume(settings: dict[str, Any]) -> Volume:
    """Returns a study's volume: local_root is experiment_dir by default, mount_path local_root."""
    keys = settings["kubernetes"]
    local = keys["local_root"] or settings["experiment_dir"]
    # The volume may be mounted through a link: batches name resolved paths.
    root = pathlib.PurePosixPath(pathlib.Path(local).resolve())
    return Volume(root, pathlib.PurePosixPath(keys["mount_path"] or root))


def study_label(study: str) -> str:
    """Returns a study's name as a label's value."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", study)[:63].strip("-_.") or "study"


def jobset(batch: Batch, index: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the manifest of job `index`; `settings` is the whole config."""
    keys = settings["kubernetes"]
    labels = {
        "app.kubernetes.io/managed-by": "attnperf",
        STUDY_LABEL: study_label(settings["name"]),
        BATCH_LABEL: batch.name,
        INDEX_LABEL: str(index),
    }
    # Asks for the sidecar that mounts the bucket.
    annotations = {"gke-gcsfuse/volumes": "true"} if keys["bucket"] else {}
    pod_metadata = _filled({"labels": labels, "annotations": annotations})
    pod = {"metadata": pod_metadata, "spec": _pod(batch, index, settings)}
    job = {
        "completionMode": "Indexed",
        "completions": keys["hosts"],
        "parallelism": keys["hosts"],
        "backoffLimit": keys["retries"] if keys["hosts"] == 1 else 0,
        # A pod that still saves keeps its successor waiting.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _pod_failure_rules(keys["hosts"])},
        "template": pod,
    }
    template = {"metadata": {"labels": labels}, "spec": job}
    spec = {
        "ttlSecondsAfterFinished": keys["ttl_seconds"],
        "failurePolicy": _failure_policy(keys),
        # A name of its own for each pod, and the service that goes with it, only where needed.
        "network": {"enableDNSHostnames": keys["hosts"] > 1},
        "replicatedJobs": [{"name": JOB, "replicas": 1, "template": template}],
    }
    # All pods of a slice on one node pool, which they have to themselves.
    topology = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    metadata = {
        "name": remote.job_name(batch, index),
        "namespace": keys["namespace"],
        "labels": _filled(labels | {QUEUE_LABEL: keys["queue"]}),
        "annotations": topology if keys["tpu_type"] and keys["hosts"] > 1 else {},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _filled(metadata),
        "spec": spec,
    }


def job(jobset_manifest: dict[str, Any]) -> dict[str, Any]:
    """Returns the Job of a JobSet's manifest as a manifest of its own."""
    metadata = {key: jobset_manifest["metadata"][key] for key in ("name", "namespace")}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": jobset_manifest["spec"]["replicatedJobs"][0]["template"]["spec"],
    }


def to_yaml(document: dict[str, Any]) -> str:
    """Returns plain data as YAML, without anchors."""
    import yaml

    return str(yaml.safe_dump(json.loads(json.dumps(document)), sort_keys=False))


def _filled(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a document without the keys whose value is '', {} or []."""
    return {key: value for key, value in document.items() if value not in ("", {}, [])}


def _failure_policy(keys: dict[str, Any]) -> dict[str, Any]:
    if keys["hosts"] == 1:
        return {"maxRestarts": 0}  # the job itself restarts its pod
    # The hosts of a slice compute together: when one goes, all start again from the checkpoint.
    evicted = {
        "name": "evicted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    restarts = {"maxRestarts": keys["retries"], "restartStrategy": "BlockingRecreate"}
    return restarts | {"rules": [evicted]}


def _pod_failure_rules(hosts: int) -> list[dict[str, Any]]:
    disruption = [{"type": "DisruptionTarget", "status": "True"}]
    if hosts > 1:
        # The job's failure is then called PodFailurePolicy, and the JobSet does not count it. It
        # counts all others, AGAIN too: processes that lose each other end with it.
        return [{"action": "FailJob", "onPodConditions": disruption}]

    def on(code: int) -> dict[str, Any]:
        return {"containerName": CONTAINER, "operator": "In", "values": [code]}

    return [
        {"action": "Ignore", "onPodConditions": disruption},
        {"action": "Ignore", "onExitCodes": on(protocol.AGAIN)},
        {"action": "FailJob", "onExitCodes": on(protocol.WRONG_NODE)},
    ]


def _pod(batch: Batch, index: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns a pod's specification: what it runs, on which nodes, with what."""
    keys = settings["kubernetes"]
    # By the node's name, which a field holds alone: labels may differ from it.
    is_not = {"key": "metadata.name", "operator": "NotIn"}
    fields = [{**is_not, "values": [host]} for host in sorted(batch.avoid)]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    elsewhere = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    label, _, gpu_type = keys["gpu_type"].rpartition("=")
    labels = {
        TPU_LABEL: keys["tpu_type"],
        TOPOLOGY_LABEL: keys["tpu_topology"],
        SPOT_LABEL: "true" if keys["spot"] else "",
    }
    spec = {
        # Required by podFailurePolicy.
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": keys["save_seconds"],
        "containers": [_container(batch, index, settings)],
        "volumes": [_volume(keys), {"name": "shm", "emptyDir": {"medium": "Memory"}}],
        # Merged without those that are not set: gpu_type may name one of these labels itself.
        "nodeSelector": _filled({label or GPU_LABEL: gpu_type}) | _filled(labels),
        "tolerations": tolerations(keys),
        "affinity": {"nodeAffinity": elsewhere} if batch.avoid else {},
        "priorityClassName": keys["priority_class"],
        "serviceAccountName": keys["service_account"],
        "securityContext": _identity(keys),
    }
    return _filled(spec)


def _container(batch: Batch, index: int, settings: dict[str, Any]) -> dict[str, Any]:
    keys = settings["kubernetes"]
    mounted = volume(settings)
    in_pod = dataclasses.replace(batch, file=pathlib.Path(mounted.path(batch.file)))
    command = in_pod.command(index, keys["python"])
    if keys["volume_claim"]:  # a bucket takes a file when it is closed: there, `kubectl logs`
        # `exec`: the job is process 1, so that SIGTERM reaches it.
        script = 'log=$1; shift; exec "$@" >>"$log" 2>&1'
        if keys["hosts"] > 1:  # each host its own
            own_log = '[ "$JOB_COMPLETION_INDEX" = 0 ] || log=$log.$JOB_COMPLETION_INDEX; '
            script = script.replace("shift; ", "shift; " + own_log)
        command = ["/bin/sh", "-c", script, "sh", mounted.path(batch.log(index)), *command]
    variables = _hosts(keys, remote.job_name(batch, index))
    variables |= {name: mounted.value(name, text) for name, text in batch.environment.items()}
    variables |= remote.variables(keys["environment"])
    fields = {"ATTNPERF_NODE": "spec.nodeName"}  # only the cluster can fill them in
    if keys["hosts"] > 1 and not keys["tpu_type"]:
        index_label = "batch.kubernetes.io/job-completion-index"
        fields[protocol.PROCESS_ID] = f"metadata.annotations['{index_label}']"
    env: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]
    env += [{"name": name, "value": _literal(value)} for name, value in variables.items()]
    amounts = {"cpu": str(keys["cpus"]), "memory": keys["memory"]}
    if keys["gpus"]:
        amounts["nvidia.com/gpu"] = str(keys["gpus"])
    if keys["tpu_type"]:
        amounts["google.com/tpu"] = str(hardware(settings).per_node)
    return {
        "name": CONTAINER,
        "image": keys["image"],
        "command": [_literal(part) for part in command],
        "env": env,
        # Equal requests and limits: evicted last when a node runs out of memory.
        "resources": {"requests": amounts, "limits": amounts},
        "volumeMounts": [
            {"name": VOLUME, "mountPath": str(mounted.mount_path)},
            {"name": "shm", "mountPath": "/dev/shm"},  # 64 MiB otherwise: too small for NCCL
        ],
    }


def _hosts(keys: dict[str, Any], jobset_name: str) -> dict[str, str]:
    """Returns what a process needs to find its devices and the other hosts.

    The latter are what `sweeps.distributed.bootstrap` reads.
    """
    variables = {}
    if keys["gpus"]:
        # The files of the devices carry the node's numbers, CUDA counts the container's from 0.
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(keys["gpus"])))
    if keys["hosts"] > 1 and not keys["tpu_type"]:  # the hosts of a TPU slice know of each other
        # The first pod's name, the same after every restart.
        variables[protocol.COORDINATOR] = f"{jobset_name}-{JOB}-0-0.{jobset_name}:{PORT}"
        variables[protocol.PROCESS_COUNT] = str(keys["hosts"])
    return variables


def _literal(text: str) -> str:
    """Returns a text that becomes the given one in a pod: $(NAME) is filled in there, $$ is $."""
    return re.sub(r"\$\$+|\$(?=\()", lambda signs: 2 * signs[0], text)


def _volume(keys: dict[str, Any]) -> dict[str, Any]:
    if keys["volume_claim"]:
        return {"name": VOLUME, "persistentVolumeClaim": {"claimName": keys["volume_claim"]}}
    options = _FUSE_OPTIONS
    if keys["run_as"]:
        options += ",uid={},gid={}".format(*_owner(keys))
    attributes = {"bucketName": keys["bucket"], "mountOptions": options}
    return {
        "name": VOLUME,
        "csi": {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes},
    }


def _owner(keys: dict[str, Any]) -> tuple[int, int]:
    """Returns the user and group of config.kubernetes.run_as, which is not empty."""
    user, _, group = keys["run_as"].partition(":")
    return int(user), int(group or user)


def _identity(keys: dict[str, Any]) -> dict[str, Any]:
    if not keys["run_as"]:
        return {}
    user, group = _owner(keys)
    return {
        "runAsUser": user,
        "runAsGroup": group,
        "fsGroup": group,
        "fsGroupChangePolicy": "OnRootMismatch",  # not file by file at every start
    }


def tolerations(keys: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the tolerations of "team=vision:NoSchedule,dedicated:NoExecute", behind those that
    its nodes need.

    Raises ValueError for anything else.
    """
    taints = ["nvidia.com/gpu"] * bool(keys["gpus"]) + ["google.com/tpu"] * bool(keys["tpu_type"])
    taints += [SPOT_LABEL] * keys["spot"]
    tolerated = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in taints]
    for part in filter(None, keys["tolerations"].split(",")):
        taint = _TAINT.fullmatch(part)
        if taint is None:
            raise ValueError(f"{part!r} is no taint; give KEY:EFFECT or KEY=VALUE:EFFECT")
        key, separator, value, effect = taint.groups()
        equal = {"operator": "Equal", "value": value} if separator else {"operator": "Exists"}
        tolerated.append({"key": key, **equal, "effect": effect})
    return tolerated
