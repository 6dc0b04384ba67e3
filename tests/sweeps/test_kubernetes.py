"""Launcher kubernetes: what it asks kubectl, and what it makes of the answers.

The answers are those of kubectl 1.32 against a server that keeps objects.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import yaml

from sweeps.launchers import remote
from sweeps.launchers.kubernetes import launcher as kubernetes
from sweeps.launchers.kubernetes import manifest
from sweeps.launchers.protocol import AGAIN, EngineError, State
from sweeps.records import layout, submissions
from sweeps.records.submissions import Batch
from sweeps.scheduling import preflight
from tests.sweeps import defaults
from tests.sweeps.chaos import equality
from tests.sweeps.conftest import begin_stage

_READY = [{"name": "w", "active": 1, "ready": 1}]


def _settings(experiment_dir, **keys):
    image = {"image": "registry.example/attnperf:1", "volume_claim": "v", "context": "c"}
    keys = {**defaults.of(kubernetes.Kubernetes), **image, **keys}
    return {"name": "quick", "experiment_dir": str(experiment_dir), "kubernetes": keys}


@pytest.mark.parametrize(
    ("jobset", "state"),
    [
        ({}, State.QUEUED),
        ({"spec": {"suspend": True}, "status": {"replicatedJobsStatus": _READY}}, State.QUEUED),
        (
            {
                "status": {
                    "conditions": [{"type": "Suspended", "status": "True"}],
                    "replicatedJobsStatus": _READY,
                }
            },
            State.QUEUED,
        ),
        ({"status": {"replicatedJobsStatus": [{"active": 1, "ready": 0}]}}, State.QUEUED),
        ({"status": {"replicatedJobsStatus": _READY}}, State.RUNNING),
        ({"status": {"terminalState": "Completed"}}, State.GONE),
        ({"status": {"conditions": [{"type": "Completed", "status": "True"}]}}, State.GONE),
        ({"status": {"conditions": [{"type": "Failed", "status": "True"}]}}, State.GONE),
        ({"status": {"conditions": [{"type": "Failed", "status": "False"}]}}, State.QUEUED),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, State.RUNNING),
    ],
)
def test_states_of_jobsets(jobset, state):
    assert kubernetes.state({"metadata": {}, "spec": {}, **jobset}) is state


def _true(kind, message="", status="True", reason=""):
    return {"type": kind, "status": status, "message": message, "reason": reason}


# As a JobSet that was preempted and admitted anew, and that nobody resumed (kueue#14811).
_RESUMED_BY_NOBODY = (
    {
        "spec": {"suspend": True},
        "status": {"conditions": [_true("Suspended", "jobset is suspended")]},
    },
    [_true("Evicted", "Preempted", "False"), _true("Admitted", "The workload is admitted")],
)
_NO_QUOTA = _true(
    "QuotaReserved", "insufficient unused quota for nvidia.com/gpu", "False", "Pending"
)
_NO_NODE = _true("PodScheduled", "0/3 nodes are available", "False", "Unschedulable")
_NO_IMAGE = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}}


@pytest.mark.parametrize(
    ("jobset", "workload", "pod", "reason"),
    [
        (
            *_RESUMED_BY_NOBODY,
            None,
            "JobSet Suspended True: jobset is suspended; Workload Evicted False: Preempted; "
            "Workload Admitted True: The workload is admitted",
        ),
        (
            {"spec": {"suspend": True}},
            [_NO_QUOTA],
            None,
            "Workload QuotaReserved False: insufficient unused quota for nvidia.com/gpu",
        ),
        ({"spec": {"suspend": True}}, [], None, ""),
        ({}, None, {"conditions": [_NO_NODE]}, "Pod PodScheduled False: 0/3 nodes are available"),
        (
            {},
            None,
            {"conditions": [_true("PodScheduled")], "containerStatuses": [_NO_IMAGE]},
            "Pod ImagePullBackOff: no such tag",
        ),
        ({"status": None}, None, None, ""),
        ({"status": {"replicatedJobsStatus": _READY}}, None, None, None),
        ({"status": {"terminalState": "Failed"}}, None, None, None),
    ],
)
def test_why_a_jobset_waits(monkeypatch, tmp_path, jobset, workload, pod, reason):
    """By its own conditions, and those of its Kueue workload and its pods."""
    name = "s-quick-00000000-3"
    owner = [{"kind": "JobSet", "name": name}]
    other = {"kind": "Workload", "metadata": {"name": "x"}, "status": {"conditions": [_NO_QUOTA]}}
    labels = {manifest.BATCH_LABEL: "s-quick-00000000", manifest.INDEX_LABEL: "3"}
    items = {
        "jobsets": [{"kind": "JobSet", "metadata": {"name": name}, "spec": {}, **jobset}],
        "workloads": [other],
        "pods": [],
    }
    if workload is not None:
        metadata = {"name": f"jobset-{name}", "ownerReferences": owner}
        status = {"conditions": workload}
        items["workloads"].append({"kind": "Workload", "metadata": metadata, "status": status})
    if pod is not None:
        metadata = {"name": f"{name}-w-0-0-abcde", "labels": labels}
        items["pods"].append({"kind": "Pod", "metadata": metadata, "status": pod})

    def run(command, *rest, **options):
        kind = command[2].partition(".")[0]
        return subprocess.CompletedProcess(command, 0, json.dumps({"items": items[kind]}), "")

    monkeypatch.setattr(remote, "run", run)
    engine = kubernetes.Kubernetes(_settings(tmp_path, queue="q"), tmp_path / "quick")
    expected = {} if reason is None else {name: reason}
    assert engine.queued([name, "s-quick-00000000-4"]) == expected


class Cluster:
    """Answers the launcher's kubectl as a server does that keeps JobSets and runs nothing.

    jobsets: by name. refusals: (the server's reason, by verb and name). asked: the arguments of
    each call; environment: the last one's. output: printed in the place of a list's answer.
    """

    def __init__(self):
        self.jobsets, self.refusals, self.asked = {}, {}, []
        self.environment = self.output = None

    def __call__(self, command, absent, timeout_s, env, input):
        """Stands in the place of `remote.run`."""
        end = command.index("--namespace")
        assert command[end + 1 :] == ["default", "--request-timeout=30s"]
        self.asked.append(command[1:end])
        self.environment, names = env, {}
        verb, *arguments = command[1:end]
        if verb == "create":
            files = [pathlib.Path(argument) for argument in arguments if "/" in argument]
            texts = [file.read_text() for file in files] or input.splitlines()
            objects = [yaml.safe_load(text) for text in texts]
            names = {made["metadata"]["name"]: made for made in objects}
        elif verb == "delete":
            names = {name: None for name in self.jobsets if name in arguments}
        errors = []
        for name, made in names.items():
            reason = self.refusals.get((verb, name))
            if verb == "create" and name in self.jobsets:
                reason = "AlreadyExists"
            if reason:
                errors.append(f'Error from server ({reason}): error when creating "{name}"')
            elif verb == "create" and files:
                self.jobsets[name] = made
            elif verb == "delete":
                del self.jobsets[name]
        done = subprocess.CompletedProcess(command, bool(errors), "", "\n".join(errors))
        if verb == "get":
            key, value = arguments[2].split("=")
            items = [i for i in self.jobsets.values() if i["metadata"]["labels"].get(key) == value]
            done.stdout = json.dumps({"items": items}) if self.output is None else self.output
        elif verb == "config":
            done.stdout = 'Welcome\n{"current-context": "first"}\nA notice\n'
        return done


@pytest.fixture
def cluster(monkeypatch):
    """A cluster behind the launcher's kubectl."""
    made = Cluster()
    monkeypatch.setattr(remote, "run", made)
    return made


@pytest.fixture
def launcher(tmp_path):
    """A launcher for context 'c'."""
    settings = _settings(tmp_path)
    kubernetes.Kubernetes.check(settings)
    return kubernetes.Kubernetes(settings, tmp_path / "quick")


@pytest.fixture
def batch(tmp_path):
    """A batch of two jobs."""
    (tmp_path / "quick" / "jobs").mkdir(parents=True)
    return Batch(tmp_path / "quick" / "jobs" / "s-quick-00000000.json", ((), ()), {})


FIRST, SECOND = "s-quick-00000000-0", "s-quick-00000000-1"


def test_jobsets_are_created_once_listed_and_deleted(cluster, launcher, batch):
    assert launcher.find(batch) is None
    assert launcher.submit(batch) == [FIRST, SECOND] == [*cluster.jobsets]
    assert launcher.submit(batch) == [FIRST, SECOND] == launcher.find(batch)
    cluster.jobsets[FIRST]["status"] = {"replicatedJobsStatus": _READY}
    expected = {FIRST: State.RUNNING, SECOND: State.QUEUED, "other": State.GONE}
    assert launcher.status(expected) == expected
    launcher.cancel([FIRST, SECOND, "other"])
    assert cluster.jobsets == {}
    # In the foreground, so that a JobSet stays until its pods are gone; what is gone is no error.
    flags = ["--ignore-not-found", "--wait=false", "--cascade=foreground"]
    names = [FIRST, SECOND, "other", "--context", "c"]
    assert cluster.asked[-1] == ["delete", "jobsets.jobset.x-k8s.io", *flags, *names]
    assert cluster.environment["KUBERC"] == "off"  # a person's has other defaults
    assert cluster.environment["PATH"] == os.environ["PATH"]


def test_a_batch_of_which_a_part_is_refused_is_taken_back_or_found(cluster, launcher, batch):
    cluster.refusals = {("create", SECOND): "Invalid", ("delete", FIRST): "Forbidden"}
    with pytest.raises(EngineError, match=f"kubectl create failed: .*{SECOND}"):
        launcher.submit(batch)
    states = launcher.status(launcher.find(batch))
    assert states == {FIRST: State.QUEUED, SECOND: State.GONE}
    with pytest.raises(EngineError, match="kubectl delete failed"):
        launcher.cancel([FIRST])
    del cluster.refusals["delete", FIRST]
    with pytest.raises(EngineError, match="kubectl create failed"):
        launcher.submit(batch)
    assert cluster.jobsets == {}
    assert len(list(batch.file.parent.glob("*.yaml"))) == 2  # to be created by hand


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        *(("Invalid", ValueError), ("NotFound", ValueError)),
        *(("Forbidden", EngineError), ("ServiceUnavailable", EngineError)),
    ],
)
def test_only_a_judgement_of_the_manifest_is_a_refusal(cluster, launcher, reason, error):
    launcher.verify()
    create = ["create", "--dry-run=server", "--filename", "-", "--context", "c"]
    assert cluster.asked == [create]
    assert cluster.jobsets == {}
    cluster.refusals = {("create", "sample-0"): reason}
    with pytest.raises(error, match="kubectl create --dry-run=server: .*sample-0"):
        launcher.verify()


