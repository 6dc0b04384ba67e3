"""Launcher skypilot: tasks checked strictly, and the whole road with a stand-in for `sky`."""

import copy
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import yaml

from sweeps.launchers import remote
from sweeps.launchers.protocol import EngineError, State
from sweeps.launchers.skypilot import launcher as skypilot
from sweeps.monitoring import progress
from sweeps.records import layout, lease, measurements
from sweeps.records.submissions import Batch
from sweeps.scheduling import driver
from tests.sweeps import defaults
from tests.sweeps import manifest_schemas as schemas

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE / "golden"
STUDY = pathlib.Path("/mnt/studies/Quick study")
BATCH = Batch(
    STUDY / "jobs" / "s-quick-study-0123abcd.json",
    ((), ()),
    {"PYTHONPATH": str(STUDY / "code" / "0a1b2c"), "PYTHONSAFEPATH": "1"},
)
CASES = {
    "sky_spot": {
        "infra": "gcp/us-central1",
        "accelerators": "A100:1",
        "cpus": "8+",
        "memory": "32+",
        "bucket": "gs://my-studies",
        "mount_path": "/studies",
        "setup": "nvidia-smi",
        "environment": "ATTNPERF_DATA=/studies/data",
    },
    "sky_volume": {"infra": "k8s", "spot": False, "volume": "studies", "image": "docker:a/b:1"},
}
_FREE = ("envs", "labels")


def _settings(experiment_dir="/mnt/studies", name="Quick study", **own):
    keys = {**defaults.of(skypilot), **own}
    return {"name": name, "experiment_dir": str(experiment_dir), "skypilot": keys}


def _golden(case):
    return yaml.safe_load((GOLDEN / f"{case}.yaml").read_text())


@pytest.mark.parametrize("case", CASES)
def test_tasks_are_the_golden_ones(case):
    settings = _settings(**CASES[case])
    skypilot.check(settings)
    task = skypilot.task(BATCH, 1, settings)
    schemas.check(task, schemas.TASK, case)
    assert remote.to_yaml(task) == (GOLDEN / f"{case}.yaml").read_text()


def _places(document, path=()):
    if isinstance(document, dict):
        for key, value in document.items():
            yield (*path, key)
            if key not in _FREE:
                yield from _places(value, (*path, key))


@pytest.mark.parametrize("case", CASES)
def test_every_key_misspelt_once_and_every_other_type_is_refused(case):
    good = _golden(case)
    for place in _places(good):
        if str(place[-1]).startswith("/"):
            continue  # a mount's path
        misspelt, mistyped = copy.deepcopy(good), copy.deepcopy(good)
        spelt, typed = misspelt, mistyped
        for part in place[:-1]:
            spelt, typed = spelt[part], typed[part]
        spelt[f"{place[-1]}x"] = spelt.pop(place[-1])
        typed[place[-1]] = 1.5
        with pytest.raises(ValueError, match=f"{place[-1]}x: unknown key. Did you mean"):
            schemas.check(misspelt, schemas.TASK, case)
        with pytest.raises(ValueError, match=rf"{place[-1]}: "):
            schemas.check(mistyped, schemas.TASK, case)


def test_a_misspelt_recovery_is_refused_by_its_path():
    task = _golden("sky_spot")
    recovery = task["resources"]["job_recovery"]
    recovery["recover_on_exit_code"] = recovery.pop("recover_on_exit_codes")
    wanted = (
        "resources.job_recovery.recover_on_exit_code: unknown key. "
        "Did you mean 'recover_on_exit_codes'?"
    )
    with pytest.raises(ValueError, match=re.escape(wanted)):
        schemas.check(task, schemas.TASK, "x")


@pytest.mark.skipif(not shutil.which("sky"), reason="needs SkyPilot's command `sky`")
@pytest.mark.parametrize("case", CASES)
def test_real_skypilot_reads_the_task(case, tmp_path):
    # `sky` has no offline check of its own: its Python has.
    interpreter = pathlib.Path(shutil.which("sky")).read_text().splitlines()[0].removeprefix("#!")
    script = "import sky, sys; print(sky.Task.from_yaml(sys.argv[1]))"
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }
    command = [interpreter, "-c", script, str(GOLDEN / f"{case}.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "sweeps job" in done.stdout


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"bucket": "s3://b-1"}, "a claim on a trial is such a rename"),
        ({"bucket": ""}, "the machines must see the study"),
        ({"volume": "v"}, "one of skypilot.bucket and skypilot.volume"),
        ({"accelerators": "A100:x"}, "skypilot.accelerators is 'A100:x'"),
        ({"accelerators": "tpu-v5e-16"}, "TPUs of one host are"),
        ({"accelerators": "A100:3", "workers": 2}, "cannot share 3 devices"),
        ({"cpus": "many"}, "skypilot.cpus is 'many'"),
        ({"recovery": "NONE"}, "unknown skypilot.recovery 'NONE'"),
        ({"disk_gb": 0}, "skypilot.disk_gb is 0"),
        ({"environment": "1=2"}, "'1=2' is no variable"),
        ({"local_root": "/elsewhere"}, "is not below /elsewhere"),
        ({"python": ""}, "skypilot.python is empty"),
    ],
)
def test_what_no_cloud_could_run_is_refused_before_anything_starts(keys, message):
    good = {"bucket": "gs://my-studies"}
    skypilot.check(_settings(**good))
    with pytest.raises(ValueError, match=re.escape(message)):
        skypilot.check(_settings(**{**good, **keys}))


