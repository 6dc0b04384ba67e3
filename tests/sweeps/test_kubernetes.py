"""Launcher kubernetes on a simulated cluster, whose pods are processes."""

import collections
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest
import yaml

from sweeps.launchers import remote
from sweeps.launchers.kubernetes import launcher as kubernetes
from sweeps.launchers.kubernetes import manifest
from sweeps.launchers.protocol import EngineError, State
from sweeps.monitoring import progress
from sweeps.records import layout, measurements, status
from sweeps.records.submissions import Batch
from sweeps.scheduling import driver
from sweeps.study import study_directory
from tests.sweeps import defaults
from tests.sweeps.chaos import equality

_READY = [{"name": "w", "active": 1, "ready": 1}]


def _settings(experiment_dir, name, **keys):
    image = {"image": "registry.example/attnperf:1", "context": "c"}
    keys = {**defaults.of(kubernetes.Kubernetes), **image, **keys}
    return {"name": name, "experiment_dir": str(experiment_dir), "kubernetes": keys}


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
    engine = kubernetes.Kubernetes(_settings(tmp_path, "quick", queue="q"), tmp_path / "quick")
    expected = {} if reason is None else {name: reason}
    assert engine.queued([name, "s-quick-00000000-4"]) == expected


class Cluster:
    """Answers the launcher's kubectl, and does what the controllers of JobSet and Job do.

    A pod is a real process with the variables of its manifest and no others. Whenever jobs are
    listed, those that ended are started again or not, as the manifest's own policy says. It shows
    that manifests, exit codes, signals and states fit together; it is no proof about a real
    cluster. There is no container: the test makes mount_path a link to the volume.
    """

    def __init__(self):
        self.jobsets, self.pods, self.failures = {}, {}, collections.Counter()
        # The exit codes of a job's pods, by its name.
        self.codes = collections.defaultdict(list)
        self.is_evicted = False

    def __call__(self, command, *rest, **options):
        """Stands in the place of `remote.run`."""
        verb, *arguments = command[1 : command.index("--context")]
        output = getattr(self, f"_{verb}")(arguments)
        return subprocess.CompletedProcess(command, 0, output or "", "")

    def _create(self, arguments):
        files = [argument for argument in arguments if argument.endswith(".yaml")]
        for file in files:  # none of a dry run
            jobset = yaml.safe_load(pathlib.Path(file).read_text())
            name = jobset["metadata"]["name"]
            assert name not in self.jobsets
            jobset["status"] = {"replicatedJobsStatus": _READY}
            self.jobsets[name] = jobset
            self._start_pod(name)

    def _get(self, arguments):
        for name in list(self.jobsets):
            code = self.pods[name].poll()
            if code is not None and "terminalState" not in self.jobsets[name]["status"]:
                self._judge(name, 128 - code if code < 0 else code)
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": [*self.jobsets.values()]})

    def _delete(self, arguments):
        for name in self.jobsets.keys() & set(arguments):
            self.jobsets[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.pods[name].terminate()  # a pod's end reaches its first process

    def evict(self):
        """Tells the only pod to stop, as a drained node does."""
        (pod,) = self.pods.values()
        self.is_evicted = True
        pod.terminate()

    def _job(self, name):
        return self.jobsets[name]["spec"]["replicatedJobs"][0]["template"]["spec"]

    def _start_pod(self, name):
        container = self._job(name)["template"]["spec"]["containers"][0]
        fields = {"spec.nodeName": "a-node"}
        variables = {
            variable["name"]: variable.get("value")
            or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            for variable in container["env"]
        }
        image = {"PATH": os.environ["PATH"], "HOME": "/", "JOB_COMPLETION_INDEX": "0"}
        self.pods[name] = subprocess.Popen(container["command"], env={**image, **variables})

    def _judge(self, name, code):
        """Ends a job whose pod has ended, or starts it again."""
        self.codes[name].append(code)
        if "deletionTimestamp" in self.jobsets[name]["metadata"]:
            del self.jobsets[name]
            return
        job = self._job(name)
        action = _action(job["podFailurePolicy"]["rules"], code, self.is_evicted)
        self.is_evicted = False
        self.failures[name] += action == "Count"
        if action in ("Complete", "FailJob") or self.failures[name] > job["backoffLimit"]:
            state = "Completed" if action == "Complete" else "Failed"
            self.jobsets[name]["status"] = {"terminalState": state}
        else:
            self._start_pod(name)


def _action(rules, code, is_evicted):
    """Returns what the first matching rule of a podFailurePolicy says of a pod's end."""
    if code == 0:
        return "Complete"
    for rule in rules:
        if code in rule.get("onExitCodes", {}).get("values", ()):
            return rule["action"]
        if is_evicted and rule.get("onPodConditions", [{}])[0].get("type") == "DisruptionTarget":
            return rule["action"]
    return "Count"


@pytest.fixture
def cluster(monkeypatch):
    """A cluster behind the launcher's kubectl; its processes are gone when the test ends."""
    made = Cluster()
    monkeypatch.setattr(remote, "run", made)
    yield made
    for pod in made.pods.values():
        pod.kill()
        pod.wait()


@pytest.fixture
def make_launcher(tmp_path):
    """Returns a function that makes a launcher and a batch whose jobs run a shell script."""

    def make(script="exit 0", size=1, **own):
        study = tmp_path / "volume" / "quick"
        (study / "jobs").mkdir(parents=True)
        (tmp_path / "mnt").symlink_to(tmp_path / "volume")
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        keys = {"volume_claim": "v", "mount_path": str(tmp_path / "mnt"), "python": str(python)}
        settings = _settings(tmp_path / "volume", "quick", **{**keys, **own})
        kubernetes.Kubernetes.check(settings)
        code = {"PYTHONPATH": str(study / "code")}
        batch = Batch(study / "jobs" / "s-quick-00000000.json", ((),) * size, code)
        return kubernetes.Kubernetes(settings, study), batch

    return make


@pytest.fixture
def wait_gone(wait_until):
    """Returns a function that waits until all jobs are gone."""

    def wait(launcher, handles):
        wait_until(lambda: set(launcher.status(handles).values()) == {State.GONE}, every=0.05)

    return wait


def test_jobs_run_with_mapped_paths_and_nothing_of_the_driver(
    make_launcher, cluster, tmp_path, monkeypatch, wait_gone
):
    monkeypatch.setenv("SECRET_OF_THE_DRIVER", "1")
    launcher, batch = make_launcher('echo "$@"; env', size=2, environment="A='b c'")
    handles = launcher.submit(batch)
    assert handles == ["s-quick-00000000-0", "s-quick-00000000-1"]
    wait_gone(launcher, handles)
    output = batch.log(1).read_text()
    mounted = tmp_path / "mnt" / "quick"
    assert f"-m sweeps job {mounted}/jobs/s-quick-00000000.json --index=1\n" in output
    assert f"\nPYTHONPATH={mounted}/code\n" in output
    assert "\nA=b c\n" in output
    assert "\nATTNPERF_NODE=a-node\n" in output
    assert "SECRET_OF_THE_DRIVER" not in output
    assert len(list(batch.file.parent.glob("*.yaml"))) == 2


@pytest.mark.parametrize(
    ("codes", "retries", "ran"),
    [
        ("75 75 75 0", 0, [75, 75, 75, 0]),  # saved: again, and not counted
        ("1 75 1 0", 1, [1, 75, 1]),  # crashed twice
        ("76 0", 5, [76]),  # this node cannot run it: nothing is gained by trying again there
        ("137 0", 1, [137, 0]),
    ],
)
def test_exit_codes_decide_about_restarts(
    make_launcher, cluster, tmp_path, wait_gone, codes, retries, ran
):
    folder = tmp_path / "codes"
    folder.mkdir()
    for number, code in enumerate(codes.split()):
        (folder / str(number)).write_text(code)
    first = f'f=$(ls {folder} | head -n 1); c=$(cat {folder}/$f); rm {folder}/$f; exit "$c"'
    launcher, batch = make_launcher(first, retries=retries)
    handles = launcher.submit(batch)
    wait_gone(launcher, handles)
    assert cluster.codes[handles[0]] == ran


def test_cancelled_jobs_end_and_are_gone(make_launcher, cluster, wait_until, wait_gone):
    launcher, batch = make_launcher("sleep 300", size=2)
    assert launcher.find(batch) is None
    handles = launcher.submit(batch)
    assert launcher.find(batch) == handles
    wait_until(lambda: set(launcher.status(handles).values()) == {State.RUNNING}, every=0.05)
    launcher.cancel(handles)
    wait_gone(launcher, handles)
    launcher.cancel(handles)  # what is gone is passed over
    assert launcher.find(batch) is None


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exec sleep 300", "kubectl create did not answer"),
        ("echo The connection to the server was refused >&2; exit 1", "was refused"),
    ],
)
def test_a_cluster_that_does_not_answer_is_unknown_and_never_gone(
    make_launcher, monkeypatch, tmp_path, script, message
):
    (tmp_path / "kubectl").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(kubernetes, "_TIMEOUT_S", 0.5)
    launcher, batch = make_launcher()
    with pytest.raises(EngineError, match=message):
        launcher.submit(batch)
    for ask in (lambda: launcher.find(batch), lambda: launcher.cancel(["x"])):
        with pytest.raises(EngineError):
            ask()
    with pytest.raises(EngineError):
        launcher.status(["x"])


