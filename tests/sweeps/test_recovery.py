"""Real jobs killed with SIGKILL and stopped with SIGTERM: nothing is lost, nothing differs."""

import csv
import dataclasses
import os
import shutil
import time

import pytest

from sweeps.launchers.protocol import AGAIN, FINISHED
from sweeps.records import attempts, layout, lease, measurements, status
from sweeps.study import trial as trials
from tests.sweeps.chaos import equality
from tests.sweeps.conftest import begin_attempt, change_lease


@pytest.fixture
def uninterrupted(made_once, make_trial, worker):
    """Returns (measurements of a trial never killed, the directory of its equal, not begun)."""

    def run(folder):
        assert worker(make_trial(name="whole", experiment_dir=folder)).end()[0] == "done"

    (written,) = made_once("uninterrupted", run).rglob(layout.EVAL_MEASUREMENTS)
    return equality.curves(written.parent), make_trial(name="killed")


def _kill_when(job, moment):
    """Kills the job at a moment: so many rows of a kind, or seconds after its first update."""
    if isinstance(moment, tuple):
        job.wait_for(*moment)
    else:
        job.wait_for("train")
        time.sleep(moment)
    job.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments",
    [
        [("train", 1)],
        [("eval", 1), ("eval", 1)],
        [0.05, 0.2, 0.4],
    ],
    ids=["before the first checkpoint", "twice", "anywhere, three times"],
)
def test_killed_and_resumed_equals_never_killed(uninterrupted, worker, moments):
    expected, directory = uninterrupted
    for moment in moments:
        _kill_when(worker(directory), moment)
        if status.read(directory)["state"] == "done":
            break
        assert status.read(directory)["state"] == "pending"
    assert worker(directory).end()[0] in ("done", "already finished")
    assert equality.curves(directory) == expected
    assert len(expected[0]) == 3
    assert [row["global_step"] for row in expected[1] if row["loss"]] == [str(n) for n in range(12)]


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


@pytest.mark.slow
def test_a_trial_has_one_job_and_is_not_run_twice(make_trial, worker):
    directory = make_trial(steps=200, eval_every=4)
    worker(directory).wait_for("train")
    assert worker(directory).end()[0] == "claimed elsewhere"
    quick = make_trial(steps=4, name="short")
    assert worker(quick).end()[0] == "done"
    assert worker(quick).process.wait(60) == FINISHED
    assert lease.latest(quick) == 1


@pytest.mark.slow
def test_divergence_ends_the_trial_with_its_step(make_trial, worker):
    """A learning rate of 1e30 makes the second update's loss infinite or nan."""
    directory = make_trial()
    record = trials.read(directory)
    point = {**record.hyperparameters, "learning_rate": 1e30, "warmup_factor": 0.0}
    diverging = dataclasses.replace(record, hyperparameters=point)
    layout.write_json(directory / layout.TRIAL, diverging.to_json())
    assert worker(directory).end()[0] == "diverged"
    found = status.read(directory)
    assert found["state"] == "diverged"
    step = found["global_step"]
    assert found["reason"] == f"the loss of update {step} was not finite"
    losses = [float(row["loss"]) for row in equality.curves(directory)[1] if row["loss"]]
    assert [abs(loss) < float("inf") for loss in losses[: step + 1]] == [True] * step + [False]


@pytest.mark.slow
def test_checkpoint_of_another_model_is_refused_by_name(make_trial, worker):
    directory = make_trial(steps=4, name="small")
    worker(directory).end()
    other = make_trial(steps=4, name="other", tuning_variant="standard+qk_norm")
    shutil.copytree(directory / layout.CHECKPOINTS, other / layout.CHECKPOINTS)
    outcome, error = worker(other).end()
    assert outcome == "failed"
    assert "is of another model" in error
    assert "_ln']" in error
    assert status.read(other)["state"] == "failed"
    same_model = make_trial(index=1, steps=4, name="third")
    shutil.copytree(directory / layout.CHECKPOINTS, same_model / layout.CHECKPOINTS)
    assert "belongs to trial" in worker(same_model).end()[1]
    assert attempts.last_error(same_model)["retry"] is False


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


def test_leases(tmp_path):
    """A live process holds its lease; a dead one, an old foreign heartbeat and a release do not."""
    first = lease.claim(tmp_path)
    assert first.number == 1
    assert lease.claim(tmp_path) is None
    first.end("preempted")
    second = lease.claim(tmp_path)
    assert second.number == 2
    with pytest.raises(lease.LostError):
        first.beat()
    second.beat()
    change_lease(second, pid=2**22 - 1)
    third = lease.claim(tmp_path)
    assert third.number == 3
    change_lease(third, boot_id="another host")
    assert lease.claim(tmp_path) is None
    old = time.time() - 121
    os.utime(third.directory / lease.HEARTBEAT, (old, old))
    assert lease.claim(tmp_path).number == 4
    (tmp_path / layout.ATTEMPTS / "4" / lease.LEASE).write_text("")  # the host crashed
    assert lease.claim(tmp_path).number == 5