@pytest.mark.parametrize(
    ("accelerators", "workers", "platform", "devices"),
    [
        ("", 2, "cpu", 1),
        ("H100", 1, "gpu", 1),
        ("A100:8", 4, "gpu", 2),
        ("tpu-v5e-8", 1, "tpu", 8),
        ("tpu-v4-8", 1, "tpu", 4),
    ],
)
def test_platform_and_devices_of_a_trial(accelerators, workers, platform, devices):
    settings = _settings(bucket="gs://b-1", accelerators=accelerators, workers=workers)
    skypilot.check(settings)
    assert skypilot.platform(settings) == platform
    assert skypilot.devices(settings) == devices


@pytest.mark.parametrize(
    ("statuses", "state"),
    [
        (("PENDING", "SUBMITTED", "STARTING", "RECOVERING"), State.QUEUED),
        (("RUNNING", "WINDING_DOWN", "CANCELLING"), State.RUNNING),
        (("SUCCEEDED", "CANCELLED", "FAILED", "FAILED_SETUP", "FAILED_NO_RESOURCE"), State.GONE),
        (("HIBERNATING",), State.UNKNOWN),
    ],
)
def test_states_of_managed_jobs(statuses, state):
    assert {skypilot.state(status) for status in statuses} == {state}


def test_only_a_job_of_skypilot_is_run_again_by_it(monkeypatch):
    assert not skypilot.requeue()
    monkeypatch.setenv("SKYPILOT_TASK_ID", "sky-1")
    assert skypilot.requeue()


# The whole road, with the stand-in.


class Cloud:
    """The stand-in's objects, and what a test does to them."""

    def __init__(self, folder):
        self.folder = folder

    def preempt(self):
        """Takes the only machine away, with everything that runs there."""
        (pid,) = self.folder.glob("*.pid")
        os.killpg(int(pid.read_text()), signal.SIGKILL)

    def codes(self, name):
        """The exit codes of a job's machines."""
        file = self.folder / f"{name}.codes"
        return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """The stand-in as `sky` on PATH; its processes are gone when the test ends."""
    folder = tmp_path / "cloud"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "sky"
    engines = HERE / "stand_in_engines.py"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {engines} sky "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("STAND_IN", str(folder))
    yield Cloud(folder)
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
        keys = {"setup": "true", "mount_path": str(tmp_path / "mnt"), "python": str(python)}
        settings = _settings(tmp_path / "volume", "quick", **{**keys, **own})
        skypilot.check(settings)
        code = {"PYTHONPATH": str(study / "code")}
        batch = Batch(study / "jobs" / "s-quick-00000000.json", ((),) * size, code)
        return skypilot.launcher(settings, study), batch

    return make


def _wait(condition, what, timeout_s=120.0):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)
    return found


def _wait_gone(launcher, handles):
    _wait(lambda: set(launcher.status(handles).values()) == {State.GONE}, "all jobs gone")


@pytest.mark.parametrize(
    ("codes", "retries", "ran"),
    [("75 75 0", 0, [75, 75, 0]), ("1 75 1 0", 1, [1, 75, 1]), ("76 0", 1, [76, 0])],
)
def test_exit_codes_decide_about_restarts(make_launcher, cloud, tmp_path, codes, retries, ran):
    folder = tmp_path / "codes"
    folder.mkdir()
    for number, code in enumerate(codes.split()):
        (folder / str(number)).write_text(code)
    first = f'f=$(ls {folder} | head -n 1); c=$(cat {folder}/$f); rm {folder}/$f; exit "$c"'
    launcher, batch = make_launcher(first, retries=retries)
    handles = launcher.submit(batch)
    _wait_gone(launcher, handles)
    assert cloud.codes(handles[0]) == ran


