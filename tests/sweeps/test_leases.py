"""Claims, heartbeats and atomic files, also where a file system fails or is full."""

import errno
import math
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from analysis import cli
from attention.common import files
from sweeps.job import trainer
from sweeps.launchers.protocol import WRONG_NODE
from sweeps.records import (
    attempts,
    clock,
    code_snapshot,
    disk,
    layout,
    lease,
    outages,
    status,
    submissions,
)
from sweeps.study import study_directory
from tests.sweeps.chaos import equality
from tests.sweeps.chaos.damage import damage
from tests.sweeps.conftest import begin_stage, change_lease, failing, fill_disk, resolve
from workloads.images import digits
from workloads.speech.corpora import spoken
from workloads.text.corpora import pydoc_text

# --- claims


# Of another host, whose clock is off by some seconds.
FOREIGN = {"boot_id": "of another host"}


@pytest.mark.parametrize(
    ("changes", "ahead_s", "here", "is_alive", "has_process"),
    [
        ({}, 0, {}, True, True),
        ({}, -121, {}, False, True),  # it hangs
        ({"pid": 2**22 - 1}, 0, {}, False, False),
        ({"pid": os.getpid(), "pid_start": "a later process"}, 0, {}, False, False),
        (None, 0, {}, False, False),  # the file was emptied by a crash of the host
        # Clocks that differ by less than the lease, 120 s, end none; nobody waits for a day.
        (FOREIGN, -86400, {}, False, False),
        (FOREIGN, -121, {}, False, False),
        (FOREIGN, -100, {}, True, False),
        (FOREIGN, 100, {}, True, False),
        (FOREIGN, 121, {}, False, False),
        (FOREIGN, 86400, {}, False, False),
        (FOREIGN, -math.inf, {}, False, False),
        # A lease says how long it is: a host with a shorter setting does not take the trial.
        (FOREIGN | {"expires_after_s": 600.0}, -300, {}, True, False),
        # Sandboxed containers lack /proc/sys/kernel/random/boot_id: the heartbeat alone counts.
        ({"boot_id": None, "pid": 2**22 + 1}, 0, {"boot_id": None}, True, False),
        # A signal to process -1 would reach every process of the user.
        *(({"pid": pid, "pid_start": None}, 0, {}, True, False) for pid in (-1, 0, "1", None, [1])),
    ],
)
def test_who_has_a_trial(tmp_path, monkeypatch, changes, ahead_s, here, is_alive, has_process):
    attempt = lease.claim(tmp_path)
    if changes is None:
        (attempt.directory / lease.LEASE).write_text("")
    else:
        change_lease(attempt, **changes)
    at = max(0.0, time.time() + ahead_s)
    os.utime(attempt.directory / lease.HEARTBEAT, (at, at))
    identity = lease.identity() | here
    monkeypatch.setattr(lease, "identity", lambda: identity)
    assert lease.is_alive(attempt.directory) is is_alive
    assert lease.process_here(attempt.directory) == (os.getpid() if has_process else None)
    assert (lease.claim(tmp_path) is None) is is_alive


@pytest.mark.parametrize("step_s", [-86400, 86400])
@pytest.mark.parametrize("alive", [True, False])
def test_a_clock_that_is_set_takes_no_trial_from_a_live_job(tmp_path, monkeypatch, step_s, alive):
    """Whoever would take it waits for one heartbeat first."""
    first = lease.claim(tmp_path)
    change_lease(first, boot_id="another host")
    served = time.time() + step_s
    monkeypatch.setattr(clock.clock, "server_time", lambda folder: served)
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if alive:
            os.utime(first.directory / lease.HEARTBEAT, (served, served))

    monkeypatch.setattr(clock.clock, "sleep", sleep)
    lease.await_heartbeat(tmp_path)
    assert waits == [lease.HEARTBEAT_EVERY_S]
    assert (lease.claim(tmp_path) is None) is alive


@pytest.mark.parametrize(
    ("happens", "number", "claimed"),
    [
        *(("nothing", number, None) for number in (errno.EIO, errno.EACCES, errno.ENOSPC)),
        ("another job is faster", 0, None),
        # An NFS client asks again for the rename that its server has done, and hears that.
        *(("renamed", number, 1) for number in (errno.ENOENT, errno.EEXIST, errno.EIO)),
    ],
)
def test_a_claim_whose_rename_fails(tmp_path, monkeypatch, happens, number, claimed):
    """It fails, unless it was done all the same, or lost to another job."""
    real = os.rename

    def rename(source, target):
        if happens == "another job is faster":
            target.mkdir()
            (target / lease.LEASE).write_text("{}")
        if happens != "nothing":
            real(source, target)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "rename", rename)
    if happens == "nothing":
        with pytest.raises(OSError, match=os.strerror(number)):
            lease.claim(tmp_path)
    else:
        attempt = lease.claim(tmp_path)
        assert (attempt and attempt.number) == claimed
    assert os.listdir(tmp_path / layout.ATTEMPTS) == ["1"] * (happens != "nothing")


