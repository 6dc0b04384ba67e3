"""Launcher kubernetes, the whole road: a stand-in for kubectl runs what the manifests say."""

import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

from sweeps.launchers.kubernetes import launcher as kubernetes
from sweeps.launchers.protocol import EngineError, State
from sweeps.monitoring import progress
from sweeps.records import layout, measurements, status
from sweeps.records.submissions import Batch
from sweeps.scheduling import driver
from tests.sweeps import defaults
from tests.sweeps.chaos import equality

HERE = pathlib.Path(__file__).parent
_READY = [{"name": "w", "active": 1, "ready": 1}]


def _settings(experiment_dir, name, **own):
    keys = {**defaults.of(kubernetes.Kubernetes), "image": "registry.example/attnperf:1", **own}
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


class Cluster:
    """The stand-in's objects, and what a test does to them."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, *arguments):
        command = [str(self.folder / "bin" / "kubectl"), *arguments, "--namespace", "default"]
        return subprocess.run(command, check=True, capture_output=True, text=True)

    def evict(self):
        """Tells the only pod to stop, as a drained node does."""
        (pid,) = self.folder.glob("*.pid")
        pid.with_suffix(".evicted").write_text("true")
        os.kill(int(pid.read_text()), signal.SIGTERM)

    def codes(self, name):
        """The exit codes of a job's pods."""
        file = self.folder / f"{name}.codes"
        return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The stand-in as `kubectl` on PATH; its processes are gone when the test ends."""
    folder = tmp_path / "cluster"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "kubectl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "stand_in_kubectl.py"} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("STAND_IN", str(folder))
    yield Cluster(folder)
    for kind in ("controller", "pid"):
        for file in folder.glob(f"*.{kind}"):
            try:
                os.killpg(int(file.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                continue


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
    assert "\nATTNPERF_NODE=stand-in-node\n" in output
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
    assert cluster.codes(handles[0]) == ran


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


def test_kueue_holds_jobs_back(make_launcher, cluster, wait_gone):
    launcher, batch = make_launcher(queue="sweeps")
    handles = launcher.submit(batch)
    assert launcher.status(handles) == {handles[0]: State.QUEUED}
    cluster("admit")
    wait_gone(launcher, handles)
    assert cluster.codes(handles[0]) == [0]


def test_a_cluster_out_of_reach_is_unknown_and_never_gone(make_launcher, cluster):
    launcher, batch = make_launcher()
    (cluster.folder / "down").touch()
    assert launcher.status(["x"]) == {"x": State.UNKNOWN}
    for ask in (launcher.find, launcher.submit, lambda batch: launcher.cancel(["x"])):
        with pytest.raises(EngineError, match="was refused"):
            ask(batch)


def test_a_cluster_that_does_not_answer_in_time(make_launcher, cluster, monkeypatch):
    launcher, batch = make_launcher()
    (cluster.folder / "bin" / "kubectl").write_text("#!/bin/sh\nexec sleep 300\n")
    monkeypatch.setattr(kubernetes, "_TIMEOUT_S", 0.5)
    with pytest.raises(EngineError, match="kubectl create did not answer"):
        launcher.submit(batch)
    assert launcher.status(["x"]) == {"x": State.UNKNOWN}


def test_without_kubectl_the_manifests_are_there_to_be_created_by_hand(
    make_launcher, cluster, monkeypatch, tmp_path
):
    launcher, batch = make_launcher(size=2)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"no kubectl here.*kubectl create --filename"):
        launcher.submit(batch)
    assert len(list(batch.file.parent.glob("*.yaml"))) == 2
    assert launcher.status(["x"]) == {"x": State.UNKNOWN}


@pytest.mark.slow
def test_a_study_whose_pod_is_evicted_loses_no_step(
    make_study, cluster, tmp_path, cache_dir, wait_until
):
    volume = tmp_path / "volume"
    volume.mkdir()
    (tmp_path / "mnt").symlink_to(volume)
    cache = f"JAX_COMPILATION_CACHE_DIR={cache_dir} JAX_PLATFORMS=cpu"
    own = {
        "image": "attnperf",
        "volume_claim": "studies",
        "mount_path": tmp_path / "mnt",
        "python": sys.executable,
        "environment": cache,
        "poll_seconds": 1,
    }
    keys = {f"kubernetes.{key}": value for key, value in own.items()}
    study = make_study(
        experiment_dir=volume, launcher="kubernetes", protocol="grid", variants="standard",
        points=1, steps=200, eval_every=50, **keys,
    )  # fmt: skip
    directory = study.directory / study.trials("grid")[0].path

    def evict_once_it_saved():
        wait_until(lambda: any((directory / layout.CHECKPOINTS).glob("[0-9]*")), timeout=600)
        cluster.evict()

    evicted = threading.Thread(target=evict_once_it_saved)
    evicted.start()
    counts = driver.Driver(study, progress.Progress()).run()
    evicted.join()
    assert counts == {"done": 1}
    (name,) = (file.name.removesuffix(".codes") for file in cluster.folder.glob("*.codes"))
    assert cluster.codes(name) == [75, 0]
    (log,) = (study.directory / "jobs").glob("*.log")
    assert "saved; the engine runs this job again" in log.read_text()
    assert equality.outcomes(directory) == ["preempted", "done"]
    second = directory / layout.ATTEMPTS / "2"
    resumed = layout.read_json(second / measurements.RESUMED)["global_step"]
    assert 0 < resumed < 200
    rows = [row for row in measurements.curve(directory) if row["kind"] == "train"]
    assert [row["global_step"] for row in rows] == list(range(200))
    assert status.read(directory)["preemption_count"] == 1
