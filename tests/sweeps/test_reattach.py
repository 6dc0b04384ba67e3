"""Drivers that die, crash with their workers, are cancelled, and others that take their place."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from attention import checkout
from sweeps.records import layout, lease, status, submissions
from tests.sweeps.chaos import equality, storm

POINTS = range(4)


def _at_work(drivers):
    """Returns {point: process number} of trials that both workers train now, {} where not both."""
    running = [p for p in POINTS if status.recorded(drivers.trial(p))["state"] == "running"]
    found = {point: pid for point in running if (pid := drivers.worker(point))}
    return found if len(found) == 2 else {}


def _attempts(drivers):
    return {point: lease.latest(drivers.trial(point)) for point in POINTS}


def _taken_up(driver):
    """Waits until a driver has said that it takes up two jobs; returns its lines."""
    shown = []
    while not any("2 jobs of an earlier driver are taken up" in line for line in shown):
        line = driver.stdout.readline()
        assert line, shown
        shown.append(line)
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [True, False], ids=["driver killed", "two drivers"])
def test_a_second_driver_takes_up_the_jobs_of_the_first(
    stub_drivers, stub_undisturbed, wait_until, is_killed
):
    """They go on to the end of their batch; the second driver starts none, and counts them once."""
    first = stub_drivers.run()
    jobs = wait_until(lambda: _at_work(stub_drivers))
    for pid in jobs.values():  # trials of a second would end while the other driver starts
        os.kill(pid, signal.SIGSTOP)
    if is_killed:
        first.kill()
    second = stub_drivers.run()
    _taken_up(second)
    assert {point: stub_drivers.worker(point) for point in jobs} == jobs
    for pid in jobs.values():
        os.kill(pid, signal.SIGCONT)
    assert "4 done" in stub_drivers.finish(second)
    stub_drivers.finish(first, -signal.SIGKILL if is_killed else 0)
    assert equality.problems(stub_drivers.study, stub_undisturbed) == []
    assert _attempts(stub_drivers) == dict.fromkeys(POINTS, 1)
    assert len(list(stub_drivers.study.glob("jobs/*.handles.json"))) == 1


@pytest.mark.slow
def test_host_crash(drivers, undisturbed, wait_until):
    """SIGKILL of the driver and both workers at once; one of them was writing a checkpoint."""
    first = drivers.run()
    workers = wait_until(lambda: _at_work(drivers))
    wait_until(lambda: any(storm.is_saving(drivers.trial(point)) for point in POINTS), every=0)
    for pid in (first.pid, *workers.values()):
        os.kill(pid, signal.SIGKILL)
    first.wait()
    wait_until(lambda: not any(drivers.worker(point) for point in POINTS))
    drivers.finish(drivers.run())
    assert equality.problems(drivers.study, undisturbed) == []


@pytest.mark.slow
def test_jobs_killed_before_they_claim_a_trial(drivers, undisturbed, wait_until):
    """As by the kernel's out-of-memory killer while JAX loads: they are started again."""
    first = drivers.run()
    killed = set()

    def kill_workers():
        command = ["ps", "-o", "pid=,args=", "--ppid", str(first.pid)]
        children = subprocess.run(command, capture_output=True, text=True).stdout
        for line in children.splitlines():
            pid, _, command = line.strip().partition(" ")
            if "-m sweeps job " in command and len(killed) < 2:
                os.kill(int(pid), signal.SIGKILL)
                killed.add(pid)
        return len(killed) == 2

    wait_until(kill_workers)
    drivers.finish(first)
    assert equality.problems(drivers.study, undisturbed) == []
    assert _attempts(drivers) == dict.fromkeys(POINTS, 1)


@pytest.mark.slow
def test_cancel_saves_and_resume_goes_on(drivers, undisturbed, wait_until):
    first = drivers.run()
    workers = wait_until(lambda: _at_work(drivers))
    for pid in workers.values():  # a trial of two seconds would end while `cancel` is starting
        os.kill(pid, signal.SIGSTOP)
    done = drivers.call("cancel", drivers.study)
    for pid in workers.values():
        os.kill(pid, signal.SIGCONT)
    assert done.returncode == 0, done.stderr
    assert "2 jobs withdrawn" in done.stdout
    drivers.finish(first, 130)
    assert [lease.process_start(pid) for pid in workers.values()] == [None, None]
    preempted = [
        point
        for point in POINTS  # a worker may have gone on to another trial before it was told
        if _attempts(drivers)[point]
        and status.read(drivers.trial(point))["state"] == "pending"  # and not done by then
    ]
    for point in set(preempted) & set(workers):
        found = status.read(drivers.trial(point))
        assert found["reason"] == f"preempted at step {found['global_step']}"
        saved = drivers.trial(point) / layout.CHECKPOINTS / str(found["global_step"])
        assert saved.is_dir()
    assert preempted
    assert "cancelled" in drivers.call("status", drivers.study).stdout
    drivers.finish(drivers.run(command="resume"))
    assert not (drivers.study / submissions.CANCELLED).exists()
    assert equality.problems(drivers.study, undisturbed) == []
    assert sum(_attempts(drivers).values()) == 4 + len(preempted)


@pytest.fixture
def copy(tmp_path, drivers):
    """A copy of the four packages, which `drivers` run from: it may be edited."""
    root = tmp_path / "checkout"
    for room in checkout.ROOMS:
        shutil.copytree(
            pathlib.Path(checkout.__file__).resolve().parents[1] / room,
            root / room,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    drivers.environment["PYTHONPATH"] = str(root)
    drivers.folder = root
    return root


@pytest.mark.slow
def test_code_edited_after_submission_is_not_what_runs(drivers, undisturbed, copy, wait_until):
    """Jobs that are submitted again run the code of the day the study was begun.

    Also where they are started in the folder of the edited code.
    """
    first = drivers.run()
    workers = wait_until(lambda: _at_work(drivers))
    for name in ("training/loop.py", "job/job.py", "job/trainer.py"):
        (copy / "sweeps" / name).write_text("raise RuntimeError('edited after submission')\n")
    broken = subprocess.run(
        [sys.executable, "-c", "import sweeps.training.loop"],
        env=drivers.environment,
        cwd=copy,
        capture_output=True,
        text=True,
    )
    assert "edited after submission" in broken.stderr
    for pid in workers.values():
        os.kill(pid, signal.SIGKILL)
    output = drivers.finish(first)
    assert "will be tried again" in output
    assert equality.problems(drivers.study, undisturbed) == []
    assert len(list((drivers.study / "code").iterdir())) == 1