def test_a_claim_that_fails_for_good_is_counted(make_trial, data_dir, monkeypatch):
    """The job asks again while the error may pass, and goes on with its other trials then."""
    directory, pauses = make_trial(), []
    monkeypatch.setattr(clock.clock, "sleep", pauses.append)
    met = failing(monkeypatch, "rename", errno.ESTALE, lambda path: "attempts" in path)
    one = trainer.Trainer()
    end = one.run(directory, data_dir)
    assert end.outcome == trainer.UNCLAIMED
    assert "Stale file handle" in end.error
    assert not one.broken
    assert pauses == list(outages.PAUSES_S)
    assert len(met) == len(pauses) + 1


# --- heartbeats


def test_the_heartbeat_outlives_a_file_server_that_fails(tmp_path, monkeypatch, capsys, wait_until):
    """ESTALE of the lease, its listing, and the mark of a cancelled study, which stat raises."""
    monkeypatch.setattr(lease, "HEARTBEAT_EVERY_S", 0.01)
    trial = tmp_path / "study/stage/variant/workload_jax/trial_1"
    member, stopped = lease.claim(trial), threading.Event()
    away = []
    met = [
        failing(monkeypatch, name, errno.ESTALE, lambda path: away and str(tmp_path) in path)
        for name in ("stat", "listdir", "utime")
    ]
    beat_before = os.stat(member.directory / lease.HEARTBEAT).st_mtime_ns
    with trainer.heartbeat(member, stopped.set):
        away.append(True)
        wait_until(lambda: len(met[0]) > 5 and len(met[1]) > 5)
        away.clear()
        wait_until(
            lambda: os.stat(member.directory / lease.HEARTBEAT).st_mtime_ns > beat_before + 10**7
        )
        layout.write_json(tmp_path / "study" / submissions.CANCELLED, {})
        assert stopped.wait(10)
    said = [line for line in capsys.readouterr().out.splitlines() if "Stale" in line]
    assert 1 <= len(said) <= 3  # not at every beat


_HANGS = """
import os, pathlib, sys, time
from sweeps.job import trainer
from sweeps.records import attempts, lease, output
attempt = lease.claim(pathlib.Path(sys.argv[1]))
with output.redirected(attempt.directory / attempts.LOG), trainer.watchdog():
    for _ in range(4):
        trainer.expect_progress()
        time.sleep(0.2)
    print("hangs", flush=True)
    time.sleep(1000)
"""


def test_a_trial_that_hangs_ends_its_process(tmp_path):
    """It may be tried again at once; its log says where each thread was."""
    done = subprocess.run(
        [sys.executable, "-c", _HANGS, tmp_path],
        env={**os.environ, "ATTNPERF_HANG_S": "0.5"},
        cwd=pathlib.Path(__file__).resolve().parents[2],
        timeout=60,
    )
    assert done.returncode == 1
    log = (tmp_path / "attempts/1/log.txt").read_text()
    assert log.startswith("hangs")
    assert "Timeout" in log
    assert lease.claim(tmp_path).number == 2


# --- files


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (OSError(errno.ENOSPC, "x"), True),
        (OSError(errno.EDQUOT, "x"), True),
        (ValueError("RESOURCE_EXHAUSTED: Failed to write [os_error_code='28']"), True),
        (ValueError("RESOURCE_EXHAUSTED: out of device memory"), False),
        (OSError(errno.EIO, "x"), False),
        (None, False),
    ],
)
def test_what_says_that_a_disk_is_full(problem, expected):
    assert disk.is_full(problem) == expected
    wrapped = RuntimeError("saving failed")
    wrapped.__cause__ = problem
    assert disk.is_full(wrapped) == expected


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_have_the_permissions_of_any_other(tmp_path, mask, mode):
    """A group that shares a study reads its files; a private umask is kept."""
    before = os.umask(mask)
    try:
        layout.write_json(tmp_path / "x.json", {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.json").stat().st_mode) == mode


def test_a_file_and_its_name_are_on_disk(tmp_path, monkeypatch):
    synced, real = [], os.fsync

    def fsync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    layout.write_atomically(tmp_path / "x", "text")
    written, folder = synced
    assert written.startswith(f"{tmp_path}/.x.")
    assert written.endswith(files.SUFFIX)
    assert folder == str(tmp_path)
    assert os.listdir(tmp_path) == ["x"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "x").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        layout.write_atomically(tmp_path / "x", "half \udcff")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"x": "old"}


def test_what_killed_writers_left_is_removed(tmp_path):
    """After an hour by the file server's clock, and nothing else."""
    now = time.time()
    old, young, own = (tmp_path / n for n in (".a.1.tmp", ".b.2.tmp", "kept.tmp"))
    draft = tmp_path / ".draft.tmp"
    draft.mkdir()
    for path in (old, young, own, draft / lease.LEASE):
        path.touch()
    for path in (old, own, draft):
        os.utime(path, (now - 4000, now - 4000))
    layout.remove_left_overs(tmp_path, now)
    assert sorted(path.name for path in tmp_path.iterdir()) == [young.name, own.name]


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
    outcome, reason = trainer.conclude(attempt, problem)
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
