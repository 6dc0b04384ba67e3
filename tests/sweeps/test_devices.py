"""Slots and devices of a host: jobs of one study at a time have an accelerator; cores are shared
when none is free."""

import contextlib
import errno
import itertools
import os
import pathlib
import signal
import subprocess
import time
import types

import pytest

from sweeps import __main__ as command
from sweeps.launchers import device_locks, local
from sweeps.launchers.protocol import State
from sweeps.monitoring.progress import Progress
from sweeps.records import status, submissions
from sweeps.scheduling import driver
from sweeps.study import study_directory
from tests.sweeps.conftest import begin_stage

# In the place of `python -m sweeps job`: it prints its devices and waits for its end.
_JOB = """
import os, time
print("devices", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
time.sleep(1000)
"""
# As `_JOB`; saves for some seconds when it is told to stop.
_SAVES = """
import signal, sys, time
def save(number, frame):
    time.sleep({seconds})
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("devices none", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def start(make_study, tmp_path, monkeypatch):
    """Returns a function that submits jobs of a study by a new launcher: a namespace of `root`,
    the study's directory, the trial's `path`, `launcher`, `batch`, `handles`, and what it `said`.
    """
    package = tmp_path / "stub/sweeps"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.chdir(package.parent)
    made = []

    def begin(name, jobs=1, code=_JOB, **changes):
        scratch = tmp_path / "code"
        scratch.write_text(code)
        scratch.replace(package / "__main__.py")  # a job of before may be reading it
        study = make_study(name=name, protocol="grid", variants="standard", points=1, **changes)
        [trial] = begin_stage(study, "grid")
        launcher, root = local.LocalLauncher(study.settings, study.directory), study.directory
        made.append(launcher)
        said = []
        launcher.say = said.append
        environment = {"PYTHONPATH": str(package.parent)}
        batch = submissions.new(root, "local", [(trial.path,)], environment, sharing=jobs)
        return types.SimpleNamespace(
            root=root,
            path=trial.path,
            launcher=launcher,
            batch=batch,
            handles=launcher.submit(batch),
            said=said,
        )

    yield begin
    for launcher in made:
        launcher.close()


def _devices(jobs, wait_until):
    """Returns the devices that the first job of a batch sees, once it has printed them."""
    log = jobs.batch.log(0)
    wait_until(lambda: log.read_text().endswith("\n"))
    return log.read_text().split()[1]


def test_a_gpu_has_one_job_whichever_study_it_is_of(host, start, wait_until, capsys):
    """Two GPUs, three studies: one each, and the third waits and says for whom."""
    host("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl")
    first, second = start("one"), start("two")
    assert [_devices(jobs, wait_until) for jobs in (first, second)] == ["0", "1"]
    assert second.said == []
    three = start("three")
    [waiting] = three.handles
    for _ in range(3):
        assert three.launcher.status([waiting]) == {waiting: State.QUEUED}
    [text] = three.said
    for jobs, device in ((first, "GPU 0"), (second, "GPU 1")):
        assert f"{jobs.root} holds {device} of this host" in text
    assert device_locks.holders() == {str(first.root): ["GPU 0"], str(second.root): ["GPU 1"]}
    assert device_locks.holders("GPU") == device_locks.holders()
    assert device_locks.holders("core") == {}
    assert command.main(["status", str(three.root)]) in (None, 0, 3)
    assert f"{first.root} holds GPU 0 of this host\n" in capsys.readouterr().out
    first.launcher.close()
    assert first.launcher.status(first.handles) == {first.handles[0]: State.GONE}
    assert three.launcher.status([waiting]) == {waiting: State.RUNNING}
    assert _devices(three, wait_until) == "0"


def test_a_second_study_shares_the_cores_or_waits(start, wait_until):
    _devices(start("one", **{"local.workers": 1}), wait_until)
    for exclusive, state in ((True, State.QUEUED), (False, State.RUNNING)):
        jobs = start(f"two {exclusive}", **{"local.exclusive": exclusive})
        assert list(jobs.launcher.status(jobs.handles).values()) == [state]
        assert "one holds core 0" in jobs.said[0]


def test_a_slot_has_one_job_whoever_starts_it(start, wait_until):
    """Jobs of two drivers take the slots crosswise; a queued one starts where one is free."""
    workers = {"local.workers": 2, "local.pin": False}
    first, second = start("one", 2, **workers), start("one", 2, **workers)
    driver_1, driver_2 = first.launcher, second.launcher
    assert driver_1.capacity() == 2
    assert not driver_1.requeue()
    running = dict.fromkeys(first.handles, State.RUNNING)
    assert driver_1.status(first.handles) == running
    queued = dict.fromkeys(second.handles, State.QUEUED)
    assert driver_2.status([*first.handles, *second.handles]) == running | queued
    gone = dict.fromkeys(second.handles, State.GONE)
    assert driver_1.status(second.handles) == gone  # nobody else starts them
    assert driver_2.find(first.batch) == first.handles
    assert driver_2.find(second.batch) == second.handles
    assert driver_1.find(second.batch) is None
    cancelled, left = first.handles
    driver_1.cancel([cancelled])
    wait_until(lambda: driver_1.status([cancelled])[cancelled] is State.GONE)
    assert sorted(driver_2.status(second.handles).values()) == [State.QUEUED, State.RUNNING]
    assert list(driver_1._processes) == [left]  # a launcher forgets jobs that are gone
    driver_1.close()
    assert driver_2.status([left]) == {left: State.GONE}
    # Its trials are done, by whomever: without this a job would wait for a slot for ever.
    third = start("one", **workers)
    assert third.launcher.status(third.handles) == {third.handles[0]: State.QUEUED}
    status.write(third.root / third.path, "done")
    assert third.launcher.status(third.handles) == {third.handles[0]: State.GONE}


@pytest.mark.parametrize(("seconds", "code"), [(0.5, 75), (1000, -signal.SIGKILL)])
def test_a_host_that_sleeps_while_its_jobs_save_lets_them(
    start, monkeypatch, wait_until, seconds, code
):
    """The driver is stopped for longer than it waits; jobs that never end are killed all the same.

    What is bounded is the time that it has waited itself.
    """
    monkeypatch.setattr(local, "_SAVE_S", 2.0)
    jobs = start("one", code=_SAVES.format(seconds=seconds))
    [process] = jobs.launcher._processes.values()
    _devices(jobs, wait_until)
    later = itertools.count(0, 10**6)  # each look at the clock is days later
    monkeypatch.setattr(time, "monotonic", lambda: next(later))
    jobs.launcher.close()
    assert process.returncode == code


def test_jobs_that_could_not_be_started_wait(start, monkeypatch):
    """No memory for a process: the scheduler asks for the batch again, and it has all its jobs."""
    jobs = start("one", **{"local.workers": 2})
    batch = submissions.new(jobs.root, "local", [(jobs.path,)], jobs.batch.environment)

    def fails(*arguments, **named):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", fails)
        with pytest.raises(OSError, match="allocate"):
            jobs.launcher.submit(batch)
    handles = jobs.launcher.find(batch)
    assert jobs.launcher.status(handles) == {f"{batch.name}-0": State.RUNNING}


# Of each case the jobs that begin one after the other: the workers of its study, its slot, whether
# it wants free cores alone; its devices, and how many of them it has locked.
FOUR = [
    # A job with all devices.
    [(1, 0, False, "0,1,2,3", 4), (1, 0, False, "", 0)],
    [(2, 0, False, "0,1", 2), (1, 0, False, "", 0), (2, 1, False, "2,3", 2)],
    # Shares of two sizes overlap.
    [(2, 0, False, "0,1", 2), (4, 1, False, "", 0), (4, 2, False, "2", 1), (4, 3, False, "3", 1)],
    [(4, 0, False, "0", 1), (2, 0, False, "", 0), (2, 1, False, "2,3", 2)],
]
# Whatever others hold, a job has as many cores: its sums depend on their number.
CORES = [
    [
        (4, 1, False, "2,3", 2),
        (4, 1, False, "0,1", 2),  # another study's
        (2, 0, False, "4,5,6,7", 4),
        (2, 0, True, "", 0),
        (4, 3, True, "", 0),
        (2, 0, False, "0,1,2,3", 0),
        (1, 0, False, "0,1,2,3,4,5,6,7", 0),
        (16, 11, False, "3", 0),  # more workers than cores
    ],
    [
        (8, 6, False, "6", 1),
        (2, 1, False, "0,4,5,7", 4),
        (2, 1, False, "1,2,3,4", 3),  # one of them is another job's
    ],
    # A job that was refused holds nothing.
    [(2, 0, False, "0,1,2,3", 4), (1, 0, True, "", 0), (2, 1, True, "4,5,6,7", 4)],
]


@pytest.mark.parametrize(
    ("device", "jobs"),
    [
        *itertools.product(("dev/nvidia", "dev/accel", "dev/vfio/"), FOUR),
        *itertools.product((None,), CORES),
    ],
)
def test_shares_of_several_sizes_never_overlap(host, monkeypatch, device, jobs):
    host(*(f"{device}{number}" for number in range(4) if device), vendor="0x1ae0")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    with contextlib.ExitStack() as stack:
        for workers, slot, exclusive, *expected in jobs:
            slots = local.Slots({"workers": workers, "pin": True})
            devices, locks = slots.hold(slot, exclusive)
            stack.callback(device_locks.release, locks)
            assert [",".join(devices), len(locks)] == expected


def test_locks_of_other_namespaces_are_not_seen(monkeypatch):
    with device_locks.hold_name("a") as lock:
        assert lock is not None
        assert device_locks.is_held("a")
        monkeypatch.setenv(device_locks.NAMESPACE, "another")
        assert not device_locks.is_held("a")


def test_a_folder_of_any_name_can_be_held():
    """As Python has `é` where PYTHONUTF8=0 and LC_ALL=C."""
    with device_locks.hold_name(os.fsdecode(b"/studies/\xff\xe9")) as lock:
        assert lock is not None


def test_a_host_whose_kernel_shows_no_sockets_has_unknown_holders(monkeypatch):
    def fails(*arguments, **named):
        raise PermissionError

    monkeypatch.setattr(pathlib.Path, "read_text", fails)
    assert device_locks.holders() == {}


@pytest.mark.parametrize(
    ("paths", "vendor", "variables", "expected"),
    [
        ((), None, {}, ("", [])),
        (("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl"), None, {}, ("gpu", ["0", "1"])),
        (("proc/driver/nvidia/gpus/0000:3b:00.0/information",), None, {}, ("gpu", ["0"])),
        (("dev/nvidia4", "dev/nvidia5", "dev/nvidia-uvm"), None, {}, ("gpu", ["0", "1"])),
        (("dev/nvidia4",), None, {"CUDA_VISIBLE_DEVICES": "0"}, ("gpu", ["0"])),
        (("dev/nvidia0",), None, {"CUDA_VISIBLE_DEVICES": ""}, ("", [])),
        (("dev/nvidia0",), None, {"JAX_PLATFORMS": "cpu"}, ("", [])),
        (("dev/nvidia0",), None, {"JAX_PLATFORMS": "cpu,cuda"}, ("", [])),
        (("dev/nvidia0",), None, {"JAX_PLATFORMS": "cuda,cpu"}, ("gpu", ["0"])),
        (("dev/accel0", "dev/accel1"), None, {}, ("tpu", ["0", "1"])),
        (("dev/vfio/0", "dev/vfio/1", "dev/vfio/vfio"), "0x1ae0", {}, ("tpu", ["0", "1"])),
        (("dev/vfio/11", "dev/vfio/12", "dev/vfio/vfio"), "0x1ae0", {}, ("tpu", ["0", "1"])),
        (("dev/vfio/12",), "0x8086", {}, ("", [])),
    ],
)
def test_what_a_host_must_compute_on(host, monkeypatch, paths, vendor, variables, expected):
    host(*paths, vendor=vendor)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    platform = local.LocalLauncher.hardware({"local": {"workers": 0, "pin": True}}).kind
    assert (platform.replace("cpu", ""), local.accelerators()[1]) == expected


def test_a_gpu_that_jax_does_not_see_is_refused(make_study, host):
    """By the real driver and job, of a host whose devices are in a folder."""
    host("dev/nvidia0")
    made = make_study(points=1)
    study_directory.prepare(made)
    with pytest.raises(
        ValueError,
        match="a gpu was expected here, .*cpu:0.*JAX_PLATFORMS=cpu",
    ):
        driver.run(made, Progress())
    (trial, *_) = made.trials("tune")
    assert status.read(made.directory / trial.path)["state"] == "pending"
