"""Real jobs killed with SIGKILL and stopped with SIGTERM: nothing is lost, nothing differs."""

import csv
import json
import os
import shutil
import time

import pytest

from sweeps.launchers.protocol import AGAIN, FINISHED
from sweeps.records import attempts, layout, lease, measurements, status
from tests.sweeps.chaos import equality


@pytest.fixture
def uninterrupted(made_once, make_trial, worker, data_dir):
    """Returns (measurements of a trial never killed, a function that makes its equal anew)."""

    def run(folder):
        one = worker()
        one.run(make_trial(name="whole", experiment_dir=folder), data_dir)
        assert one.end()[0] == "done"

    (written,) = made_once("uninterrupted", run).rglob(layout.EVAL_MEASUREMENTS)
    return equality.curves(written.parent), lambda: make_trial(name="killed")


def _kill_when(one, moment):
    """Kills the job at a moment: so many rows of a kind, or seconds after its first update."""
    if isinstance(moment, tuple):
        one.wait_for(*moment)
    else:
        one.wait_for("train")
        time.sleep(moment)
    one.kill()


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
def test_killed_and_resumed_equals_never_killed(uninterrupted, worker, data_dir, moments):
    expected, make = uninterrupted
    directory = make()
    for moment in moments:
        one = worker()
        one.run(directory, data_dir)
        _kill_when(one, moment)
        if status.read(directory)["state"] == "done":
            break
        assert status.read(directory)["state"] == "pending"
    last = worker()
    last.run(directory, data_dir)
    assert last.end()[0] in ("done", "already finished")
    assert equality.curves(directory) == expected
    assert len(expected[0]) == 3
    assert [row["global_step"] for row in expected[1] if row["loss"]] == [str(n) for n in range(12)]


@pytest.mark.slow
def test_sigterm_saves_first_and_the_next_worker_goes_on_from_there(
    uninterrupted, worker, data_dir
):
    expected, make = uninterrupted
    directory = make()
    one = worker()
    one.run(directory, data_dir)
    one.wait_for("eval")
    one.process.terminate()
    assert one.end()[0] == "preempted"
    assert one.process.returncode == AGAIN
    found = status.read(directory)
    assert found["state"] == "pending"
    assert found["reason"].startswith("preempted at step")
    saved = found["global_step"]
    assert 4 <= saved < 12
    other = worker()
    other.run(directory, data_dir)
    assert other.end()[0] == "done"
    assert other.start == saved
    assert equality.curves(directory) == expected
    assert attempts.count_failures(attempts.ends(directory)) == (0, 0)
    with (directory / layout.EVAL_MEASUREMENTS).open(newline="") as file:
        counts = [row["preemption_count"] for row in csv.DictReader(file)]
    assert counts == sorted(counts)
    assert counts[-1] == "1"


@pytest.mark.slow
def test_a_trial_has_one_worker_and_is_not_run_twice(make_trial, worker, data_dir):
    directory = make_trial(steps=200, eval_every=4)
    first, second = worker(), worker()
    first.run(directory, data_dir)
    first.wait_for("train")
    second.run(directory, data_dir)
    assert second.end()[0] == "claimed elsewhere"
    first.kill()
    quick = make_trial(steps=4, name="short")
    second.run(quick, data_dir)
    assert second.end()[0] == "done"
    second.run(quick, data_dir)
    assert second.process.wait(60) == FINISHED
    assert lease.latest(quick) == 1


@pytest.mark.slow
def test_divergence_ends_the_trial_with_its_step(make_trial, worker, data_dir):
    """A learning rate of 1e30 makes the second update's loss infinite or nan."""
    directory = make_trial()
    record = layout.read_json(directory / layout.TRIAL)
    record["hyperparameters"] |= {"learning_rate": 1e30, "warmup_factor": 0.0}
    _rewrite(directory, record)
    one = worker()
    one.run(directory, data_dir)
    assert one.end()[0] == "diverged"
    found = status.read(directory)
    assert found["state"] == "diverged"
    step = found["global_step"]
    assert found["reason"] == f"the loss of update {step} was not finite"
    losses = [float(row["loss"]) for row in equality.curves(directory)[1] if row["loss"]]
    assert [abs(loss) < float("inf") for loss in losses[: step + 1]] == [True] * step + [False]


def _rewrite(directory, record):
    """Writes a changed trial as a trial of its own."""
    from sweeps.study import trial

    fields = {k: v for k, v in record.items() if k in trial.Trial.__dataclass_fields__}
    layout.write_json(directory / layout.TRIAL, trial.Trial(**fields).to_json())


@pytest.mark.slow
def test_checkpoint_of_another_model_is_refused_by_name(make_trial, worker, data_dir):
    directory = make_trial(steps=4, name="small")
    one = worker()
    one.run(directory, data_dir)
    one.end()
    other = make_trial(steps=4, name="other", tuning_variant="standard+qk_norm")
    shutil.copytree(directory / layout.CHECKPOINTS, other / layout.CHECKPOINTS)
    one.run(other, data_dir)
    outcome, error = one.end()
    assert outcome == "failed"
    assert "is of another model" in error
    assert "_ln']" in error
    assert status.read(other)["state"] == "failed"
    same_model = make_trial(index=1, steps=4, name="third")
    shutil.copytree(directory / layout.CHECKPOINTS, same_model / layout.CHECKPOINTS)
    one.run(same_model, data_dir)
    assert "belongs to trial" in one.end()[1]
    assert attempts.last_error(same_model)["retry"] is False


def test_truncated_last_line_is_no_measurement(tmp_path):
    attempt = tmp_path / layout.ATTEMPTS / "1"
    attempt.mkdir(parents=True)
    layout.write_json(attempt / measurements.RESUMED, {"global_step": 0})
    writer = measurements.Writer(attempt)
    row = {"kind": "train", "global_step": 0, "loss": 1.5, "grad_norm": 0.5}
    writer.append([row, {**row, "global_step": 1}])
    writer.close()
    path = attempt / measurements.FILE
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
        attempt = tmp_path / layout.ATTEMPTS / str(number)
        attempt.mkdir(parents=True)
        layout.write_json(attempt / measurements.RESUMED, {"global_step": resumed})
        writer = measurements.Writer(attempt)
        for step in steps:
            train = {"kind": "train", "global_step": step, "loss": number + step / 10}
            evaluation = {"kind": "eval", "global_step": step + 1, "test/loss": number}
            writer.append([train, evaluation] if step % 2 else [train])
        writer.close()
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
    path = second.directory / lease.LEASE
    record = json.loads(path.read_text())
    layout.write_json(path, {**record, "pid": 2**22 - 1})
    assert lease.claim(tmp_path).number == 3
    third = tmp_path / layout.ATTEMPTS / "3"
    record = json.loads((third / lease.LEASE).read_text())
    layout.write_json(third / lease.LEASE, {**record, "boot_id": "another host"})
    assert lease.claim(tmp_path) is None
    old = time.time() - 121
    os.utime(third / lease.HEARTBEAT, (old, old))
    assert lease.claim(tmp_path).number == 4
    (tmp_path / layout.ATTEMPTS / "4" / lease.LEASE).write_text("")  # the host crashed
    assert lease.claim(tmp_path).number == 5


def test_two_claims_at_once_have_one_winner(tmp_path):
    import concurrent.futures

    for round_number in range(20):
        folder = tmp_path / str(round_number)
        folder.mkdir()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            won = [c for c in pool.map(lease.claim, [folder] * 8) if c]
        assert [claim.number for claim in won] == [1]
        assert os.listdir(folder / layout.ATTEMPTS) == ["1"]
