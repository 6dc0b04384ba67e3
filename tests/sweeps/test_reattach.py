"""Drivers that die or are cancelled, and others that take their place."""

import errno
import os
import pathlib
import shutil
import signal
import time

import pytest

from attention.common import checkout
from sweeps import commands
from sweeps.__main__ import main
from sweeps.records import layout, lease, status, submissions
from sweeps.scheduling import cancel, driver
from sweeps.scheduling.scheduler import Interrupted
from sweeps.study import study_directory
from tests.sweeps.chaos import equality
from tests.sweeps.conftest import answer_data, begin_stage, finish_stage

POINTS = range(4)


def _at_work(drivers):
    """Returns {point: process number} of the trials in training if both workers train, else {}."""
    running = [p for p in POINTS if status.recorded(drivers.trial(p))["state"] == "running"]
    workers = {point: pid for point in running if (pid := drivers.worker(point))}
    return workers if len(workers) == 2 else {}


def _attempts(drivers):
    return {point: lease.latest(drivers.trial(point)) for point in POINTS}


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
    assert any("2 jobs of an earlier driver are taken up" in line for line in second.stdout)
    assert {point: stub_drivers.worker(point) for point in jobs} == jobs
    for pid in jobs.values():
        os.kill(pid, signal.SIGCONT)
    assert "4 done" in stub_drivers.finish(second)
    stub_drivers.finish(first, -signal.SIGKILL if is_killed else 0)
    assert equality.problems(stub_drivers.study, stub_undisturbed) == []
    assert _attempts(stub_drivers) == dict.fromkeys(POINTS, 1)
    assert len(list(stub_drivers.study.glob("jobs/*.handles.json"))) == 1


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
    ends = [end for point in POINTS for end in equality.outcomes(drivers.trial(point))]
    assert "preempted" in ends
    assert "killed" not in ends
    assert "cancelled" in drivers.call("status", drivers.study).stdout
    drivers.finish(drivers.run(command="resume"))
    assert not (drivers.study / submissions.CANCELLED).exists()
    assert equality.problems(drivers.study, undisturbed) == []
    assert sum(_attempts(drivers).values()) == 4 + ends.count("preempted")


@pytest.fixture
def copy(tmp_path, drivers):
    """A copy of the four packages, which `drivers` run from: it may be edited."""
    root = tmp_path / "checkout"
    for room in checkout.PACKAGES:
        shutil.copytree(
            pathlib.Path(checkout.__file__).resolve().parents[1] / room,
            root / room,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    drivers.environment["PYTHONPATH"] = str(root)
    drivers.folder = root
    return root


@pytest.mark.nightly
def test_code_edited_after_submission_is_not_what_runs(drivers, undisturbed, copy, wait_until):
    """Jobs that are submitted again run the code of the day the study was begun.

    Also where they are started in the folder of the edited code.
    """
    first = drivers.run()
    workers = wait_until(lambda: _at_work(drivers))
    for name in ("training/loop.py", "job/job.py", "job/trainer.py"):
        (copy / "sweeps" / name).write_text("raise RuntimeError('edited after submission')\n")
    for pid in workers.values():
        os.kill(pid, signal.SIGKILL)
    output = drivers.finish(first)
    assert "will be tried again" in output
    assert equality.problems(drivers.study, undisturbed) == []
    assert len(list((drivers.study / "code").iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        *((layout.STUDY, content, 2) for content in ("", "[]", '{"name": ')),
        (f"tune/{layout.TRIALS}", "{}", 0),
    ],
)
def test_cancel_marks_a_study_whatever_is_damaged(make_study, capsys, name, content, code):
    """Who cancels wants to spend no more. A folder that is no study stays as it is."""
    made = make_study()
    begin_stage(made)
    (made.directory / name).write_text(content)
    assert main(["cancel", str(made.directory)]) == code
    assert (str(made.directory / name) in capsys.readouterr().err) == (code == 2)
    assert submissions.is_cancelled(made.directory)
    assert main(["cancel", str(made.directory.parent)]) == 2
    assert not submissions.is_cancelled(made.directory.parent)


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 0), ("pending", 3)])
def test_status_says_that_an_unfinished_study_is_cancelled(make_study, capsys, state, code):
    made = make_study(protocol="grid", points=1, variants="standard")
    for trial in begin_stage(made, "grid"):
        status.write(made.directory / trial.path, state, global_step=trial.steps)
    cancel.cancel(made.directory)
    assert main(["status", str(made.directory)]) == code
    assert ("cancelled" in capsys.readouterr().out) == (code == 3)


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        ("", {}),
        ("cancelled", {}),
        ("finished", {"seeds": 4}),
        ("finished", {"points": 2}),
        ("finished", {"variants": "standard,laser"}),
    ],
    ids=str,
)
def test_a_cancel_while_data_are_prepared_is_obeyed(make_study, monkeypatch, before, changes):
    settings = {"protocol": "grid", "points": 1, "variants": "standard"}
    made = make_study(**settings)
    if before == "cancelled":
        begin_stage(made, "grid")
        cancel.cancel(made.directory)  # of before: this run takes it away
        time.sleep(0.01)
    if before == "finished":
        finish_stage(made, "grid")
    monkeypatch.setattr(driver.measurements, "restore", lambda *_: None)
    answer_data(monkeypatch, "", lambda: cancel.cancel(made.directory))
    with pytest.raises(Interrupted):
        commands._drive(make_study(**settings | changes))
    assert submissions.is_cancelled(made.directory)
    assert not (made.directory / submissions.JOBS).exists()


def test_a_cancel_that_cannot_be_written_names_the_folder(make_study, monkeypatch, capsys):
    made = make_study()
    study_directory.prepare(made)

    def refuse(path, record):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(layout, "write_json", refuse)
    assert main(["cancel", str(made.directory)]) == 2
    assert "Permission denied. No job was told to stop" in capsys.readouterr().err


def test_the_next_run_takes_the_mark_away(make_study, monkeypatch):
    made = make_study(protocol="grid", points=1, variants="standard")
    finish_stage(made, "grid")
    layout.write_json(made.directory / submissions.CANCELLED, {"cancelled_at": 1.0})
    monkeypatch.setattr(driver.measurements, "restore", lambda *_: None)
    answer_data(monkeypatch, "")
    assert commands._drive(made) == 0
    assert not submissions.is_cancelled(made.directory)