def test_a_batch_is_submitted_once_however_often(make_launcher, cloud, tmp_path):
    launcher, batch = make_launcher(f'echo "$@" >> {tmp_path}/calls; sleep 300', size=2)
    assert launcher.find(batch) is None
    handles = launcher.submit(batch)
    assert launcher.submit(batch) == handles == launcher.find(batch)
    _wait(lambda: set(launcher.status(handles).values()) == {State.RUNNING}, "both running")
    assert (cloud.folder / "launches").read_text().split() == handles
    launcher.cancel(handles)
    _wait_gone(launcher, handles)
    launcher.cancel(handles)  # what is gone is passed over


def test_a_batch_of_which_a_part_is_refused_is_taken_back(make_launcher, cloud):
    launcher, batch = make_launcher("sleep 300", size=2)
    (cloud.folder / "refused").write_text("s-quick-00000000-1")
    with pytest.raises(EngineError, match="no such machine"):
        launcher.submit(batch)
    _wait_gone(launcher, ["s-quick-00000000-0"])


def test_two_jobs_of_one_name_are_gone_when_both_are(make_launcher, monkeypatch):
    launcher, _ = make_launcher()
    records = [
        *(("a", "FAILED"), ("a", "RUNNING"), ("d", "STARTING"), ("d", "FAILED")),
        *(("b", "SUCCEEDED"), ("b", "CANCELLED")),
    ]
    queue = [{"job_id": n, "job_name": k, "status": v} for n, (k, v) in enumerate(records)]
    answer = subprocess.CompletedProcess([], 0, f"[2mhello[0m\n{json.dumps(queue)}\n", "")
    monkeypatch.setattr(launcher, "_sky", lambda *arguments: answer)
    wanted = {"a": State.RUNNING, "b": State.GONE, "c": State.GONE, "d": State.QUEUED}
    assert launcher.status(["a", "b", "c", "d"]) == wanted


def test_skypilot_out_of_reach_is_unknown_and_never_gone(make_launcher, cloud):
    launcher, batch = make_launcher("sleep 300")
    handles = launcher.submit(batch)
    (cloud.folder / "down").touch()
    assert launcher.status(handles) == {handles[0]: State.UNKNOWN}
    for ask in (
        lambda: launcher.find(batch),
        lambda: launcher.cancel(handles),
        lambda: launcher.submit(batch),
    ):
        with pytest.raises(EngineError, match="Could not connect"):
            ask()


def test_without_sky_the_tasks_are_there(make_launcher, cloud, monkeypatch, tmp_path):
    launcher, batch = make_launcher(size=2)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="there is no command `sky` here"):
        launcher.submit(batch)
    assert len(list(batch.file.parent.glob("*.yaml"))) == 2


@pytest.mark.slow
def test_a_study_whose_machine_vanishes_loses_nothing(make_study, cloud, tmp_path, cache_dir):
    volume = tmp_path / "volume"
    volume.mkdir()
    (tmp_path / "mnt").symlink_to(volume)
    own = {
        "setup": f"test -d {tmp_path}/mnt",
        "mount_path": tmp_path / "mnt",
        "python": sys.executable,
        "environment": f"JAX_COMPILATION_CACHE_DIR={cache_dir} JAX_PLATFORMS=cpu",
        "poll_seconds": 1,
    }
    keys = {f"skypilot.{key}": value for key, value in own.items()}
    study = make_study(
        experiment_dir=volume, launcher="skypilot", protocol="grid", variants="standard",
        points=1, steps=200, eval_every=50, **keys,
    )  # fmt: skip
    directory = study.directory / study.trials("grid")[0].path
    preempted = threading.Thread(target=_preempt_once_it_saved, args=(cloud, directory))
    preempted.start()
    counts = driver.Driver(study, progress.Progress()).run()
    preempted.join()
    assert counts == {"done": 1}
    (name,) = (file.name.removesuffix(".codes") for file in cloud.folder.glob("*.codes"))
    assert cloud.codes(name) == [137, 0]
    attempts = sorted((directory / layout.ATTEMPTS).iterdir())
    outcomes = [layout.read_json_if_there(attempt / lease.OUTCOME) for attempt in attempts]
    assert [found and found["outcome"] for found in outcomes] == [None, "done"]
    rows = [row for row in measurements.curve(directory) if row["kind"] == "train"]
    assert [row["global_step"] for row in rows] == list(range(200))


def _preempt_once_it_saved(cloud, directory):
    _wait(lambda: any((directory / layout.CHECKPOINTS).glob("[0-9]*")), "a checkpoint", 600.0)
    cloud.preempt()
