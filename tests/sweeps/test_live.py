"""Live figures: rows reach measurements.csv while a trial trains, one update late; early ends."""

import csv
import itertools
import json
import socket
import time
import types

import jax
import jax.numpy as jnp
import pytest

from sweeps.records import layout, lease, measurements, status
from sweeps.study import trial as trials
from sweeps.training import live, loop, train_step
from workloads import catalog

ROW = {
    **{"kind": "train", "loss": 0.5, "grad_norm": 1.0},
    **{"step_seconds": 0.1, "images_per_second": 7.0},
}


def _row(step, **changes):
    return {**ROW, "global_step": step, **changes}


def _attempt(directory, resumed):
    attempt = lease.claim(directory)
    layout.write_json(attempt.directory / measurements.RESUMED, {"global_step": resumed})
    return attempt


def _put(writer, published, *rows):
    writer.append([*rows])
    published.append([*rows])


def _written_anew(directory):
    """Returns measurements.csv as publishing it gives."""
    measurements.publish(directory)
    return (directory / layout.MEASUREMENTS).read_bytes()


def test_what_is_appended_is_what_publishing_writes(tmp_path):
    attempt = _attempt(tmp_path, 0)
    writer, published = measurements.Writer(attempt.directory), measurements.LiveCsv(attempt)
    file = tmp_path / layout.MEASUREMENTS
    writer.append([{"kind": "eval", "global_step": 0, "validation/loss": 3.0}])
    before = None
    for step in range(4):
        _put(writer, published, _row(step, loss=float("nan") if step == 3 else 0.5))
        if step > 1:  # the file is added to, not replaced
            assert file.stat().st_ino == before
        before = file.stat().st_ino
    appended = file.read_bytes()
    assert appended == _written_anew(tmp_path)
    assert [row["loss"] for row in csv.DictReader(appended.decode().splitlines())] == [
        *("", "0.5", "0.5", "0.5", "nan")
    ]
    _put(writer, published, _row(4, model_flop_utilisation=None))  # a new column, without a value
    assert file.read_bytes() == _written_anew(tmp_path)
    assert b",model_flop_utilisation," in file.read_bytes()
    file.unlink()
    _put(writer, published, _row(5))
    assert file.read_bytes() == _written_anew(tmp_path)
    writer.close()


def test_the_next_attempts_first_row_mends_what_a_killed_one_left(tmp_path):
    """A row beyond the checkpoint and a torn line: neither stays, nothing is there twice."""
    first = _attempt(tmp_path, 0)
    writer, published = measurements.Writer(first.directory), measurements.LiveCsv(first)
    for step in range(6):
        _put(writer, published, _row(step))
    with (tmp_path / layout.MEASUREMENTS).open("ab") as file:
        file.write(b"6,1.0,0.")
    first.end("killed")
    second = _attempt(tmp_path, 4)
    _put(measurements.Writer(second.directory), measurements.LiveCsv(second), _row(4, loss=0.25))
    rows = list(csv.DictReader((tmp_path / layout.MEASUREMENTS).read_text().splitlines()))
    assert [(row["global_step"], row["loss"], row["preemption_count"]) for row in rows] == [
        *((str(step), "0.5", "0") for step in range(4)),
        ("4", "0.25", "1"),
    ]


