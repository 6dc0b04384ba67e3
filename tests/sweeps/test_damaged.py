"""Files of a study cut short or corrupted: named by every command, never a bare traceback."""

import os
import shutil
import subprocess
import sys

import pytest

from analysis import cli
from sweeps import __main__ as sweeps
from sweeps.records import attempts, layout, lease, measurements
from sweeps.study import trial
from sweeps.training import checkpoints
from tests.sweeps.chaos import equality

pytestmark = pytest.mark.slow

TRIAL = "grid/standard/digits_vit_jax/trial_1"
ATTEMPT = f"{TRIAL}/{layout.ATTEMPTS}/1"


@pytest.fixture
def finished(drivers, undisturbed):
    """A study that is done, to damage: a copy."""
    shutil.copytree(undisturbed, drivers.study)
    return drivers


def _cut(path):
    """Cuts a file's last bytes off, as a crash of the host can."""
    path.write_bytes(path.read_bytes()[:-7])


def _garble(path):
    """Writes bytes that are no text into a file."""
    path.write_bytes(path.read_bytes()[:-7] + b"\xff\xfe\x00\x00\xff\n")


DAMAGES = {"cut": _cut, "garbled": _garble}


def _call(main, arguments, capsys):
    """Returns a command's exit code and everything that it printed."""
    code = main([*map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("name", "status_code", "table_code"),
    [
        (layout.STUDY, 2, 2),
        (f"grid/{layout.TRIALS}", 0, 0),
        (f"{TRIAL}/{layout.TRIAL}", 0, 0),
        (f"{TRIAL}/{layout.STATUS}", 0, 0),
        (f"{TRIAL}/{layout.EVAL_MEASUREMENTS}", 0, 0),
        (f"{TRIAL}/{layout.MEASUREMENTS}", 0, 0),
    ],
)
def test_status_and_table_name_what_is_damaged(
    finished, capsys, damage, name, status_code, table_code
):
    """Without a word only where a command does not read the file."""
    DAMAGES[damage](finished.study / name)
    code, shown = _call(sweeps.main, ["status", finished.study], capsys)
    assert code == status_code, shown
    reads = name in (layout.STUDY, f"grid/{layout.TRIALS}", f"{TRIAL}/{layout.STATUS}")
    assert (str(finished.study / name) in shown) == reads, shown
    code, shown = _call(cli.main, ["table", finished.study], capsys)
    assert code == table_code, shown
    file = name.rsplit("/", 1)[-1]
    named = file in shown or "outside this table: `runs` lists them by name" in shown
    assert named or file == layout.MEASUREMENTS  # which is not read for a table
    _, listed = _call(cli.main, ["runs", finished.study], capsys)
    assert file in listed
    assert "trial_1/" in listed or TRIAL not in name
    assert "Traceback" not in shown + listed


@pytest.mark.parametrize("damage", DAMAGES)
def test_run_repairs_what_can_be_told_from_other_files(finished, undisturbed, damage):
    """Status, lease, list of trials: the trial's checkpoints and the config speak for them."""
    for name in (f"{TRIAL}/{layout.STATUS}", f"grid/{layout.TRIALS}", f"{ATTEMPT}/{lease.LEASE}"):
        DAMAGES[damage](finished.study / name)
    (finished.study / ATTEMPT / lease.OUTCOME).unlink()
    code, output = finished.finish(finished.run())
    assert code == 0, output
    assert "4 done" in output
    assert lease.latest(finished.trial(0)) == 2
    assert equality.problems(finished.study, undisturbed) == []


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [layout.STUDY, f"{TRIAL}/{layout.TRIAL}"])
def test_run_refuses_what_it_must_not_guess(finished, damage, name):
    """Identity of the study and of a trial: the file is named, and nothing begins."""
    DAMAGES[damage](finished.study / name)
    for command in ("run", "resume"):
        code, output = finished.finish(finished.run(command=command))
        assert code == 2, output
        assert f"{finished.study / name}: " in output
        assert "Traceback" not in output