@pytest.mark.parametrize(
    "output",
    [
        *("", "Welcome", '{"items": [{"metadata": {"na', "null", "[]", "{}", "\ufeff{}"),
        *('{"items": null}', '{"items": [1]}', '{"items": [{"metadata": null}]}'),
    ],
)
def test_what_is_no_list_of_jobsets_tells_nothing(cluster, launcher, output):
    cluster.output = output
    with pytest.raises(EngineError):
        launcher.status([FIRST])


def test_a_place_is_resolved_once(cluster, tmp_path):
    engine = kubernetes.Kubernetes(_settings(tmp_path, context=""), tmp_path)
    assert engine.place == {"context": "first", "namespace": "default"}
    engine.status([FIRST])
    assert cluster.asked[-1][-2:] == ["--context", "first"]


@pytest.mark.parametrize("script", ["exec sleep 300", "echo refused >&2; exit 1", None])
def test_a_cluster_that_does_not_answer_is_unknown_and_never_gone(
    launcher, batch, make_study, monkeypatch, tmp_path, capsys, script
):
    """None: there is no kubectl."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(kubernetes, "_TIMEOUT_S", 0.2)
    if script is not None:
        (tmp_path / "kubectl").write_text(f"#!/bin/sh\nPATH={os.defpath}\n{script}\n")
        (tmp_path / "kubectl").chmod(0o755)
    for ask in (
        *(lambda: launcher.submit(batch), lambda: launcher.find(batch)),
        *(lambda: launcher.cancel([FIRST]), lambda: launcher.status([FIRST])),
    ):
        with pytest.raises(EngineError):
            ask()
    settings = {"kubernetes.image": "i", "kubernetes.volume_claim": "v"}
    preflight.check_engine(make_study(launcher="kubernetes", **settings))
    assert "warning: kubernetes cannot be asked" in capsys.readouterr().err


@pytest.mark.slow
def test_a_pod_that_is_evicted_loses_no_step(make_study, tmp_path, cache_dir, wait_until):
    """Its processes are those of the manifest: no container, mount_path is a link to the volume."""
    volume, mount = tmp_path / "volume", tmp_path / "mnt"
    volume.mkdir()
    mount.symlink_to(volume)
    cache = f"JAX_COMPILATION_CACHE_DIR={cache_dir} JAX_PLATFORMS=cpu"
    keys = {"image": "i", "volume_claim": "v", "mount_path": mount, "python": sys.executable}
    settings = {f"kubernetes.{key}": value for key, value in keys.items()}
    settings |= {"kubernetes.environment": cache, "steps": 40, "eval_every": 20}
    study = make_study(experiment_dir=volume, launcher="kubernetes", points=1, **settings)
    directory = study.directory / begin_stage(study)[0].path
    code = {"PYTHONPATH": str(study.directory / "code")}
    (study.directory / "code").symlink_to(pathlib.Path(submissions.__file__).parents[2])
    path = str(directory.relative_to(study.directory))
    batch = submissions.new(study.directory, "kubernetes", [(path,)], code)
    jobset = manifest.jobset(batch, 0, study.settings)
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    container = job["template"]["spec"]["containers"][0]
    variables = {entry["name"]: entry.get("value", "a-node") for entry in container["env"]}
    image = {"PATH": os.environ["PATH"], "HOME": "/", "JOB_COMPLETION_INDEX": "0"}

    def start():
        return subprocess.Popen(container["command"], env={**image, **variables})

    pod = start()
    wait_until(lambda: any((directory / layout.CHECKPOINTS).glob("[0-9]*")), timeout_s=600)
    pod.terminate()  # a pod's end reaches its first process
    assert pod.wait() == AGAIN  # the manifest has Kubernetes start it again then
    assert start().wait() == 0
    assert "saved; the engine runs this job again" in batch.log(0).read_text()
    assert equality.outcomes(directory) == ["preempted", "done"]
    steps = [row["global_step"] for row in equality.curves(directory)[1] if row["loss"]]
    assert steps == [str(step) for step in range(40)]
