"""Disks that fill, turn read-only, are somebody else's, or lack the data: named, then mended."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

from sweeps.launchers.protocol import WRONG_NODE
from sweeps.records import code_snapshot, layout, lease, status, submissions
from sweeps.study import study_directory
from tests.sweeps.chaos import equality
from tests.sweeps.conftest import begin_stage, fill_disk

NOBODY = 65534


@pytest.fixture
def on_disk(drivers, disk):
    """The drivers of a study that lies on the small disk."""
    return drivers.move_to(disk)


def test_full_disk_at_the_door(disk, make_study):
    fill_disk(disk, 0)
    with pytest.raises(ValueError, match="cannot be written: No space left on device"):
        study_directory.prepare(make_study(experiment_dir=disk))


@pytest.mark.slow
@pytest.mark.parametrize(
    "leave", [0, 2**16, 2**20], ids=["measurement and status", "checkpoint", "second checkpoint"]
)
def test_disk_fills_and_room_is_made(on_disk, disk, undisturbed, wait_until, leave):
    """Trials fail by name, the driver and its workers end well; the next run completes all."""
    first = on_disk.run(max_attempts=2)
    wait_until(lambda: (on_disk.trial(0) / layout.EVAL_MEASUREMENTS).exists())
    filler = fill_disk(disk, leave)
    output, _ = first.communicate(timeout=240)
    assert first.returncode in (1, 2), output
    assert "\nTraceback" not in output  # a log's last lines, indented, may have one
    assert "disk full: No space left on device for " in output
    assert "no trial of the stage" not in output
    assert on_disk.call("status", on_disk.study).returncode == 3
    filler.unlink()
    on_disk.finish(on_disk.run(max_attempts=2))
    assert equality.problems(on_disk.study, undisturbed) == []


@pytest.mark.slow
def test_disk_turns_read_only(on_disk, disk, undisturbed, wait_until):
    """As a file server that fails over: refused at the door, seen by status, then completed."""
    first = on_disk.run()
    wait_until(lambda: (on_disk.trial(0) / layout.EVAL_MEASUREMENTS).exists())
    first.terminate()
    on_disk.finish(first, 130)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    output = on_disk.finish(on_disk.run(), 2)
    assert f"{on_disk.study} cannot be written: Read-only file system" in output
    assert "\nTraceback" not in output  # a log's last lines, indented, may have one
    shown = on_disk.call("status", on_disk.study)
    assert shown.returncode == 3, shown.stderr
    assert "preempted at step" in shown.stdout
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    on_disk.finish(on_disk.run())
    assert equality.problems(on_disk.study, undisturbed) == []


@pytest.fixture
def open_folder():
    """A folder that everybody may look into; pytest closes its own."""
    with tempfile.TemporaryDirectory(prefix="attnperf-test-") as name:
        os.chmod(name, 0o755)
        yield pathlib.Path(name)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become an unprivileged user")
def test_study_of_somebody_else(drivers, undisturbed, open_folder):
    """An unprivileged user may look, and is told what he may not do."""
    drivers.move_to(open_folder)
    shutil.copytree(undisturbed, drivers.study)
    # The uid changes when Python runs: its own folder may be closed to others.
    code = (
        f"import os, sys, runpy; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY});"
        "sys.argv = ['sweeps', *sys.argv[1:]];"
        "from sweeps import __main__ as command; sys.exit(command.main(sys.argv[1:]))"
    )
    imports = "import sweeps.commands; sweeps.study.config.base();"
    for command, expected, text in (
        ("status", 0, "complete"),
        ("resume", 2, "cannot be written: Permission denied"),
        ("cancel", 2, "cannot be written: Permission denied"),
    ):
        if command == "cancel":  # which has nothing to do where every trial has ended
            shutil.rmtree(drivers.trial(0) / layout.ATTEMPTS)
            (drivers.trial(0) / layout.STATUS).unlink()
        done = subprocess.run(
            [sys.executable, "-c", imports + code, command, str(drivers.study)],
            capture_output=True,
            text=True,
            env=drivers.environment,
            cwd="/",
        )
        assert done.returncode == expected, done.stderr
        assert text in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("workload", "missing"), [("imagenet_vit", "/nowhere"), ("digits_vit", "/proc/nowhere")]
)
def test_node_without_the_data(tmp_path, environment, make_study, workload, missing):
    """Exit 76, the refusal with its host and reason on disk, the trial untouched."""
    made = make_study(workload=workload, data_dir=missing, steps=8)
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
    assert missing in refusal["reason"]
    assert lease.latest(made.directory / path) == 0
    assert status.read(made.directory / path)["state"] == "pending"


@pytest.mark.slow
def test_data_vanishes_while_a_study_runs(drivers, data_dir, undisturbed, tmp_path, wait_until):
    """New workers fail their trials by name; with the data back, the study completes."""
    own = tmp_path / "data"
    shutil.copytree(data_dir, own)
    first = drivers.run(data_dir=own)
    wait_until(lambda: (drivers.trial(0) / layout.EVAL_MEASUREMENTS).exists())
    gone = own.rename(tmp_path / "gone")
    pathlib.Path(own).write_text("not mounted")
    wait_until(lambda: drivers.worker(0) or drivers.worker(1))
    for point in (0, 1):
        if pid := drivers.worker(point):
            os.kill(pid, 9)
    output = drivers.finish(first, 1)
    assert "failed" in output
    assert str(own) in output
    assert "Traceback" not in output.split("failed:")[0]
    own.unlink()
    gone.rename(own)
    drivers.finish(drivers.run(data_dir=own))
    assert equality.problems(drivers.study, undisturbed) == []
