"""The soak, reduced: four trials, six signals, the same claims; and that it would notice."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from sweeps.records import layout, lease
from tests.sweeps.chaos import equality


@pytest.mark.slow
def test_soak(tmp_path, data_dir, cache_dir, environment):
    """Killed, preempted and frozen: every trial done once, every number as undisturbed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.sweeps.chaos.soak"),
            *("--kills=6", "--trials=4", "--seed=1"),
            *(f"--data_dir={data_dir}", f"--directory={tmp_path / 'soak'}"),
        ],
        capture_output=True,
        text=True,
        env=environment(JAX_COMPILATION_CACHE_DIR=str(cache_dir)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    signals = int(re.search(r"storm: (\d+) signals", done.stdout)[1])
    assert signals >= 6
    assert "0 trials lost, 0 completed twice" in done.stdout


@pytest.fixture
def pair(tmp_path, stub_undisturbed):
    """A finished study and a copy of it."""
    shutil.copytree(stub_undisturbed, tmp_path / "copy")
    return tmp_path / "copy", stub_undisturbed


TRIAL = "grid/standard/digits_vit_jax/trial_1001"


def _replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_equal_studies_have_no_problems(pair):
    assert equality.problems(*pair) == []


def test_another_last_digit_is_noticed(pair):
    path = pair[0] / TRIAL / layout.MEASUREMENTS
    loss = equality.rows(pair[0] / TRIAL, layout.MEASUREMENTS)[5]["loss"]
    other = loss[:-1] + ("1" if loss[-1] != "1" else "2")
    _replace(path, loss, other)
    (problem,) = equality.problems(*pair)
    assert problem.startswith(f"{TRIAL}: {layout.MEASUREMENTS} differs: loss of step")
    assert other in problem
    assert loss in problem


def test_a_missing_and_a_double_row_are_noticed(pair):
    path = pair[0] / TRIAL / layout.EVAL_MEASUREMENTS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    assert "2 rows, not 3" in equality.problems(*pair)[0]
    path.write_text("".join([*lines, lines[-1]]))
    assert "2 evaluations of step 12" in equality.problems(*pair)[0]


def test_an_unfinished_a_lost_and_a_double_trial_are_noticed(pair):
    copy, other = pair
    status = copy / TRIAL / layout.STATUS
    _replace(status, '"done"', '"pending"')
    assert equality.problems(*pair) == [], "the attempt that completed it says so"
    outcome = copy / TRIAL / layout.ATTEMPTS / "1" / lease.OUTCOME
    said = outcome.read_text()
    outcome.unlink()
    assert f"{TRIAL}: is pending, not done" in equality.problems(*pair)
    outcome.write_text(said)
    _replace(status, '"pending"', '"done"')
    shutil.copytree(copy / TRIAL / layout.ATTEMPTS / "1", copy / TRIAL / layout.ATTEMPTS / "2")
    assert equality.problems(*pair) == [f"{TRIAL}: completed by 2 attempts"]
    shutil.rmtree(copy / TRIAL / layout.ATTEMPTS / "2")
    path = copy / "grid" / layout.TRIALS
    planned = json.loads(path.read_text())
    planned["trials"] = [row for row in planned["trials"] if row["path"] != TRIAL]
    path.write_text(json.dumps(planned))
    assert equality.problems(*pair) == [f"{TRIAL}: not planned"]
    assert equality.problems(other, copy) == [f"{TRIAL}: planned here alone"]
    assert lease.latest(copy / TRIAL) == 1