def test_records_of_before_have_the_columns_of_before(tmp_path):
    attempt = _attempt(tmp_path, 0)
    writer = measurements.Writer(attempt.directory)
    writer.append([{"kind": "train", "global_step": 0, "loss": 0.5, "grad_norm": 1.0}])
    writer.append([{"kind": "eval", "global_step": 1, "validation/loss": 3.0, "score": 1.0}])
    header = _written_anew(tmp_path).splitlines()[0]
    assert header == b"global_step,grad_norm,loss,preemption_count,score,validation/loss"
    writer.close()


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("TPU v5p", 459e12),
        ("cpu", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_peaks_by_device_kind(kind, peak):
    assert live.peak_flops(kind) == peak


def test_speed_is_of_all_devices(monkeypatch, make_trial):
    """c4_lm on 64 v5e in bfloat16, 665 ms a step, by hand: 23 % by 6·N·D, and attention."""
    record = trials.read(make_trial())
    record = record.__class__(**{**record._fields(), "workload": "c4_lm", "batch_size": 1024})
    kind = types.SimpleNamespace(device_kind="TPU v5 lite")
    monkeypatch.setattr(jax, "devices", lambda: [kind] * 64)
    found = live.Speed(record).columns(0.665)
    assert found["step_seconds"] == 0.665
    assert found["tokens_per_second"] == pytest.approx(1024 * 1024 / 0.665)
    parameters = catalog.get("c4_lm").parameters
    by_hand = 1024 * 1024 * (6 * parameters + 12 * 32 * 8 * 128 * 1024) / (64 * 197e12 * 0.665)
    assert found["model_flop_utilisation"] == pytest.approx(by_hand, rel=1e-3)
    assert 6 * parameters * 1024 * 1024 / (64 * 197e12 * 0.665) == pytest.approx(0.226, abs=0.001)
    monkeypatch.undo()
    assert live.Speed(record).columns(1.0)["model_flop_utilisation"] is None  # no CPU has a peak


class Device:
    """A stand-in for the train step and its workload, which notes what happened in which order.

    Its update takes the state's one weight a step further; the losses are given.
    """

    compilations, eval_batch_size = 1, 16

    def __init__(self, losses, monkeypatch):
        self.workload, self.losses, self.events = self, losses, []
        self.precisions = []
        self.killed_at = None
        real = jax.device_get
        monkeypatch.setattr(live.jax, "device_get", lambda tree: self._got(real(tree)))

    def _got(self, found):
        if isinstance(found, tuple):  # no sums of a checkpoint
            self.events.append(("read", float(found[1])))  # the gradient norm: the update's number
        return found

    def _note_precision(self):
        self.precisions.append(jax.config.jax_default_matmul_precision)

    def first_state(self, seed):
        self._note_precision()
        zero = jnp.zeros([], jnp.int32)
        return train_step.TrainState(zero, {"w": jnp.full(3, float(seed))}, None, {}, zero - 1)

    def stored(self, state):
        return state

    trained = stored

    def compile(self, state, batch, scalars, key):
        self._note_precision()
        return self._update

    def _update(self, state, batch, scalars, key):
        step = int(state.step)
        if step == self.killed_at:
            raise MemoryError("killed")
        self.events.append(("update", step))
        loss = jnp.float32(self.losses(step))
        bad = (state.nonfinite_at < 0) & ~jnp.isfinite(loss)
        nonfinite = jnp.where(bad, state.step, state.nonfinite_at)
        new = state._replace(step=state.step + 1, nonfinite_at=nonfinite)
        return new, train_step.StepMetrics(loss, jnp.float32(step), nonfinite)

    def _build_input_queue(self, *given, start_step):
        return itertools.count(start_step)

    def eval_model(self, *given):
        self._note_precision()
        self.events.append(("eval", given[-1]))
        return {"validation/accuracy": 0.5, "validation/loss": float(given[1]["w"][0])}

    def train(self, directory):
        """Returns how an attempt at a trial ended, and its events."""
        attempt, said = lease.claim(directory), []
        training = loop.Training(
            trials.read(directory),
            attempt,
            self,
            "",
            lambda event, **fields: said.append((event, fields)),
            lambda: False,
        )
        try:
            end = training.run()
        except MemoryError:
            end = "killed"
        attempt.end(end)
        return end, said


def _curve(directory):
    rows = list(csv.DictReader((directory / layout.MEASUREMENTS).read_text().splitlines()))
    return [(int(row["global_step"]), row["loss"]) for row in rows if row["loss"]]


def test_a_row_is_read_behind_the_next_update_and_reaches_the_file_at_once(make_trial, monkeypatch):
    directory = make_trial(steps=12, eval_every=12, log_every=5)
    seen = []

    def losses(step):
        if step:
            seen.append((step, _curve(directory) if step > 1 else []))
        return 1.0 / (1 + step)

    device = Device(losses, monkeypatch)
    end, said = device.train(directory)
    assert end == "done"
    steps = [("update", step) for step in range(12)]
    for logged, behind in ((0.0, 1), (5.0, 6), (10.0, 11)):
        steps.insert(steps.index(("update", behind)) + 1, ("read", logged))
    assert device.events == [*steps, ("eval", 12)]
    # What was in the file when an update was dispatched.
    rows = {step: [number for number, _ in curve] for step, curve in seen}
    assert rows == {step: [0, 5][: (step > 1) + (step > 6)] for step in range(1, 12)}
    figures = [fields for event, fields in said if event == "figures"]
    assert [(one["global_step"], one["loss"]) for one in figures] == [
        *((0, 1.0), (5, pytest.approx(1 / 6)), (10, pytest.approx(1 / 11)))
    ]
    assert all(one["images_per_second"] == pytest.approx(16 / one["step_seconds"])
               for one in figures)  # fmt: skip
    record = status.read(directory)
    assert record["figures"] is None  # of a running trial alone
    assert record["evaluation"].keys() == {"validation/accuracy"}
    assert record["host"] == socket.gethostname()


@pytest.mark.parametrize(
    ("bad", "every", "updates"), [(7, 5, 12), (0, 5, 2), (3, 1, 5), (9, 4, 14)]
)
def test_a_loss_that_is_not_finite_ends_the_trial_within_log_every(
    make_trial, monkeypatch, bad, every, updates
):
    """Even where the next logged loss is finite again. It is evaluated, as ever, and ends."""
    directory = make_trial(steps=40, eval_every=20, log_every=every)
    device = Device(lambda step: float("inf") if step == bad else 1.0, monkeypatch)
    end, _ = device.train(directory)
    assert end == "diverged"
    assert [what for what, _ in device.events].count("update") == updates
    assert device.events[-1] == ("eval", updates)
    assert [what for what, _ in device.events].count("eval") == 1
    found = status.read(directory)
    assert (found["state"], found["global_step"]) == ("diverged", bad)
    assert found["reason"] == f"the loss of update {bad} was not finite"
    assert [step for step, _ in _curve(directory)] == [*range(0, updates, every)]


def test_divergence_between_logged_losses_is_met_by_an_evaluation_as_ever(make_trial, monkeypatch):
    directory = make_trial(steps=40, eval_every=4, log_every=30)
    end, _ = Device(lambda step: float("nan") if step == 5 else 1.0, monkeypatch).train(directory)
    assert end == "diverged"
    assert status.read(directory)["global_step"] == 5
    evaluations = (directory / layout.EVAL_MEASUREMENTS).read_text().splitlines()
    assert len(evaluations) == 3  # a header, after 4 updates and after 8


def test_checkpoints_by_wall_time_hold_their_rows_and_resume(make_trial, monkeypatch):
    """A minute between looks, which come with every second update's row; killed in update 11."""
    settings = {"steps": 16, "eval_every": 16, "log_every": 2}
    whole = make_trial(name="whole", **settings)
    Device(lambda step: 1 / (1 + step), monkeypatch).train(whole)
    directory = make_trial(name="killed", checkpoint_minutes=2, **settings)
    now = itertools.count()
    clock = types.SimpleNamespace(
        monotonic=lambda: 60.0 * next(now), perf_counter=time.perf_counter
    )
    monkeypatch.setattr(loop, "time", clock)
    device = Device(lambda step: 1 / (1 + step), monkeypatch)
    device.killed_at = 11
    assert device.train(directory)[0] == "killed"
    saved = sorted(int(path.name) for path in (directory / layout.CHECKPOINTS).iterdir())
    assert saved == [4, 8]
    rows = measurements.curve(directory)
    assert measurements.missing(rows, 8, trials.read(directory)) is None
    device.killed_at = None
    device.events.clear()
    assert device.train(directory)[0] == "done"
    assert device.events[0] == ("update", 8)
    assert _curve(directory) == _curve(whole)
    record = layout.read_json(directory / layout.TRIAL)
    assert record["id"] == layout.read_json(whole / layout.TRIAL)["id"]


def test_a_status_is_not_written_at_every_row(make_trial, monkeypatch):
    directory = make_trial(steps=40, eval_every=40, log_every=1)
    written, real = [], status.write

    def write(*given, **fields):
        written.append(fields)
        real(*given, **fields)

    monkeypatch.setattr(loop.status, "write", write)
    Device(lambda step: 1.0, monkeypatch).train(directory)
    assert len(written) == 3  # it began, its evaluation, its end
    written.clear()
    directory = make_trial(name="slow", steps=40, eval_every=40, log_every=1)
    monkeypatch.setattr(loop, "_STATUS_EVERY_S", 0.0)
    Device(lambda step: 1.0, monkeypatch).train(directory)
    assert [one["global_step"] for one in written[1:-2]] == [*range(1, 40)]
    assert written[3]["figures"]["loss"] == 1.0
    assert written[3]["step_seconds"] == written[3]["figures"]["step_seconds"] > 0
    json.dumps(written[3])