@pytest.mark.parametrize("content", ["{}", "[]", '{"pid": 1}'])
def test_lease_that_is_none_holds_nothing(tmp_path, content):
    first = lease.claim(tmp_path)
    (first.directory / lease.LEASE).write_text(content)
    assert not lease.is_alive(first.directory)
    assert lease.claim(tmp_path).number == 2


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"outcome": "do', "\0\0"])
def test_outcome_that_is_none_counts_as_killed(tmp_path, content):
    """How an attempt ended is not known then; that it ended is."""
    first = lease.claim(tmp_path)
    (first.directory / lease.OUTCOME).write_text(content)
    assert attempts.count_failures(attempts.ends(tmp_path)) == (0, 1)
    assert attempts.last_error(tmp_path)["outcome"] == "killed"
    assert lease.claim(tmp_path).number == 2


def _damage_measurements(path, damage):
    lines = path.read_bytes().splitlines(keepends=True)
    if damage == "replaced":  # the last line: the evaluation after 12 updates
        path.write_bytes(b"".join([*lines[:-1], b"}{\n"]))
    elif damage == "removed":
        path.unlink()
    else:
        DAMAGES[damage](path)
    return len(lines)


@pytest.mark.parametrize(
    ("damage", "missing", "named"),
    [
        ("cut", "evaluation after 12 updates", False),
        ("garbled", "evaluation after 12 updates", True),
        ("replaced", "evaluation after 12 updates", True),
        ("removed", "loss of update 0", False),
    ],
)
def test_checkpoint_without_its_rows_does_not_count(finished, damage, missing, named):
    """It is removed, and the damaged line named, before a worker resumes from it."""
    directory = finished.trial(0)
    assert checkpoints.drop_unverified_checkpoints(trial.read(directory), directory) == []
    path = directory / layout.ATTEMPTS / "1" / measurements.FILE
    line = _damage_measurements(path, damage)
    told = checkpoints.drop_unverified_checkpoints(trial.read(directory), directory)
    assert f"checkpoint 12 is removed: no {missing} is on disk; it is computed again" in told
    assert any(text.startswith(f"{path}, line {line}: ") for text in told) == named
    assert os.listdir(directory / layout.CHECKPOINTS) == []


def test_checkpoint_of_a_frozen_worker_does_not_count(finished):
    """It was put down after attempt 2 had resumed at 4: the rows from 4 on are nobody's."""
    directory = finished.trial(0)
    second = directory / layout.ATTEMPTS / "2"
    second.mkdir()
    layout.write_json(second / measurements.RESUMED, {"global_step": 4})
    (told,) = checkpoints.drop_unverified_checkpoints(trial.read(directory), directory)
    assert told.startswith("checkpoint 12 is removed: no loss of update 4 is on disk")


def test_checkpoint_of_another_trial_is_left_to_be_refused(finished):
    directory, other = finished.trial(0), finished.trial(1)
    (directory / layout.ATTEMPTS / "1" / measurements.FILE).unlink()
    shutil.rmtree(directory / layout.CHECKPOINTS)
    shutil.copytree(other / layout.CHECKPOINTS, directory / layout.CHECKPOINTS)
    assert checkpoints.drop_unverified_checkpoints(trial.read(directory), directory) == []
    assert os.listdir(directory / layout.CHECKPOINTS) == ["12"]


def test_damaged_measurements_are_computed_again(finished, undisturbed, worker, one_core, data_dir):
    directory = finished.trial(0)
    path = directory / layout.ATTEMPTS / "1" / measurements.FILE
    line = _damage_measurements(path, "replaced")
    (directory / layout.STATUS).unlink()
    one = worker(one_core)
    one.run(directory, data_dir)
    assert one.wait_for("end")["outcome"] == "done"
    log = (directory / layout.ATTEMPTS / "2" / attempts.LOG).read_text()
    assert f"{path}, line {line}: not a measurement" in log
    assert "checkpoint 12 is removed" in log
    assert equality.problems(finished.study, undisturbed) == [f"{TRIAL}: completed by 2 attempts"]


def test_damage_is_no_traceback_for_cancel(finished):
    _cut(finished.study / layout.STUDY)
    done = subprocess.run(
        [sys.executable, "-m", "sweeps", "cancel", str(finished.study)],
        capture_output=True,
        text=True,
        env=finished.environment,
        cwd=finished.folder,
    )
    assert done.returncode == 2
    assert str(finished.study / layout.STUDY) in done.stderr
    assert "Traceback" not in done.stderr
