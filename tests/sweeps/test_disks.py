"""Studies that are disturbed: killed, on a full disk or somebody else's, without data, damaged."""

import errno
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from analysis import cli
from sweeps.job import trial_lock
from sweeps.launchers.protocol import WRONG_NODE
from sweeps.records import (
    attempts,
    code_snapshot,
    layout,
    lease,
    status,
    submissions,
)
from sweeps.study import study_directory
from tests.sweeps.chaos import equality
from tests.sweeps.chaos.damage import damage
from tests.sweeps.conftest import begin_stage, fill_disk, resolve
from workloads.images import digits
from workloads.speech.corpora import spoken
from workloads.text.corpora import pydoc_text

NOBODY = 65534
TRIAL = "grid/standard/digits_vit_jax/trial_1"


def test_full_disk_at_the_door(disk, make_study):
    fill_disk(disk, 0)
    with pytest.raises(ValueError, match="cannot be written: No space left on device"):
        study_directory.prepare(make_study(experiment_dir=disk))


@pytest.mark.parametrize(
    ("problem", "retry"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (ValueError("no such column"), False),
        (RuntimeError("boom"), True),
    ],
)
def test_bad_input_and_a_full_disk_are_as_bad_the_second_time(make_trial, problem, retry):
    attempt = lease.claim(make_trial())
    outcome, reason = trial_lock.conclude(attempt, problem)
    assert outcome == "failed"
    record = layout.read_json(attempt.directory / lease.OUTCOME)
    assert (record["error"], record["retry"]) == (reason, retry)
    assert record["is_disk_full"] is isinstance(problem, OSError)


@pytest.mark.slow
@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(0, id="measurement and status", marks=pytest.mark.nightly),
        pytest.param(2**16, id="checkpoint"),
        pytest.param(2**20, id="second checkpoint", marks=pytest.mark.nightly),
    ],
)
def test_disk_fills_and_room_is_made(drivers, disk, undisturbed, wait_until, leave):
    """Trials fail by name, the driver and its workers end well; the next run completes all."""
    drivers.study = disk / drivers.NAME
    first = drivers.run(experiment_dir=disk, max_attempts=2)
    wait_until((drivers.trial(0) / layout.EVAL_MEASUREMENTS).exists)
    filler = fill_disk(disk, leave)
    output, _ = first.communicate(timeout=240)
    assert first.returncode in (1, 2), output
    assert "\nTraceback" not in output  # a log's last lines, indented, may have one
    assert "disk full: " in output
    filler.unlink()
    drivers.finish(drivers.run(experiment_dir=disk, max_attempts=2))
    assert equality.problems(drivers.study, undisturbed) == []


@pytest.fixture
def open_folder():
    """A folder that everybody may look into; pytest closes its own."""
    with tempfile.TemporaryDirectory(prefix="attnperf-test-") as name:
        os.chmod(name, 0o755)
        yield pathlib.Path(name)


@pytest.mark.nightly
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become an unprivileged user")
def test_study_of_somebody_else(undisturbed, environment, open_folder):
    """An unprivileged user may look, and is told what he may not do."""
    folder = shutil.copytree(undisturbed, open_folder / undisturbed.name)
    # The uid changes when Python runs: its own folder may be closed to others.
    code = (
        "import sys, os, sweeps.commands; from sweeps import __main__ as command;"
        f"sweeps.study.config.base(); os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY});"
        "sys.exit(command.main(sys.argv[1:]))"
    )
    for name, expected, text in (("status", 0, "complete"), ("resume", 2, "Permission denied")):
        done = subprocess.run(
            [sys.executable, "-c", code, name, str(folder)],
            capture_output=True,
            text=True,
            env=environment(),
            cwd="/",
        )
        assert done.returncode == expected, done.stderr
        assert text in done.stdout + done.stderr


