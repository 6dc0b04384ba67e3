"""Whole studies through the real command: interrupted, doubled, poisoned, continued."""

import pathlib
import re
import time

import pytest

from sweeps import __main__ as command
from sweeps import commands
from sweeps.job import job
from sweeps.launchers.protocol import FINISHED
from sweeps.monitoring.progress import Progress
from sweeps.records import layout, lease, measurements, status, submissions
from sweeps.scheduling import driver
from sweeps.study import study, study_directory
from tests.sweeps.conftest import begin_attempt, begin_stage, failing_in_turn

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
    expected |= {"eval_measurements.csv", "measurements.csv", "attempts", "checkpoints"}
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
    shown = drivers.call("status", study).stdout
    assert re.search(r"compare +laser +0 +0 +1 +0 +0", shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--config=digits_vit_quick", "--config.launcher=pbs"], "unknown launcher"),
        (["run", "--config=digits_vit_quick", "--config.kernel=cudnn"], "needs an NVIDIA GPU"),
        (["plan", "--config=nothing"], "unknown study 'nothing'"),
        (["run", "--config=digits_vit_quick", "--seeds=3"], "run takes no '--seeds=3'"),
        (["run", "--config=digits_vit_quick,nothing"], "unknown study 'nothing'"),
        (["run", "--config=digits_vit_quick,"], "path '' is empty"),
        (["run", "--config=digits_vit_quick,digits_vit_demo", "--config.name=x"], "give each once"),
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


def test_several_studies_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    """The second takes the point that the first selects."""
    driven = []

    def drive(resolved, brief):
        driven.append(resolved.name)
        if resolved.name == "c4_lm_234m_paper":
            layout.write_json(resolved.directory / "study.json", {
                "config": {"tuning_variant": "standard", "protocol": "tune_then_compare"},
                "points": resolved.points, "paper_table": "", "name": resolved.name,
                "stages": resolved.stages,
            })  # fmt: skip
            chosen = {"points": {"standard": 3, "laser": 3}}
            layout.write_json(resolved.directory / "selection.json", chosen)
        return int(resolved.name == "digits_vit_quick")

    monkeypatch.setattr(commands, "_drive", drive)
    where = f"--config.experiment_dir={tmp_path}"
    (tmp_path / "c4_lm_234m_paper").mkdir()
    assert command.main(["run", "--config=c4_lm_234m_paper,c4_lm_paper", where]) == 0
    assert driven == ["c4_lm_234m_paper", "c4_lm_paper"]
    driven.clear()
    assert command.main(["run", "--config=digits_vit_quick,pydoc_lm_quick", where]) == 1
    assert driven == ["digits_vit_quick", "pydoc_lm_quick"]
    assert "study 2 of 2: pydoc_lm_quick" in capsys.readouterr().out