def test_without_kubectl_the_manifests_are_there_to_be_created_by_hand(
    make_launcher, monkeypatch, tmp_path
):
    launcher, batch = make_launcher(size=2)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"no kubectl here.*kubectl create --filename"):
        launcher.submit(batch)
    assert len(list(batch.file.parent.glob("*.yaml"))) == 2
    with pytest.raises(EngineError):
        launcher.status(["x"])


@pytest.mark.slow
def test_a_study_whose_pod_is_evicted_loses_no_step(
    make_study, cluster, tmp_path, cache_dir, wait_until
):
    volume = tmp_path / "volume"
    volume.mkdir()
    (tmp_path / "mnt").symlink_to(volume)
    cache = f"JAX_COMPILATION_CACHE_DIR={cache_dir} JAX_PLATFORMS=cpu"
    keys = {
        "image": "attnperf",
        "context": "c",
        "volume_claim": "studies",
        "mount_path": tmp_path / "mnt",
        "python": sys.executable,
        "environment": cache,
        "poll_seconds": 1,
    }
    settings = {f"kubernetes.{key}": value for key, value in keys.items()}
    study = make_study(
        experiment_dir=volume, launcher="kubernetes", protocol="grid", variants="standard",
        points=1, steps=200, eval_every=50, **settings,
    )  # fmt: skip
    study_directory.prepare(study)
    directory = study.directory / study.trials("grid")[0].path

    def evict_once_it_saved():
        wait_until(lambda: any((directory / layout.CHECKPOINTS).glob("[0-9]*")), timeout_s=600)
        cluster.evict()

    evicted = threading.Thread(target=evict_once_it_saved)
    evicted.start()
    counts = driver.Driver(study, progress.Progress()).run()
    evicted.join()
    assert counts == {"done": 1}
    assert list(cluster.codes.values()) == [[75, 0]]
    (log,) = (study.directory / "jobs").glob("*.log")
    assert "saved; the engine runs this job again" in log.read_text()
    assert equality.outcomes(directory) == ["preempted", "done"]
    second = directory / layout.ATTEMPTS / "2"
    assert 0 < layout.read_json(second / measurements.RESUMED)["global_step"] < 200
    rows = [row for row in measurements.curve(directory) if row["kind"] == "train"]
    assert [row["global_step"] for row in rows] == list(range(200))
    assert status.read(directory)["preemption_count"] == 1