def test_node_without_the_data(tmp_path, environment, make_study):
    """Exit 76, the refusal with its host and reason on disk, the trial untouched."""
    made = make_study(workload="imagenet_vit", data_dir="/nowhere", steps=8)
    path = begin_stage(made)[0].path
    code = code_snapshot.environment(code_snapshot.take(made.directory))
    batch = submissions.new(made.directory, "slurm", [(path,)], code)
    done = subprocess.run(
        batch.command(0),
        env=environment(**batch.environment),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == WRONG_NODE, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    refusal = batch.refusal(0)
    assert refusal["host"] == os.uname().nodename
    assert "/nowhere" in refusal["reason"]
    assert lease.latest(made.directory / path) == 0
    assert status.read(made.directory / path)["state"] == "pending"


@pytest.fixture
def finished(drivers, undisturbed):
    """A study that is done, to damage: a copy."""
    shutil.copytree(undisturbed, drivers.study)
    return drivers


@pytest.mark.slow
def test_run_repairs_what_can_be_told_from_other_files(finished, undisturbed):
    """Status, lease, list of trials, CSVs: checkpoints, config and attempts speak for them."""
    damage(finished.study / "grid" / layout.TRIALS, "garbled")
    for trial, kind in ((finished.trial(0), "cut"), (finished.trial(1), "garbled")):
        for name in (layout.STATUS, layout.EVAL_MEASUREMENTS, layout.MEASUREMENTS):
            damage(trial / name, kind)
        damage(trial / layout.ATTEMPTS / "1" / lease.LEASE, kind)
        (trial / layout.ATTEMPTS / "1" / lease.OUTCOME).unlink()
    assert "4 done" in finished.finish(finished.run())
    assert [lease.latest(finished.trial(point)) for point in range(4)] == [2, 2, 1, 1]
    assert equality.problems(finished.study, undisturbed) == []


def test_a_damaged_trial_is_named_and_not_guessed(make_study):
    made = make_study()
    path = made.directory / begin_stage(made)[0].path / layout.TRIAL
    damage(path, "cut")
    with pytest.raises(ValueError, match=str(path)):
        study_directory.plan(made, "tune")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"outcome": "do', "\0\0"])
def test_outcome_that_is_none_counts_as_killed(tmp_path, content):
    """How an attempt ended is not known then; that it ended is."""
    first = lease.claim(tmp_path)
    (first.directory / lease.OUTCOME).write_text(content)
    assert attempts.count_failures(attempts.ends(tmp_path)) == (0, 1)
    assert attempts.last_error(tmp_path)["outcome"] == "killed"
    assert lease.claim(tmp_path).number == 2


DATA = {
    "digits_vit": digits.DIGITS.prepare,
    "spoken_digits_conformer": spoken.DIGITS.prepare,
    "pydoc_lm": pydoc_text.PYDOC.prepare,
}
SETTINGS = {
    "protocol": "grid",
    "variants": "laser",
    "baseline": "laser",
    "points": 1,
    "seeds": 1,
    "batch_size": 8,
    "steps": 12,
    "eval_every": 4,
    "log_every": 1,
    "local.workers": 1,
}


@pytest.mark.parametrize(
    "workload",
    [
        "digits_vit",  # the default suite's kill and resume with real training
        pytest.param("spoken_digits_conformer", marks=pytest.mark.nightly),
        pytest.param("pydoc_lm", marks=pytest.mark.nightly),
    ],
)
def test_killed_once_and_resumed(
    workload, made_once, tmp_path, environment, cache_dir, worker, wait_until, capsys
):
    """By the real commands; the curves are those of a job that nothing disturbed."""
    settings = {**SETTINGS, "data_dir": made_once(workload, DATA[workload])}
    whole = resolve(f"{workload}_quick", experiment_dir=tmp_path / "whole", **settings)
    (trial,) = begin_stage(whole, "grid")
    assert worker(whole.directory / trial.path).end()[0] == "done"
    killed = resolve(f"{workload}_quick", experiment_dir=tmp_path / "killed", **settings)
    study_directory.prepare(killed)
    log = tmp_path / "log"

    def resume():
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "sweeps", "resume", str(killed.directory)],
                stdout=output,
                stderr=output,
                env=environment(JAX_COMPILATION_CACHE_DIR=str(cache_dir)),
                cwd=tmp_path,
            )

    driver, directory = resume(), killed.directory / trial.path
    wait_until((directory / layout.EVAL_MEASUREMENTS).exists)
    job = layout.read_json(directory / layout.ATTEMPTS / "1" / lease.LEASE)["pid"]
    for process in (driver.pid, job):
        os.kill(process, signal.SIGKILL)
    driver.wait()
    assert resume().wait(300) == 0, log.read_text()
    assert lease.latest(directory) == 2
    assert equality.problems(killed.directory, whole.directory) == []
    assert cli.main(["table", str(tmp_path / "killed")]) == 0
    assert "LASER" in capsys.readouterr().out
