"""Real Ray on loopback: jobs found, refused twice, cancelled, killed with their node."""

import dataclasses
import os
import pathlib
import signal
import subprocess

import pytest

from sweeps.launchers import device_locks, local
from sweeps.launchers.protocol import EngineError, State
from sweeps.launchers.ray import job
from sweeps.launchers.ray import launcher as ray
from sweeps.records import layout, lease, submissions
from sweeps.records.submissions import Batch
from tests.sweeps import defaults
from tests.sweeps.ray.conftest import read_token_anew

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
# Whose tests run in one process: each process has a cluster of its own.
pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture
def make_launcher(tmp_path, cluster, share):
    """Returns a function that makes a launcher for the cluster, as a driver does."""

    def make(**keys):
        settings = {
            "ray": {**defaults.of(ray.Ray), "address": cluster.address, "cpus": share, **keys}
        }
        ray.Ray.check(settings)
        return ray.Ray(settings, tmp_path)

    return make


@dataclasses.dataclass(frozen=True)
class Script(Batch):
    """Jobs that run a shell script with $1 the job's index, in the batch's folder."""

    script: str = ""

    def command(self, index, python=""):
        """Returns the stand-in for `python -m sweeps job`."""
        return ["sh", "-c", f"cd {self.file.parent}; {self.script}", "job", str(index)]


@pytest.fixture
def make_batch(tmp_path, request):
    """Returns a function that makes a batch of scripts; names are unique in the cluster."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    environment = {"PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": "1", "GREETING": "a b"}
    # Where jobs lock cores: other tests' jobs on this host hold some of their own.
    environment |= {"TMPDIR": str(tmp_path)}

    def make(script, size=1, avoid=(), suffix=""):
        name = f"s-{abs(hash(request.node.nodeid)) % 10**6}{suffix}"
        return Script(folder / f"{name}.json", ((),) * size, environment, avoid, script=script)

    return make


def _states(launcher, handles):
    return [launcher.status(handles)[handle] for handle in handles]


@pytest.fixture
def until(wait_for):
    """Returns a function that waits until jobs are in the given states, in order."""

    def wait(launcher, handles, *states):
        wait_for(lambda: _states(launcher, handles) == list(states), f"{handles} {states}")

    return wait


def _pids(folder, pattern="pid-*"):
    return [int(path.read_text()) for path in folder.glob(pattern) if path.read_text().strip()]


HOLD = "echo $$ > pid-$1; taskset -cp $$; until test -e go; do sleep 0.1; done; echo $GREETING"


@pytest.mark.slow
def test_jobs_of_a_node_share_its_cores_and_the_third_waits(
    make_launcher, make_batch, until, wait_for
):
    launcher, batch = make_launcher(), make_batch(HOLD, size=3)
    assert launcher.capacity() == 2
    handles = launcher.submit(batch)
    assert handles == [f"{batch.name}-{index}" for index in range(3)]
    two = [State.QUEUED, State.RUNNING, State.RUNNING]
    wait_for(lambda: sorted(_states(launcher, handles)) == two, "two jobs at work")
    [message] = launcher.queued(handles).values()
    assert "resources" in message
    wait_for(lambda: len(_pids(batch.file.parent)) == 2, "their commands")
    (batch.file.parent / "go").touch()
    until(launcher, handles, *[State.GONE] * 3)
    logs = [batch.log(index).read_text() for index in range(3)]
    assert [log.count("a b") for log in logs] == [1, 1, 1]
    # Each had cores of its own, as long as there were any.
    cores = {log.split("list: ")[1].split()[0] for log in logs}
    assert len(cores) == min(2, len(os.sched_getaffinity(0)))


@pytest.mark.nightly
def test_a_submission_that_was_cut_short_is_completed(make_launcher, make_batch, until):
    """By drivers that do not know of it, whichever of them is the last; none starts a job twice."""
    batch = make_batch("echo ran", size=3)
    launcher = make_launcher()
    assert launcher.find(batch) is None
    launcher.submit(dataclasses.replace(batch, jobs=batch.jobs[:1]))
    handles = make_launcher().find(batch)
    until(launcher, handles, *[State.GONE] * 3)
    # Asking is not submitting: `cancel` asks, too.
    assert not batch.log(2).exists()
    for _ in range(2):
        assert make_launcher().submit(batch) == handles
        until(launcher, handles, *[State.GONE] * 3)
    assert [batch.log(index).read_text() for index in range(3)] == ["ran\n"] * 3
    assert launcher.status(["s-never-0"]) == {"s-never-0": State.GONE}


@pytest.mark.slow
def test_cancel_leaves_time_to_save_and_keeps_a_queued_job_from_working(
    make_launcher, make_batch, until, wait_for, share
):
    """Ray's own patience is 3 s; this job saves for 5."""
    save = "trap 'sleep 5; touch saved-$1; exit 75' TERM; echo $$ > pid-$1; "
    save += "while :; do sleep 0.1; done"
    launcher, batch = make_launcher(cpus=2 * share), make_batch(save, size=2)
    handles = launcher.submit(batch)
    wait_for(lambda: State.RUNNING in _states(launcher, handles), "a running job")
    wait_for(lambda: _pids(batch.file.parent), "its command")
    layout.write_json(batch.file.parents[1] / submissions.CANCELLED, {})
    launcher.cancel([*handles, "s-never-0"])
    until(launcher, handles, State.GONE, State.GONE)
    assert len(list(batch.file.parent.glob("saved-*"))) >= 1
    launcher.cancel(handles)
    assert _pids(batch.file.parent)
    for pid in _pids(batch.file.parent):
        assert lease.process_start(pid) is None


