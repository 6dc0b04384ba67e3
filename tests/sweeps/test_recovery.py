"""Real jobs killed with SIGKILL and stopped with SIGTERM: nothing is lost, nothing differs."""

import csv

import pytest

from sweeps.launchers.protocol import AGAIN
from sweeps.records import attempts, layout, measurements, status
from tests.sweeps.chaos import equality
from tests.sweeps.conftest import begin_attempt


@pytest.fixture
def uninterrupted(made_once, make_trial, worker):
    """Returns (measurements of a trial never killed, the directory of its equal, not begun)."""

    def run(folder):
        assert worker(make_trial(name="whole", experiment_dir=folder)).end()[0] == "done"

    (written,) = made_once("uninterrupted", run).rglob(layout.EVAL_MEASUREMENTS)
    return equality.curves(written.parent), make_trial(name="killed")


@pytest.mark.slow
def test_sigterm_saves_first_and_the_next_job_goes_on_from_there(uninterrupted, worker):
    expected, directory = uninterrupted
    first = worker(directory)
    first.wait_for("eval")
    first.process.terminate()
    assert first.end()[0] == "preempted"
    assert first.process.returncode == AGAIN
    saved = status.read(directory)
    assert saved["state"] == "pending"
    assert saved["reason"].startswith("preempted at step")
    assert 4 <= saved["global_step"] < 12
    second = worker(directory)
    assert second.end()[0] == "done"
    assert second.start == saved["global_step"]
    assert equality.curves(directory) == expected
    assert attempts.count_failures(attempts.ends(directory)) == (0, 0)
    with (directory / layout.EVAL_MEASUREMENTS).open(newline="") as file:
        counts = [row["preemption_count"] for row in csv.DictReader(file)]
    assert counts == sorted(counts)
    assert counts[-1] == "1"


def test_truncated_last_line_is_no_measurement(tmp_path):
    row = {"kind": "train", "global_step": 0, "loss": 1.5, "grad_norm": 0.5}
    attempt = begin_attempt(tmp_path, [row, {**row, "global_step": 1}])
    path = attempt.directory / measurements.FILE
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        complete = whole[:cut].count(b"\n")
        assert len(measurements.curve(tmp_path)) == complete
    path.write_bytes(b"rubbish\n" + whole)
    assert measurements.curve(tmp_path) == []


def test_curve_is_cut_where_the_next_attempt_resumed(tmp_path):
    """Attempt 1 got to step 6 and was resumed at 4; attempt 2 counts from there."""
    for number, resumed, steps in ((1, 0, range(6)), (2, 4, range(4, 8))):
        rows = []
        for step in steps:
            rows.append({"kind": "train", "global_step": step, "loss": number + step / 10})
            if step % 2:
                rows.append({"kind": "eval", "global_step": step + 1, "test/loss": number})
        begin_attempt(tmp_path, rows, resumed).end("killed")
    (tmp_path / layout.ATTEMPTS / "3").mkdir()  # died before it knew where to resume
    measurements.publish(tmp_path)
    rows = equality.rows(tmp_path, layout.MEASUREMENTS)
    assert [row["loss"] for row in rows if row["loss"]] == [
        *("1.0", "1.1", "1.2", "1.3"),
        *("2.4", "2.5", "2.6", "2.7"),
    ]
    evals = equality.rows(tmp_path, layout.EVAL_MEASUREMENTS)
    assert [(row["global_step"], row["test/loss"]) for row in evals] == [
        ("2", "1"),
        ("4", "1"),
        ("6", "2"),
        ("8", "2"),
    ]
