"""Devices of a host: one study at a time has an accelerator; cores are shared when none is free."""

import contextlib
import os
import pathlib
import signal
import time

import pytest

from sweeps import __main__ as command
from sweeps.launchers import device_locks, local
from sweeps.launchers.protocol import State
from sweeps.records import submissions
from tests.sweeps.conftest import Drivers, begin_stage

# In the place of `python -m sweeps job`: it prints its devices and waits for its end.
_JOB = """
import os, sys, time
print("devices", os.environ.get("CUDA_VISIBLE_DEVICES"), *sys.argv[4:], flush=True)
time.sleep(1000)
"""


@pytest.fixture
def start(make_study, tmp_path, monkeypatch):
    """Returns a function that submits a job of a new study: (study's directory, its launcher,
    its handles, what it says)."""
    package = tmp_path / "stub/sweeps"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(_JOB)
    monkeypatch.chdir(package.parent)
    made = []

    def begin(name, jobs=1, **changes):
        study = make_study(name=name, protocol="grid", variants="standard", points=1, **changes)
        [trial] = begin_stage(study, "grid")
        launcher = local.LocalLauncher(study.settings, study.directory)
        made.append(launcher)
        said = []
        launcher.say = said.append
        environment = {"PYTHONPATH": str(package.parent)}
        batch = submissions.new(
            study.directory, "local", [(trial.path,)], environment, sharing=jobs
        )
        return study.directory, launcher, launcher.submit(batch), said

    yield begin
    for launcher in made:
        launcher.close()


def _devices(directory, wait_until):
    """Returns the devices that the jobs of a study see, in order, and their arguments."""
    logs = sorted((directory / "jobs").glob("*.log"))
    wait_until(lambda: all("devices" in log.read_text() for log in logs))
    return [log.read_text().split()[1:] for log in logs]


def test_a_gpu_has_one_job_whichever_study_it_is_of(host, start, wait_until, capsys):
    """Two GPUs, three studies: one each, and the third waits and says for whom."""
    host("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl")
    one, first, handles, _ = start("one")
    two, _, _, said = start("two")
    assert [_devices(study, wait_until)[0][0] for study in (one, two)] == ["0", "1"]
    assert said == []
    three, third, [waiting], said = start("three")
    for _ in range(3):
        assert third.status([waiting]) == {waiting: State.QUEUED}
    [text] = said
    for study, device in ((one, "GPU 0"), (two, "GPU 1")):
        assert f"{study} holds {device} of this host" in text
    assert device_locks.holders() == {str(one): ["GPU 0"], str(two): ["GPU 1"]}
    assert device_locks.holders("GPU") == device_locks.holders()
    assert device_locks.holders("core") == {}
    assert command.main(["status", str(three)]) in (None, 0, 3)
    assert f"{one} holds GPU 0 of this host\n" in capsys.readouterr().out
    first.close()
    assert first.status(handles) == {handles[0]: State.GONE}
    assert third.status([waiting]) == {waiting: State.RUNNING}
    assert _devices(three, wait_until)[0][0] == "0"


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ((1, 1), [["0,1,2,3"], []]),  # a job with all devices
        ((2, 1), [["0,1", "2,3"], []]),
        ((2, 4), [["0,1"], ["2", "3"]]),  # shares of two sizes overlap
        ((4, 2), [["0"], ["2,3"]]),
    ],
)
def test_shares_of_several_sizes_never_overlap(host, start, wait_until, workers, expected):
    host(*(f"dev/nvidia{number}" for number in range(4)))
    seen = []
    for name, size, shares in zip(("one", "two"), workers, expected, strict=True):
        directory, *_ = start(name, max(1, len(shares)), **{"local.workers": size})
        seen.append([words[0] for words in _devices(directory, wait_until)])
    assert seen == expected


