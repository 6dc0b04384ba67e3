"""The JobSet of a job: one replicated job, one pod per host, all from the config's keys.

One JobSet per job of a batch and not one for all of it: Kueue admits, suspends and preempts whole
JobSets, so that a study's jobs enter a busy cluster one by one, and a job that fails for good ends
nothing else. Exit codes decide about restarts (see sweeps/launchers/protocol.py).
"""

import re
from typing import Any

from sweeps.launchers.kubernetes import pod
from sweeps.launchers.protocol import AGAIN, WRONG_NODE, Batch

JOB = "w"
STUDY_LABEL, BATCH_LABEL, INDEX_LABEL = "attnperf/study", "attnperf/batch", "attnperf/index"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def name(batch: Batch, index: int) -> str:
    """Returns the JobSet's name, which is also the handle: the same whenever it is submitted."""
    return f"{batch.name}-{index}"


def study_label(study: str) -> str:
    """Returns a study's name as a label's value."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", study)[:63].strip("-_.") or "study"


def jobset(batch: Batch, index: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the manifest of job `index`; `settings` is the whole config."""
    own = settings["kubernetes"]
    labels = {
        "app.kubernetes.io/managed-by": "attnperf",
        STUDY_LABEL: study_label(settings["name"]),
        BATCH_LABEL: batch.name,
        INDEX_LABEL: str(index),
    }
    spec = {
        "ttlSecondsAfterFinished": own["ttl_seconds"],
        "failurePolicy": _failure_policy(own),
        # A name of its own for each pod, and the service that goes with it, only where needed.
        "network": {"enableDNSHostnames": own["hosts"] > 1},
        "replicatedJobs": [_replicated_job(batch, index, settings, labels)],
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(name(batch, index), own, labels),
        "spec": spec,
    }


def _metadata(jobset_name: str, own: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    queue = {QUEUE_LABEL: own["queue"]} if own["queue"] else {}
    metadata = {"name": jobset_name, "namespace": own["namespace"], "labels": labels | queue}
    if own["tpu_type"] and own["hosts"] > 1:
        # All pods of a slice on one node pool, which they have to themselves.
        topology = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
        metadata["annotations"] = topology
    return metadata


def _replicated_job(
    batch: Batch, index: int, settings: dict[str, Any], labels: dict[str, str]
) -> dict[str, Any]:
    own, address = settings["kubernetes"], pod.coordinator(name(batch, index), JOB)
    template = {
        "metadata": pod.metadata(own, labels),
        "spec": pod.spec(batch, index, settings, address),
    }
    return {
        "name": JOB,
        "replicas": 1,
        "template": {"metadata": {"labels": labels}, "spec": {**_job(own), "template": template}},
    }


def _failure_policy(own: dict[str, Any]) -> dict[str, Any]:
    if own["hosts"] == 1:
        return {"maxRestarts": 0}  # the job itself restarts its pod
    # The hosts of a slice compute together: when one goes, all start again from the checkpoint.
    evicted = {
        "name": "evicted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    return {
        "maxRestarts": own["retries"],
        "restartStrategy": "BlockingRecreate",
        "rules": [evicted],
    }


def _job(own: dict[str, Any]) -> dict[str, Any]:
    return {
        "completionMode": "Indexed",
        "completions": own["hosts"],
        "parallelism": own["hosts"],
        "backoffLimit": own["retries"] if own["hosts"] == 1 else 0,
        # A pod that still saves keeps its successor waiting.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _pod_failure_rules(own["hosts"])},
    }


def _pod_failure_rules(hosts: int) -> list[dict[str, Any]]:
    disruption = [{"type": "DisruptionTarget", "status": "True"}]
    if hosts > 1:
        # The job's failure is then called PodFailurePolicy, and the JobSet does not count it. It
        # counts all others, AGAIN too: processes that lose each other end with it.
        return [{"action": "FailJob", "onPodConditions": disruption}]

    def on(code: int) -> dict[str, Any]:
        return {"containerName": pod.CONTAINER, "operator": "In", "values": [code]}

    return [
        {"action": "Ignore", "onPodConditions": disruption},
        {"action": "Ignore", "onExitCodes": on(AGAIN)},
        {"action": "FailJob", "onExitCodes": on(WRONG_NODE)},
    ]
