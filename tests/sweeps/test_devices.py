"""Slots and devices of a host, and the check of its hardware; cores are shared where no accelerator
is free."""

import collections
import contextlib
import errno
import itertools
import json
import math
import os
import pathlib
import signal
import subprocess
import time
import types

import jax
import pytest

from attention import backends
from attention.verification import check, laws
from sweeps import __main__ as command
from sweeps.compilers import hardware_check
from sweeps.launchers import device_locks, local
from sweeps.launchers.protocol import State
from sweeps.monitoring.progress import Progress
from sweeps.records import status, submissions
from sweeps.scheduling import driver
from sweeps.study import jax_calls, study_directory
from tests.sweeps.conftest import begin_stage
from workloads import bench

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
            devices, locks = local.Slots({"workers": workers, "pin": True}).hold(slot, exclusive)
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


@pytest.mark.nightly
def test_all_of_it_on_this_machine(tmp_path, capfd):
    """Kernels within their limits, two processes; full-size steps are for accelerators."""
    out = tmp_path / "hardware.json"
    assert command.main(["hardware", f"--out={out}"]) == 0
    lines = json.loads(out.read_text())["lines"]
    printed = capfd.readouterr().out
    assert all(line["summary"] in printed for line in lines)
    assert collections.Counter((line["part"], line["verdict"]) for line in lines) == {
        ("kernels", "ok"): 2,
        ("kernels", "not here"): 3,
        ("steps", "not here"): 3,
        ("processes", "ok"): 1,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts=recovery"], "unknown part 'recovery'. Known: kernels, steps"),
        (["--out=no/such/file.json"], "no/such is no directory"),
        (["--out=/"], "--out=/: that is a directory"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    assert command.main(["hardware", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def in_process(monkeypatch):
    monkeypatch.setattr(jax_calls, "call", lambda function, **arguments: function(**arguments))


@pytest.mark.parametrize(
    ("error", "verdict", "text"), [(1e-6, "ok", "limits"), (math.nan, "WRONG", "exceed")]
)
def test_kernels_are_checked_by_attention_check(error, verdict, text, in_process, monkeypatch):
    """Float32 by those alone that multiply in the float32 that the limits are for."""
    measured = set()

    def measure(case, shape):
        measured.add((case.kernel, case.dtype, jax.config.jax_default_matmul_precision))
        gradients = dict.fromkeys(("query", "key", "value"), error)
        return check.Measurement(case, 0.0, gradients, {}, (2e-6, 3e-6))

    monkeypatch.setattr(check, "measure", measure)
    monkeypatch.setattr(laws, "problem", lambda variant: "")
    results = list(hardware_check._kernels({"platform": "gpu"}))
    verdicts = {result.what: result.verdict for result in results if text in result.summary}
    assert verdicts == dict.fromkeys(("xla", "jax_xla", "cudnn", "fused"), verdict)
    assert [result.what for result in results if result.verdict == "not here"] == ["splash"]
    assert measured == {
        *itertools.product(("xla", "jax_xla"), ("float32", "bfloat16"), ("float32",)),
        ("cudnn", "bfloat16", None),
        ("fused", "bfloat16", None),
    }


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_steps_are_timed_by_workloads_bench(platform, in_process, monkeypatch):
    """By kernels that can compute them; what a command refuses is a result."""

    def lines(workload, data_dir, variants, batch_size, kernel, compute_dtype, times):
        assert times is None
        yield f"{workload} by {kernel}, batch {batch_size}"
        sizes = {"head_size": 64, "value_size": 64}
        backends.check_kernel(kernel, platform=platform, dtype=compute_dtype, **sizes)
        if kernel == "fused":
            raise ValueError("no room")

    monkeypatch.setattr(bench, "lines", lines)
    results = list(hardware_check._steps({"platform": platform, "device_count": 2}))
    text = {result.summary for result in results if result.verdict == "measured"}
    assert text >= {
        "imagenet_vit by xla, batch 256",
        "librispeech_conformer by xla, batch 64",
        "c4_lm by xla, batch 32",
    }
    bad = {(result.what, result.summary) for result in results if result.verdict == "FAILED"}
    refused = "python -m workloads: no room"
    assert bad == {(f"{name} by fused", refused) for name, *_ in hardware_check._STEPS}


def _waits():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def test_a_process_that_does_not_answer_is_ended():
    """Two that never find each other would else hold the devices and the command for ever."""
    with (
        pytest.raises(TimeoutError, match="'_waits' gave no answer in 2 s"),
        jax_calls.SubprocessCall(_waits) as call,
    ):
        call.result(2)
    call.process.join(30)
    assert call.process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("losses", "code", "verdict"),
    [
        ([1.0, 2.0, math.nan], 0, "WRONG"),
        ([math.nan, 2.0, 3.0], 0, "WRONG"),
        ([1.0, 2.0, 3.1], 0, "WRONG"),
        ([1.0, 2.0, 3.0], 0, "ok"),
        ([1.0, 2.0, 3.0], 1, "FAILED"),
    ],
)
def test_two_processes_agree_with_one(losses, code, verdict, monkeypatch):
    def start(function, index, **settings):
        process = types.SimpleNamespace(exitcode=code)
        answer = losses if index else [1.0, 2.0, 3.0]
        call = types.SimpleNamespace(process=process, result=lambda limit_s: answer)
        return contextlib.nullcontext(call)

    monkeypatch.setattr(jax_calls, "SubprocessCall", start)
    monkeypatch.setattr(jax_calls, "call", lambda *arguments, **settings: [1.0, 2.0, 3.0])
    (result,) = hardware_check._processes({"platform": "cpu"})
    assert result.verdict == verdict
