"""What a study may ask to look at a trial: event files and a trace. Neither changes it."""

import gzip
import json

import pytest

from sweeps.records import event_files, layout, measurements
from sweeps.scheduling import preflight
from sweeps.training import loop
from tests.sweeps.conftest import begin_attempt
from workloads.storage import tfrecord


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


def test_a_trace_is_of_the_updates_asked_for_and_opens_in_perfetto(tmp_path):
    import jax

    add = jax.jit(lambda x: x + 1)
    updates = loop.Trace("2:4", tmp_path)
    assert [updates.starts(done) for done in range(6)] == [done == 2 for done in range(6)]
    assert [updates.ends(done) for done in range(6)] == [done == 4 for done in range(6)]
    # An attempt that resumes amid them traces the rest.
    assert [done for done in range(6) if updates.starts(done, resumed=True)] == [2, 3]
    for done in range(6):
        if updates.ends(done):
            updates.close()
        if updates.starts(done):
            updates.start()
        with jax.profiler.TraceAnnotation(f"update {done}"):
            add(done).block_until_ready()
    (path,) = tmp_path.rglob("perfetto_trace.json.gz")
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    named = {event.get("name", "") for event in events}
    assert {f"update {done}" for done in range(6)} & named == {"update 2", "update 3"}
    updates.close()  # nothing is under way
    assert not loop.Trace("", tmp_path).starts(0, resumed=True)