@pytest.mark.parametrize("kind", ["dev/accel", "dev/vfio/"])
def test_tpu_chips_too_are_of_one_study(host, kind):
    host(*(f"{kind}{number}" for number in range(4)), vendor="0x1ae0")
    one, two = (local.Slots({"workers": workers, "pin": True}) for workers in (2, 1))
    devices, locks = one.hold(1, exclusive=False)
    assert devices == ["2", "3"]
    assert two.hold(0, exclusive=False) == ([], [])
    device_locks.release(locks)
    devices, locks = two.hold(0, exclusive=False)
    assert devices == ["0", "1", "2", "3"]
    device_locks.release(locks)


@pytest.fixture
def cores(monkeypatch):
    """This host has cores 0 to 7, and no accelerator."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def _hold(stack, workers, slot, exclusive=False):
    devices, locks = local.Slots({"workers": workers, "pin": True}).hold(slot, exclusive)
    stack.callback(device_locks.release, locks)
    return ",".join(devices), len(locks)


def test_free_cores_come_first_and_every_share_is_as_large(cores):
    """Whatever others hold, a job has as many cores: its sums depend on their number."""
    with contextlib.ExitStack() as stack:
        assert _hold(stack, 4, 1) == ("2,3", 2)
        assert _hold(stack, 4, 1) == ("0,1", 2)  # another study's
        assert _hold(stack, 2, 0) == ("4,5,6,7", 4)
        assert _hold(stack, 2, 0, exclusive=True) == ("", 0)
        assert _hold(stack, 4, 3, exclusive=True) == ("", 0)
        assert _hold(stack, 2, 0) == ("0,1,2,3", 0)
        assert _hold(stack, 1, 0) == ("0,1,2,3,4,5,6,7", 0)
        assert _hold(stack, 16, 11) == ("3", 0)  # more workers than cores
    with contextlib.ExitStack() as stack:
        assert _hold(stack, 8, 6) == ("6", 1)
        assert _hold(stack, 2, 1) == ("0,4,5,7", 4)
        assert _hold(stack, 2, 1) == ("1,2,3,4", 3)  # one of them is another job's


def test_what_refused_a_job_holds_nothing(cores):
    with contextlib.ExitStack() as stack:
        _hold(stack, 2, 0)
        _hold(stack, 1, 0, exclusive=True)
        assert _hold(stack, 2, 1, exclusive=True) == ("4,5,6,7", 4)


def test_studies_of_other_namespaces_are_not_seen(cores, monkeypatch):
    with contextlib.ExitStack() as stack:
        _hold(stack, 1, 0)
        monkeypatch.setenv(device_locks.NAMESPACE, "another")
        assert _hold(stack, 1, 0, exclusive=True) == ("0,1,2,3,4,5,6,7", 8)


def test_a_host_whose_kernel_shows_no_sockets_has_unknown_holders(monkeypatch):
    def fails(*arguments, **named):
        raise PermissionError

    monkeypatch.setattr(pathlib.Path, "read_text", fails)
    assert device_locks.holders() == {}


@pytest.mark.slow
@pytest.mark.parametrize("exclusive", [True, False])
def test_a_second_study_shares_the_cores_or_waits(
    tmp_path, data_dir, stub_environment, wait_until, exclusive
):
    """Real drivers: one message; with local.exclusive no job starts before the others have ended.

    `status` names who holds the cores.
    """
    variables = stub_environment(STUB_UPDATE_S="0.1")
    with contextlib.ExitStack() as stack:
        one, two = (
            stack.enter_context(contextlib.closing(Drivers(tmp_path / name, data_dir, variables)))
            for name in ("one", "two")
        )
        for drivers in (one, two):
            drivers.folder.mkdir()
        first = one.run(steps=10_000, eval_every=5000)
        wait_until(lambda: one.worker(0) and one.worker(2))
        second = two.run(**{"local.exclusive": exclusive})
        for line in second.stdout:
            if "of this host" in line:
                break
        assert f"{one.study} holds core" in line
        assert f"{one.study} holds core" in two.call("status", two.study).stdout
        if exclusive:
            time.sleep(2)
            assert not any(two.worker(point) for point in range(4))
            first.send_signal(signal.SIGTERM)
            one.finish(first, 130)
        rest = two.finish(second)
        assert "4 done" in rest
        assert "of this host" not in rest
        assert exclusive or (one.worker(0) and one.worker(2))