@pytest.mark.nightly
def test_setup_and_environment_come_before_the_job(make_launcher, make_batch, until):
    launcher = make_launcher(setup="export MADE=here; cd /", environment="GREETING='c  d' X=$HOME")
    batch = make_batch('echo "$MADE $GREETING $X $JAX_PLATFORMS"')
    until(launcher, launcher.submit(batch), State.GONE)
    assert f"here c  d {os.environ['HOME']} cpu" in batch.log(0).read_text()
    failing = make_launcher(setup="false")
    batch = make_batch("touch ran", suffix="b")
    until(failing, failing.submit(batch), State.GONE)
    assert not (batch.file.parent / "ran").exists()


@pytest.mark.nightly
def test_a_job_waits_for_its_node_beyond_rays_patience_and_dies_with_it(
    make_launcher, make_batch, second_node, cluster, until, wait_for, monkeypatch
):
    launcher, batch = make_launcher(resources="second=1"), make_batch(HOLD)
    monkeypatch.setattr(submissions, "read", lambda file: {batch.file: batch}[file])
    handles = launcher.submit(batch)
    api = cluster.cluster()
    wait_for(lambda: api.jobs()[handles[0]].status == "FAILED", "Ray gives up on the job")
    assert launcher.status(handles) == {handles[0]: State.QUEUED}
    pending = [State.QUEUED], "PENDING"
    wait_for(
        lambda: (_states(launcher, handles), api.jobs()[handles[0]].status) == pending,
        "it is queued again",
    )
    assert not _pids(batch.file.parent)
    raylet = second_node("second-host", jobs=2)
    [pid] = wait_for(lambda: launcher.status(handles) and _pids(batch.file.parent), "it runs")
    until(launcher, handles, State.RUNNING)
    _hosts_are_avoided(make_launcher, make_batch, api, until, wait_for)
    os.kill(raylet, signal.SIGKILL)
    until(launcher, handles, State.GONE)
    wait_for(lambda: lease.process_start(pid) is None, "the job's process is gone")


def _hosts_are_avoided(make_launcher, make_batch, api, until, wait_for):
    """A job that would fit on both nodes goes where it may; where none is left, nowhere."""
    hosts = wait_for(lambda: len(names := api.hosts()) == 2 and sorted(names.values()), "two hosts")
    here = next(host for host in hosts if host != "second-host")
    launcher = make_launcher()
    for refused, chosen, suffix in ((here, "second-host", "c"), ("second-host", here, "d")):
        batch = make_batch("hostname", avoid=(refused, "unknown"), suffix=suffix)
        until(launcher, launcher.submit(batch), State.GONE)
        assert batch.log(0).read_text().split() == [chosen]
    with pytest.raises(EngineError, match="no node of the Ray cluster"):
        launcher.submit(make_batch("hostname", avoid=tuple(hosts), suffix="e"))


@pytest.mark.nightly
@pytest.mark.parametrize("token", [{"TOKEN": "0" * 64}, {"TOKEN_PATH": "/absent"}])
def test_a_wrong_token_is_no_reason_to_submit_again(make_launcher, make_batch, monkeypatch, token):
    for name, value in token.items():
        monkeypatch.setenv(f"RAY_AUTH_{name}", value)
    read_token_anew()
    launcher, batch = make_launcher(), make_batch("true")
    with pytest.raises(EngineError, match="RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"):
        launcher.submit(batch)
    with pytest.raises(EngineError, match="RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"):
        launcher.status([f"{batch.name}-0"])
    monkeypatch.undo()
    read_token_anew()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"address": "10.0.0.1:6379"}, "dashboard's address"),
        ({"address": "auto"}, "dashboard's address"),
        ({"address": "local"}, r"starts no Ray of its own: start one \(ray start --head"),
        ({"cpus": 0}, "Ray would run all jobs on its head"),
        ({"gpus": 1, "workers": 2}, "a number of workers that divides it"),
        ({"trials_per_job": 0}, "trials_per_job is 0"),
        ({"memory": "16 GB"}, "16G"),
        ({"resources": "GPU=1"}, "keys of their own"),
        ({"resources": "big disk"}, "NAME=NUMBER"),
        ({"environment": "A"}, "NAME=VALUE"),
        ({"environment": "PYTHONPATH=/x"}, "PYTHONPATH"),
    ],
)
def test_settings_are_checked_before_anything_starts(keys, message):
    with pytest.raises(ValueError, match=message):
        ray.Ray.check({"ray": {**defaults.of(ray.Ray), "address": "http://head:8265", **keys}})


