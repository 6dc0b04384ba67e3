"""Curves of attempts, live figures, early ends; event files and a trace, which change neither."""

import contextlib
import gzip
import itertools
import json
import socket
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.common import accelerators
from sweeps.records import answers, event_files, layout, lease, measurements, status
from sweeps.scheduling import preflight
from sweeps.study import trial as trials
from sweeps.training import live, loop, train_step
from tests.sweeps.chaos import equality
from tests.sweeps.conftest import begin_attempt
from workloads import catalog
from workloads.base import spec
from workloads.storage import tfrecord


def test_csvs_have_algoperfs_columns_and_ours(tmp_path):
    """Sorted, the step first; a value that is not known is an empty cell."""
    train = {"kind": "train", "global_step": 0, "loss": float("nan"), "grad_norm": 1.0}
    rows = [
        {**train, "step_seconds": 0.1, "model_flop_utilisation": None},
        {"kind": "eval", "global_step": 1, "validation/loss": 3.0, "score": 1.0},
    ]
    begin_attempt(tmp_path, rows)
    measurements.publish(tmp_path)
    assert (tmp_path / layout.EVAL_MEASUREMENTS).read_text().splitlines() == [
        "global_step,preemption_count,score,validation/loss",
        "1,0,1.0,3.0",
    ]
    assert (tmp_path / layout.MEASUREMENTS).read_text().splitlines() == [
        "global_step,grad_norm,loss,step_seconds,model_flop_utilisation,preemption_count,score,"
        "validation/loss",
        "0,1.0,nan,0.1,,0,,",
        "1,,,,,0,1.0,3.0",
    ]


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


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("TPU v5 lite", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("cpu", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_peaks_by_device_kind(kind, peak):
    name = accelerators.of_device(kind)
    assert (name and accelerators.KINDS[name].peak_tflops) == peak


def test_speed_is_of_all_devices(monkeypatch, make_trial):
    """c4_lm on 64 v5e in bfloat16, 665 ms a step, by hand: 23 % by 6·N·D, and attention."""
    record = trials.read(make_trial())
    record = record.__class__(**{**record._fields(), "workload": "c4_lm", "batch_size": 1024})
    kind = types.SimpleNamespace(device_kind="TPU v5 lite")
    monkeypatch.setattr(jax, "devices", lambda: [kind] * 64)
    columns = live.LoggedMetrics(record, 0, 0.0).columns(0.665)
    assert columns["step_seconds"] == 0.665
    assert columns["tokens_per_second"] == pytest.approx(1024 * 1024 / 0.665)
    parameters = catalog.get("c4_lm").parameters
    by_hand = 1024 * 1024 * (6 * parameters + 12 * 32 * 8 * 128 * 1024) / (64 * 197e12 * 0.665)
    assert columns["model_flop_utilisation"] == pytest.approx(by_hand, rel=1e-3)
    assert 6 * parameters * 1024 * 1024 / (64 * 197e12 * 0.665) == pytest.approx(0.226, abs=0.001)
    monkeypatch.undo()
    assert live.LoggedMetrics(record, 0, 0.0).columns(1.0)["model_flop_utilisation"] is None


class Device:
    """A stand-in for the train step and its workload, which notes what happened in which order.

    Its update takes the state's one weight a step further; the losses are given.
    """

    compilations, eval_batch_size = 1, 16

    def __init__(self, losses, monkeypatch):
        self.workload, self.losses, self.events = self, losses, []
        self.precisions, self.accuracies = [], {}
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
        right = np.arange(20) < given[-1]
        self.answers = spec.Answers("test", "accuracy", right, np.ones(20))
        accuracy = self.accuracies.get(given[-1], 0.5)
        return {"validation/accuracy": accuracy, "validation/loss": float(given[1]["w"][0])}

    def train(self, directory):
        """Returns how an attempt at a trial ended."""
        attempt = lease.claim(directory)
        training = loop.Training(trials.read(directory), attempt, self, "", lambda: False)
        try:
            end = training.run()
        except MemoryError:
            end = "killed"
        attempt.end(end)
        return end


def _curve(directory):
    """Returns the losses in measurements.csv with their steps."""
    rows = equality.rows(directory, layout.MEASUREMENTS)
    return [(int(row["global_step"]), row["loss"]) for row in rows if row["loss"]]


def _measured(directory):
    """Returns the updates whose losses are in the attempts' files."""
    rows = measurements.curve(directory)
    return [row["global_step"] for row in rows if row["kind"] == "train"]


def test_a_row_is_read_behind_the_next_update_and_reaches_the_file_at_once(make_trial, monkeypatch):
    directory = make_trial(steps=12, eval_every=12, log_every=5)
    rows = {}

    def losses(step):
        rows[step] = _measured(directory)
        return 1.0 / (1 + step)

    device = Device(losses, monkeypatch)
    assert device.train(directory) == "done"
    steps = [("update", step) for step in range(12)]
    for logged, behind in ((0.0, 1), (5.0, 6), (10.0, 11)):
        steps.insert(steps.index(("update", behind)) + 1, ("read", logged))
    assert device.events == [*steps, ("eval", 12)]
    # What was in the file when an update was dispatched.
    assert rows == {step: [0, 5][: (step > 1) + (step > 6)] for step in range(12)}
    figures = [row for row in measurements.curve(directory) if row["kind"] == "train"]
    assert [(row["global_step"], row["loss"]) for row in figures] == [
        *((0, 1.0), (5, pytest.approx(1 / 6)), (10, pytest.approx(1 / 11)))
    ]
    assert all(
        row["images_per_second"] == pytest.approx(16 / row["step_seconds"]) for row in figures
    )
    record = status.read(directory)
    assert record["figures"] is None  # of a running trial alone
    assert record["evaluation"].keys() == {"validation/accuracy"}
    assert record["host"] == socket.gethostname()


@pytest.mark.parametrize(
    ("accuracies", "chosen"),
    [({4: 0.2, 8: 0.9, 12: 0.8}, 8), ({4: 0.9, 8: 0.9, 12: 0.9}, 4), ({8: float("nan")}, 4)],
)
def test_answers_are_of_the_evaluation_that_validation_chooses(
    make_trial, monkeypatch, accuracies, chosen
):
    """The first of equals; right and wrong of 20 items as bits."""
    directory = make_trial(steps=12, eval_every=4, log_every=4)
    device = Device(lambda step: 1.0, monkeypatch)
    device.accuracies = accuracies
    assert device.train(directory) == "done"
    trial = trials.read(directory)
    ((key, kept),) = answers.read(directory).items()
    assert key == (trial.variant, trial.seed)
    assert kept[:3] == (chosen, "test", "accuracy")
    assert kept.values.tolist() == [True] * chosen + [False] * (20 - chosen)
    with np.load(directory / answers.FILE) as arrays:
        assert arrays[f"{trial.variant}/{trial.seed}/values"].nbytes == 3
    file = directory / answers.FILE
    for content in (b"", b"no zip", file.read_bytes()[:-30], file.read_bytes()[50:]):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"answers\.npz is damaged"):
            answers.read(directory)
    file.unlink()
    assert answers.read(directory) == {}


@pytest.mark.parametrize(
    ("bad", "logs", "evaluates", "updates"),
    [(7, 5, 20, 12), (0, 5, 20, 2), (3, 1, 20, 5), (9, 4, 20, 14), (5, 30, 4, 8)],
)
def test_a_loss_that_is_not_finite_ends_the_trial(
    make_trial, monkeypatch, bad, logs, evaluates, updates
):
    """At the next logged loss or evaluation, also where that is finite again; it is evaluated."""
    directory = make_trial(steps=40, eval_every=evaluates, log_every=logs)
    device = Device(lambda step: float("inf") if step == bad else 1.0, monkeypatch)
    assert device.train(directory) == "diverged"
    assert [number for what, number in device.events if what == "update"] == [*range(updates)]
    assert device.events[-1] == ("eval", updates)
    rows = measurements.evaluations(directory)
    assert [row["global_step"] for row in rows] == [*range(evaluates, updates, evaluates), updates]
    assert 0 < rows[-1]["accumulated_submission_time"] < 900  # seconds of this test, not of a clock
    found = status.read(directory)
    assert (found["state"], found["global_step"]) == ("diverged", bad)
    assert found["reason"] == f"the loss of update {bad} was not finite"
    assert [step for step, _ in _curve(directory)] == [*range(0, updates, logs)]


@pytest.mark.parametrize(
    ("settings", "minutes", "killed_at", "saved", "measured", "published"),
    [
        ({"steps": 12, "eval_every": 4, "log_every": 1}, 0, 6, [4], [*range(5)], 4),
        # Checkpoints by wall time: an update takes half a minute.
        ({"steps": 16, "eval_every": 16, "log_every": 2}, 2, 11, [4, 8], [0, 2, 4, 6, 8], 0),
    ],
)
def test_a_killed_trial_goes_on_with_all_rows(
    make_trial, monkeypatch, settings, minutes, killed_at, saved, measured, published
):
    """The row of the last update was on its way; CSVs are as of the last evaluation."""
    whole = make_trial(name="whole", **settings)
    directory = make_trial(name="killed", checkpoint_minutes=minutes, **settings)
    Device(lambda step: 1 / (1 + step), monkeypatch).train(whole)
    device = Device(lambda step: 1 / (1 + step), monkeypatch)

    def monotonic():
        return 30.0 * sum(kind == "update" for kind, _ in device.events)

    clock = types.SimpleNamespace(monotonic=monotonic, perf_counter=time.perf_counter)
    monkeypatch.setattr(loop, "time", clock)
    device.killed_at = killed_at
    assert device.train(directory) == "killed"
    assert layout.checkpoint_steps(directory) == saved
    assert _measured(directory) == measured
    if published:
        assert measurements.are_whole(directory, published)
        assert _curve(directory) == _curve(whole)[:published]
    device.killed_at = None
    device.events.clear()
    assert device.train(directory) == "done"
    assert device.events[0] == ("update", saved[-1])
    assert measurements.are_whole(directory, settings["steps"])
    assert _curve(directory) == _curve(whole)
    assert trials.read(directory).id == trials.read(whole).id


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


def _events(directory):
    """Returns what TensorBoard shows: {tag: [(step, value)]}, by its rule of purging."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    points = []
    for path in sorted((directory / layout.TENSORBOARD).iterdir(), key=lambda path: path.name[-6:]):
        for payload in tfrecord.stream(str(path)):
            event = event_pb2.Event.FromString(payload)
            if event.session_log.status == event_pb2.SessionLog.START:
                # tensorboard/backend/event_processing/plugin_event_accumulator.py: _Purge
                points = [point for point in points if point[1] < event.step]
            points += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return {tag: [p[1:] for p in points if p[0] == tag] for tag, *_ in points}


def _train(step, **figures):
    return {"kind": "train", "global_step": step, "loss": step / 4, **figures}


def test_a_resumed_trial_shows_every_point_once(tmp_path):
    """Attempt 1 got to update 5 and its checkpoint is that after 4, with an evaluation."""
    pytest.importorskip("tensorboardX")
    for resumed, rows in (
        (0, [*map(_train, range(4)), {"kind": "eval", "global_step": 4, "test/loss": 0.5},
             *map(_train, (4, 5))]),
        (4, [_train(4, step_seconds=0.25, model_flop_utilisation=None), _train(5)]),
    ):  # fmt: skip
        attempt = begin_attempt(tmp_path, resumed=resumed)
        writer = measurements.Writer(attempt.directory)
        events = event_files.EventFile(attempt, resumed)
        for row in rows:
            writer.append([row])
            events.append([row])
            events.append([{"kind": "diagnostics", "global_step": 4, "layers": []}])
            # On disk when it was added.
            assert row["global_step"] in [step for points in _events(tmp_path).values()
                                          for step, _ in points]  # fmt: skip
        writer.close()
        events.close()
        attempt.end("killed")
    assert _events(tmp_path) == {
        "loss": [(step, step / 4) for step in range(6)],
        "test/loss": [(4, 0.5)],
        "step_seconds": [(4, 0.25)],
        "preemption_count": [(4, 0)],
    }


def test_a_missing_library_is_refused(make_study, monkeypatch):
    """On the host that trains."""
    monkeypatch.setattr(event_files, "LIBRARY", "no_such_library")
    preflight.check_event_files(make_study())
    elsewhere = make_study(tensorboard=True, launcher="slurm", **{"slurm.time": "01:00:00"})
    preflight.check_event_files(elsewhere)
    for asks, here in ((make_study(tensorboard=True), False), (elsewhere, True)):
        with pytest.raises(ValueError, match=r"no_such_library.*\[tensorboard\]"):
            preflight.check_event_files(asks, here=here)


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ("100", "first:last"),
        ("a:b", "first:last"),
        ("-1:4", "first:last"),
        ("4:4", "must be smaller, and a trial has 12 updates"),
        ("5:4", "must be smaller"),
        ("4:13", "12 updates; give --config.profile=100:110"),
    ],
)
def test_updates_that_cannot_be_traced_are_refused(make_study, updates, message):
    with pytest.raises(ValueError, match=f"profile.*{message}"):
        make_study(profile=updates)
    assert make_study(profile="4:12").settings["profile"] == "4:12"


def test_a_trace_begins_and_ends_between_updates(make_trial, monkeypatch):
    """An attempt that resumes amid the updates to trace traces the rest."""
    device = Device(lambda step: 1.0, monkeypatch)

    @contextlib.contextmanager
    def trace(directory, create_perfetto_trace):
        device.events.append(("trace", "begins"))
        try:
            yield
        finally:
            device.events.append(("trace", "ends"))

    monkeypatch.setattr("jax.profiler.trace", trace)
    directory = make_trial(steps=12, eval_every=4, log_every=12, profile="3:7")
    device.killed_at = 5
    assert device.train(directory) == "killed"
    device.killed_at = None
    device.train(directory)
    events = [value for what, value in device.events if what in ("update", "trace")]
    assert events[:7] == [0, 1, 2, "begins", 3, 4, "ends"]
    assert events[7:] == ["begins", 4, 5, 6, "ends", *range(7, 12)]


def test_a_trace_is_of_the_updates_asked_for_and_opens_in_perfetto(tmp_path):
    import jax

    add = jax.jit(lambda x: x + 1)
    updates = loop.Trace("2:4", tmp_path)
    assert updates.updates == range(2, 4)
    for done in range(6):
        if done == updates.updates.stop:
            updates.close()
        if done == updates.updates.start:
            updates.start()
        with jax.profiler.TraceAnnotation(f"update {done}"):
            add(done).block_until_ready()
    (path,) = tmp_path.rglob("perfetto_trace.json.gz")
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    named = {event.get("name", "") for event in events}
    assert {f"update {done}" for done in range(6)} & named == {"update 2", "update 3"}
    updates.close()  # nothing is under way
    assert not loop.Trace("", tmp_path).updates
