"""The Kubernetes launcher: a JobSet per job, queued by Kueue, applied with kubectl.

Manifests are written to `<study>/jobs/<batch>.<index>.yaml` before anything is created, so that a
person without kubectl here can create them elsewhere. docs/kubernetes.md says what the cluster
needs.
"""

import contextlib
import json
import os
import pathlib
import re
import subprocess
from collections.abc import Sequence
from typing import Any

from attention.common.files import quoted
from sweeps.launchers import remote
from sweeps.launchers.kubernetes import keys, manifest
from sweeps.launchers.protocol import EngineError, Launcher, State
from sweeps.records import layout
from sweeps.records.submissions import Batch

_RESOURCE, _WORKLOADS = "jobsets.jobset.x-k8s.io", "workloads.kueue.x-k8s.io"
_TIMEOUT_S = 120
# kubectl's words where the server judged a manifest: anything else says nothing about it.
_REFUSED = re.compile(
    r"is invalid|\((Invalid|NotFound)\)|no matches for kind|strict decoding error|"
    "denied the request"
)


class Kubernetes(Launcher):
    """Jobs as JobSets; a handle is a JobSet's name."""

    NAME = "kubernetes"
    KEYS = keys.KEYS
    hardware = staticmethod(keys.hardware)

    def __init__(self, settings: dict[str, Any], study_directory: pathlib.Path) -> None:
        super().__init__(settings, study_directory)
        self.place = {key: self._keys[key] for key in ("context", "namespace")}
        self._of_study = f"{manifest.STUDY_LABEL}={manifest.study_label(settings['name'])}"
        if not self.place["context"]:  # kubectl's may be another one tomorrow
            with contextlib.suppress(EngineError):
                done = self._kubectl("config", "view", "--output=json")
                for answer in remote.json_values(done.stdout):
                    if isinstance(answer, dict) and answer.get("current-context"):
                        self.place["context"] = answer["current-context"]

    @classmethod
    def check(cls, settings: dict[str, Any]) -> None:
        """Raises ValueError for what no cluster could run, or a study that is not on the volume.

        The cluster itself is not asked.
        """
        keys.check(settings)
        manifest.jobset(remote.sample(settings), 0, settings)

    @classmethod
    def preview(cls, settings: dict[str, Any], batch: Batch) -> str:
        """Returns the manifest of a batch's first job."""
        return manifest.to_yaml(manifest.jobset(batch, 0, settings))

    @staticmethod
    def requeue() -> bool:
        """Returns whether exit code 75 restarts this job's pod; the job's policy does the rest."""
        return "JOB_COMPLETION_INDEX" in os.environ  # set in pods of indexed jobs

    def verify(self) -> None:
        """Has the server judge a job's manifest by a dry run.

        Raises ValueError if it refuses the manifest; EngineError where it cannot be asked.
        """
        jobset = manifest.jobset(remote.sample(self._settings), 0, self._settings)
        # The server reads the pod in a JobSet as a mere structure, the one in a Job as a pod.
        documents = "\n".join(map(json.dumps, (jobset, manifest.job(jobset))))
        done = self._kubectl("create", "--dry-run=server", "--filename", "-", text=documents)
        if done.returncode:
            refused = _REFUSED.search(done.stderr)
            message = f"kubectl create --dry-run=server: {done.stderr.strip()}"
            raise (ValueError if refused else EngineError)(message)

    def submit(self, batch: Batch) -> list[str]:
        """Writes and creates the JobSets; one that exists already is this batch's.

        Raises EngineError if not all could be created, after deleting those that were, and
        where there was no answer: `find` tells.
        """
        files = [batch.file.with_name(f"{batch.name}.{index}.yaml") for index in range(batch.size)]
        for index, file in enumerate(files):
            layout.write_atomically(
                file, manifest.to_yaml(manifest.jobset(batch, index, self._settings))
            )
        handles = remote.job_names(batch)
        arguments = [part for file in files for part in ("--filename", str(file))]
        done = self._kubectl("create", *arguments)
        if done.returncode == 0:
            return handles
        with contextlib.suppress(EngineError):  # `find` tells what is there
            created = self._list(_RESOURCE, f"{manifest.BATCH_LABEL}={batch.name}")
            if created.keys() >= set(handles):  # refused as they exist already
                return handles
            if created:
                self.cancel(list(created))
        raise EngineError(
            f"kubectl create failed: {remote.last_line(done.stderr)}\n"
            f"manifests: {files[0]} ... Try for f in {quoted(batch.file.with_suffix(''))}.*.yaml; "
            'do kubectl create --filename "$f"; done'
        )

    def find(self, batch: Batch) -> list[str] | None:
        """Returns the batch's handles where at least one of its JobSets exists.

        Raises EngineError if the cluster cannot be asked.
        """
        created = self._list(_RESOURCE, f"{manifest.BATCH_LABEL}={batch.name}")
        return remote.job_names(batch) if created else None

    def status(self, handles: Sequence[str]) -> dict[str, State]:
        """Returns a state per handle; GONE for a JobSet that the cluster does not have."""
        by_name = self._list(_RESOURCE, self._of_study)
        return {
            handle: state(by_name[handle]) if handle in by_name else State.GONE
            for handle in handles
        }

    def queued(self, handles: Sequence[str]) -> dict[str, str]:
        """Returns what the conditions of JobSets that wait, of their Kueue workloads and of their
        pods say. Raises EngineError if the cluster cannot be asked."""
        jobsets = self._list(_RESOURCE, self._of_study)
        reasons = {
            name: _conditions(jobsets[name], "True")
            for name in handles
            if name in jobsets and state(jobsets[name]) is State.QUEUED
        }
        for pod in self._list("pods", self._of_study).values():
            labels = pod["metadata"]["labels"]
            name = f"{labels[manifest.BATCH_LABEL]}-{labels[manifest.INDEX_LABEL]}"
            reasons.get(name, []).extend(_conditions(pod, "False") + _images(pod))
        workloads = self._list(_WORKLOADS) if self._keys["queue"] else {}
        for workload in workloads.values():
            for owner in workload["metadata"].get("ownerReferences", ()):
                reasons.get(owner["name"], []).extend(_conditions(workload, "True", "False"))
        return {name: "; ".join(dict.fromkeys(lines)) for name, lines in reasons.items()}

    def _list(self, resource: str, selector: str = "") -> dict[str, dict[str, Any]]:
        """Returns objects of the namespace by name. Raises EngineError without an answer."""
        done = self._kubectl("get", resource, "--selector", selector, "--output", "json")
        if done.returncode:
            raise EngineError(f"kubectl get {resource} failed: {remote.last_line(done.stderr)}")
        for answer in remote.json_values(done.stdout):
            with contextlib.suppress(KeyError, TypeError):  # another program's notice
                return {item["metadata"]["name"]: item for item in answer["items"]}
        says = remote.last_line(done.stdout)
        raise EngineError(f"kubectl lists no {resource}, but says: {says}")

    def cancel(self, handles: Sequence[str]) -> None:
        """Deletes JobSets; their pods have save_seconds to save."""
        # In the foreground the JobSet stays until its pods are gone, so that `status` sees them.
        flags = ("--ignore-not-found", "--wait=false", "--cascade=foreground")
        done = self._kubectl("delete", _RESOURCE, *flags, *handles)
        if done.returncode:
            raise EngineError(f"kubectl delete failed: {remote.last_line(done.stderr)}")

    def _kubectl(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        context = ["--context", self.place["context"]] if self.place["context"] else []
        where = [*context, "--namespace", self.place["namespace"], "--request-timeout=30s"]
        absent = (
            "there is no kubectl here: install it, or create the manifests in "
            f"{self._directory / 'jobs'} where there is one: for f in *.yaml; do kubectl create "
            '--filename "$f"; done'
        )
        # A person's kuberc has other defaults, such as deleting only what is confirmed.
        variables = {**os.environ, "KUBERC": "off"}
        return remote.run(
            ["kubectl", *arguments, *where], absent, _TIMEOUT_S, env=variables, input=text
        )


def state(jobset: dict[str, Any]) -> State:
    """Returns the state of a JobSet as the cluster tells it."""
    status = jobset.get("status") or {}
    true = {c["type"] for c in status.get("conditions") or [] if c.get("status") == "True"}
    if status.get("terminalState") or true & {"Completed", "Failed"}:
        return State.GONE
    if jobset["metadata"].get("deletionTimestamp"):
        return State.RUNNING  # its pods save
    if jobset["spec"].get("suspend") or "Suspended" in true:
        return State.QUEUED
    # `ready` and not `active`: that counts pods that wait for a node or their image, too.
    ready = any(job.get("ready", 0) for job in status.get("replicatedJobsStatus") or [])
    return State.RUNNING if ready else State.QUEUED


def _conditions(item: dict[str, Any], *statuses: str) -> list[str]:
    """Returns a line for each condition of an object that has one of these statuses and a text."""
    return [
        f"{item['kind']} {c['type']} {c['status']}: {c.get('message') or c.get('reason')}"
        for c in (item.get("status") or {}).get("conditions") or []
        if c["status"] in statuses and (c.get("message") or c.get("reason"))
    ]


def _images(pod: dict[str, Any]) -> list[str]:
    """Returns why a pod's containers wait, such as for an image that does not exist."""
    containers = (pod.get("status") or {}).get("containerStatuses") or []
    waiting = [container.get("state", {}).get("waiting") or {} for container in containers]
    return [f"Pod {w['reason']}: {w['message']}" for w in waiting if w.get("message")]