def test_what_a_job_asks_for():
    keys = {**defaults.of(ray.Ray), "cpus": 8, "gpus": 2, "workers": 2, "memory": "16G"}
    keys["resources"] = "accelerator_type:H100=0.001,disk=1"
    body = job.body(Batch(pathlib.Path("/x/s-a.json"), ((),), {"A": "1"}), 0, keys, {})
    assert "--cpus" not in body.pop("entrypoint")
    assert body == {
        "entrypoint_num_cpus": 8,
        "entrypoint_num_gpus": 2,
        "entrypoint_memory": 16 * 2**30,
        "entrypoint_resources": {"accelerator_type:H100": 0.001, "disk": 1},
        "runtime_env": {"env_vars": {"A": "1", "RAY_JOB_STOP_WAIT_TIME_S": "660"}},
    }
    devices = ray.Ray.hardware({"ray": keys})
    assert (devices.kind, devices.of_a_trial()) == ("gpu", 1)
    tpu = {**defaults.of(ray.Ray), "tpus": 4}
    assert job.request(tpu) == {"CPU": 1.0, "TPU": 4.0}
    devices = ray.Ray.hardware({"ray": tpu})
    assert (devices.kind, devices.of_a_trial()) == ("tpu", 4)
    assert job.holds({"CPU": 9.0, "GPU": 8.0}, {"CPU": 2.0, "GPU": 1.0}) == 4
    assert job.holds({"CPU": 9.0}, {"CPU": 2.0, "GPU": 1.0}) == 0


@pytest.mark.parametrize("name", ["x y/$HOME/it's", "a\nb", "`id`/%j", "#é$$", "tail "])
def test_paths_reach_a_job_as_they_are(tmp_path, name):
    """Ray fills in $NAME in its variables, the shell everything."""
    folder, python = tmp_path / name, tmp_path / "python"
    folder.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s|" "$PYTHONPATH" "$@"\n')
    python.chmod(0o755)
    batch = Batch(folder / "s-a.json", ((),), {"PYTHONPATH": str(folder)})
    body = job.body(batch, 0, {**defaults.of(ray.Ray), "python": str(python)}, {})
    variables = body["runtime_env"]["env_vars"]
    environment = {name: os.path.expandvars(value) for name, value in variables.items()}
    subprocess.run(body["entrypoint"], shell=True, check=True, env={**os.environ, **environment})
    *_, file, index, end = batch.log(0).read_text().split("|")
    assert (file, index, end) == (str(batch.file), "--index=0", "")
    assert batch.log(0).read_text().startswith(f"{folder}|-m|sweeps.launchers.ray.job|")


def test_cores_are_taken_one_by_one_and_shared_when_none_is_left(monkeypatch):
    """They are the same cores as those of studies with the launcher 'local'."""
    monkeypatch.setenv(
        device_locks.NAMESPACE, f"test-{os.getpid()}-taken"
    )  # until this process ends
    cores = sorted(os.sched_getaffinity(0))
    assert sorted([job.take(1) for _ in cores]) == [[core] for core in cores]
    (shared,) = job.take(1)
    assert shared in cores
    assert job.take(10_000) == cores
    assert local.Slots({"workers": 1, "pin": True}).hold(0, exclusive=True) == ([], [])


@pytest.mark.parametrize(
    ("variable", "address", "needed", "message"),
    [
        ("RAY_ADDRESS", "", (), r"no Ray cluster is named: .*ray.address=http"),
        ("RAY_ADDRESS", "http://head:8265", ("no_such_module",), "lacks no_such_module"),
        ("RAY_API_SERVER_ADDRESS", "ray://head:10001", (), "RAY_API_SERVER_ADDRESS"),
    ],
)
def test_a_cluster_must_be_named_and_its_client_installed(
    monkeypatch, variable, address, needed, message
):
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray, "_NEEDED", needed)
    settings = {"ray": defaults.of(ray.Ray)}
    ray.Ray.check(settings)  # planned where there is none
    monkeypatch.setenv(variable, address)
    with pytest.raises(ValueError, match=message):
        ray.Ray(settings, pathlib.Path("study"))
