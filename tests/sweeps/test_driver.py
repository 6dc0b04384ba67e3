"""Drivers: a study from nothing, drivers that die or are cancelled, others that replace them."""

import errno
import os
import pathlib
import re
import shutil
import signal
import time

import pytest

from attention.common import checkout
from sweeps import __main__ as command
from sweeps import commands
from sweeps.__main__ import main
from sweeps.job import job
from sweeps.launchers.protocol import FINISHED
from sweeps.monitoring.progress import Progress
from sweeps.records import layout, lease, measurements, status, submissions
from sweeps.scheduling import driver, engines
from sweeps.scheduling.scheduler import Interrupted
from sweeps.study import study, study_directory
from tests.sweeps.chaos import equality
from tests.sweeps.conftest import (
    answer_data,
    begin_attempt,
    begin_stage,
    failing_in_turn,
    finish_stage,
)

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


# Changes of `drivers` to a study that selects a point between two stages.
SELECTING = {"protocol": "tune_then_compare", "variants": "standard,laser", "points": 2}


def _attempts(study):
    return {str(p.parent.parent): p.name for p in study.glob("*/*/*/*/attempts/*")}


@pytest.mark.slow
def test_a_study_from_nothing_and_again(drivers):
    """Tune, select, compare without a person; a second run repeats nothing."""
    study = drivers.study
    output = drivers.finish(drivers.run(**SELECTING))
    assert "4 done" in output
    selection = layout.read_json(study / layout.SELECTION)
    assert selection["points"]["standard"] == selection["points"]["laser"]
    record = layout.read_json(study / layout.STUDY)
    assert record["format"] == layout.FORMAT
    assert len(record["points"]) == 2
    assert record["versions"]["jax"]
    number = 2 + 1000 * selection["points"]["laser"]  # seed 0 has chosen the point
    trial = study / "compare/laser/digits_vit_jax" / f"trial_{number}"
    expected = {"trial.json", "hparams.json", "meta_data_0.json", "flags_0.json", "status.json"}
    expected |= {"eval_measurements.csv", "measurements.csv", "answers.npz"}
    expected |= {"attempts", "checkpoints"}
    assert {path.name for path in trial.iterdir()} == expected
    # By hand: tests/workloads/test_catalog.py.
    meta = layout.read_json(trial / "meta_data_0.json")
    batch_size = layout.read_json(trial / layout.TRIAL)["batch_size"]
    assert meta["model_flops_per_step"] == batch_size * (6 * 75_018 * 64 + 12 * 2 * 64 * 64**2)
    assert layout.read_json(study / layout.REFERENCE)["digits_vit"]["rows"][0]["test/error"] < 0.05
    before = _attempts(study)
    output = drivers.finish(drivers.run(**SELECTING))
    assert "2 trials, 2 already finished" in output
    assert _attempts(study) == before
    assert re.search(r"compare +laser +0 +0 +1 +0 +0", drivers.call("status", study).stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--config=digits_vit_quick", "--config.launcher=pbs"], "unknown launcher"),
        (["run", "--config=digits_vit_quick", "--config.kernel=cudnn"], "needs an NVIDIA GPU"),
        (["plan", "--config=nothing"], "unknown study 'nothing'"),
        (["run", "--config=digits_vit_quick", "--seeds=3"], "run takes no '--seeds=3'"),
        (["run", "--config="], "path '' is empty"),
        (["resume", "/nowhere"], "is no study"),
        (["status", "/nowhere"], "is no study"),
        (["run", "--config=digits_vit_quick", "--config.workload=mnist"], "unknown workload"),
        (
            ["run", "--config=imagenet_vit_paper", "--config.data_dir=/nowhere"],
            "(?s)/nowhere.*imagenet2012",
        ),
    ],
)
def test_bad_input_is_answered(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert command.main(arguments) == 2
    printed = capsys.readouterr().err
    assert re.search(message, printed)
    assert "Traceback" not in printed


@pytest.fixture
def finished(make_study):
    """Returns a study of one trial that is done, by hand: 12 steps, evaluated every 4."""
    made = make_study(protocol="grid", points=1, variants="standard")
    (trial,) = begin_stage(made, "grid")
    directory = made.directory / trial.path
    rows, times = [], dict.fromkeys(layout.TIME_COLUMNS, 1.0)
    for step in range(12):
        rows.append({"kind": "train", "global_step": step, "loss": 0.5, "grad_norm": 1.0})
        if (step + 1) % 4 == 0:
            rows.append(
                {"kind": "eval", "global_step": step + 1, "validation/accuracy": 0.5, **times}
            )
    attempt = begin_attempt(directory, rows)
    measurements.publish(directory)
    status.write(directory, "done", global_step=12)
    attempt.end("done")
    return made, directory


def _drive(made, capsys):
    with Progress() as progress:
        counts = driver.run(made, progress)
    return counts, capsys.readouterr().out


def test_a_trial_that_was_given_up_counts_as_failed(make_study, capsys, monkeypatch):
    """Though a job that had slept has written over its status since."""
    made = make_study(protocol="grid", points=1, variants="standard")
    (trial,) = begin_stage(made, "grid")

    def give_up(jobs, trials):
        status.write(made.directory / trial.path, "failed", reason="given up")
        status.write(made.directory / trial.path, "running")

    monkeypatch.setattr(driver.Scheduler, "run", give_up)
    assert _drive(made, capsys)[0] == {"failed": 1}


@pytest.mark.parametrize("name", [layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS])
@pytest.mark.parametrize("length", [None, 0, 60, -1, -5], ids=str)
def test_csvs_of_a_done_trial_are_written_anew_from_its_attempts(finished, capsys, name, length):
    made, directory = finished
    path = directory / name
    whole, written = path.read_bytes(), path.stat().st_mtime_ns
    assert _drive(made, capsys)[0] == {"done": 1}
    assert path.stat().st_mtime_ns == written
    path.unlink()
    if length is not None:
        path.write_bytes(whole[:length])
    assert _drive(made, capsys)[0] == {"done": 1}
    assert path.read_bytes() == whole
    assert lease.latest(directory) == 1


def test_a_file_server_that_fails_as_a_stage_begins_or_ends(finished, capsys, monkeypatch):
    """Of all files that the driver reads or writes once it has its scheduler, one fails."""
    begun, shown, files = [], [], set()
    make = driver.scheduler.of_study

    def of_study(*arguments):
        scheduler = make(*arguments)
        begun.append(True)
        return scheduler

    def drive():
        begun.clear()
        counts, output = _drive(finished[0], capsys)
        assert counts == {"done": 1}
        shown[:] = [output.count("Input/output error")]

    monkeypatch.setattr(driver.scheduler, "of_study", of_study)
    for file in failing_in_turn(monkeypatch, drive, lambda: begun):
        # The lock is given back in spite of such an error, and nobody need know.
        assert shown == [file.name != lease.OUTCOME]
        files.add(file.name)
    assert files >= {layout.TRIALS, layout.TRIAL, layout.STATUS}


@pytest.mark.parametrize("lost", [measurements.FILE, measurements.RESUMED])
def test_csvs_that_attempts_do_not_hold_are_refused_and_nothing_is_touched(finished, capsys, lost):
    made, directory = finished
    (directory / layout.EVAL_MEASUREMENTS).unlink()
    (directory / "attempts/1" / lost).unlink()
    before = (directory / layout.MEASUREMENTS).read_bytes()
    with pytest.raises(ValueError, match=rf"mv {directory} {directory}\.damaged"):
        _drive(made, capsys)
    assert (directory / layout.MEASUREMENTS).read_bytes() == before
    # As the message says: the trial is to be trained anew.
    directory.rename(f"{directory}.damaged")
    begin_stage(made, "grid")
    assert status.read(directory) == status.NEW


def test_a_study_from_before_a_key_existed_continues(tmp_path, make_study):
    made = make_study()
    study_directory.prepare(made)
    record = layout.read_json(made.directory / layout.STUDY)
    del record["config"]["remat"], record["config"]["local"]["pin"]
    layout.write_json(made.directory / layout.STUDY, record)
    again = study.from_record(record, made.directory)
    assert again.settings["remat"] is False
    assert again.settings["local"]["pin"] is True
    assert again.directory == made.directory.resolve()
    study_directory.prepare(made)
    moved = made.directory.rename(made.directory.with_name("moved"))
    with pytest.raises(ValueError, match="holds study 'digits_vit_quick'"):
        study.from_record(record, moved)


def test_a_job_begins_with_its_share_of_the_trials(make_study):
    """So that jobs of one stage compile different programs first; each may end all others'."""
    made = make_study(protocol="grid", points=3)
    paths = [trial.path for trial in begin_stage(made, "grid")]
    batch = submissions.new(made.directory, "local", [tuple(paths)], {}, sharing=2)
    first, second = (list(job.Job(batch.file, index)._in_turn()) for index in range(2))
    assert first == paths
    assert second == paths[3:] + paths[:3]


def _fail(directory, ahead_s):
    """Has an attempt fail on a host whose clock is wrong by some seconds."""
    attempt = lease.claim(directory)
    status.write(directory, "failed")
    record = layout.read_json(directory / layout.STATUS)
    layout.write_json(directory / layout.STATUS, record | {"heartbeat": time.time() + ahead_s})
    attempt.end("failed")


@pytest.mark.parametrize("ahead_s", [-900, 0, 900, 86400])
def test_a_job_leaves_trials_that_other_jobs_have_tried(make_study, monkeypatch, ahead_s):
    """Those that a job of its batch has claimed, and those that failed meanwhile in another's.

    Whatever the clocks of the hosts say.
    """
    made = make_study(protocol="grid", points=3, variants="standard")
    free, claimed, failed = begin_stage(made, "grid")
    _fail(made.directory / free.path, ahead_s)  # before: a person runs the study again
    paths = (free.path, claimed.path, failed.path)
    batch = submissions.new(made.directory, "local", [paths], {}, sharing=2)
    batch.note_claim(1, claimed.path)
    _fail(made.directory / failed.path, ahead_s)
    worked, trained = job.Job(batch.file, 0), []

    def run(directory, *_):
        trained.append(directory)
        return job.trainer.End("done")

    monkeypatch.setattr(worked.trainer, "run", run)
    assert worked._train_all() == FINISHED
    assert trained == [made.directory / free.path]


POINTS = range(4)


def _at_work(drivers):
    """Returns {point: process number} of the trials in training if both workers train, else {}."""
    running = [p for p in POINTS if status.recorded(drivers.trial(p))["state"] == "running"]
    workers = {point: pid for point in running if (pid := drivers.worker(point))}
    return workers if len(workers) == 2 else {}


def _last_attempts(drivers):
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
    assert _last_attempts(stub_drivers) == dict.fromkeys(POINTS, 1)
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
    assert sum(_last_attempts(drivers).values()) == 4 + ends.count("preempted")


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
    assert "will be tried again" in drivers.finish(first)
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
    engines.cancel(made.directory)
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
        engines.cancel(made.directory)  # of before: this run takes it away
        time.sleep(0.01)
    if before == "finished":
        finish_stage(made, "grid")
    monkeypatch.setattr(driver.measurements, "restore", lambda *_: None)
    answer_data(monkeypatch, "", lambda: engines.cancel(made.directory))
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
