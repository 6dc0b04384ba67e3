"""Damaged checkpoints: the one before is taken, and the curve is that of a run never disturbed."""

import io
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sweeps import (
    attempts,
    backed,
    checkpoints,
    config,
    equality,
    layout,
    overview,
    progress,
    runner,
    status,
    study,
    study_directory,
    tensors,
)


class Orders:
    """A real worker in this process; tells it to stop after an evaluation where asked to."""

    def __init__(self, data_dir):
        self.data_dir, self.events, self.stop_at = data_dir, [], None
        self.worker = runner.Worker(self)

    def write(self, line):
        self.events.append(json.loads(line))
        event = self.events[-1]
        if event["event"] == "eval" and event["global_step"] == self.stop_at:
            self.worker.stop()

    def flush(self):
        pass

    def run(self, trial, stop_at=None):
        """Returns how the trial ended."""
        self.events, self.stop_at, self.worker.stopping = [], stop_at, False
        self.worker.run([trial], self.data_dir)
        return self.events[-1]["outcome"]


def _trial(folder, data_dir):
    settings = {
        **{"experiment_dir": folder, "data_dir": data_dir, "batch_size": 4, "steps": 6},
        **{"eval_every": 2, "log_every": 1, "protocol": "grid", "variants": "standard"},
    }
    made = study.resolve(
        config.parse("digits_vit_quick", [f"--config.{k}={v}" for k, v in settings.items()])
    )
    study_directory.prepare(made)
    trials = made.trials("grid")[:1]
    study_directory.materialise(made, "grid", trials)
    return made.directory / trials[0].path


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data_dir):
    """A worker, a trial that it trained in peace, and one stopped with checkpoints 2 and 4."""
    orders = Orders(data_dir)
    whole = _trial(tmp_path_factory.mktemp("whole"), data_dir)
    assert orders.run(whole) == "done"
    stopped = _trial(tmp_path_factory.mktemp("stopped"), data_dir)
    assert orders.run(stopped, stop_at=4) == "preempted"
    return orders, whole, stopped


@pytest.fixture
def stopped(trained, tmp_path):
    """A copy of the trial with two checkpoints, to damage."""
    study_of = trained[2].parents[3]
    shutil.copytree(study_of, tmp_path / study_of.name)
    return tmp_path / study_of.name / trained[2].relative_to(study_of)


def _largest(folder):
    return max(folder.glob("state/**/d/*"), key=lambda path: path.stat().st_size)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def _garbled(path):
    path.write_bytes(path.read_bytes()[:-7] + b"\xff\xfe\x00\x00\xff\n")


def _flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _emptied(path):
    path.write_bytes(b"")


def _missing(path):
    path.unlink()


RECORD, METADATA = backed.RECORD, "state/_METADATA"
DAMAGES = [
    *[(RECORD, damage) for damage in (_cut, _garbled, _flipped, _emptied, _missing)],
    *[(METADATA, damage) for damage in (_cut, _garbled, _emptied)],
    *[("state/manifest.ocdbt", damage) for damage in (_flipped, _missing)],
    *[(_largest, damage) for damage in (_flipped, _emptied, _missing)],
]


@pytest.mark.parametrize(
    ("file", "damage"),
    [pytest.param(f, d, id=f"{getattr(f, '__name__', f)}{d.__name__}") for f, d in DAMAGES],
)
def test_the_checkpoint_before_is_restored(stopped, file, damage):
    """Whatever is damaged of the newest: its file is named, and the older arrays are exact."""
    folder = stopped / layout.CHECKPOINTS
    path = file(folder / "4") if callable(file) else folder / "4" / file
    store, like, record = _opened(stopped)
    _, expected, _ = _only(store, 2, like)
    store.close()
    damage(path)
    store, *_ = _opened(stopped)
    step, state, _ = store.restore(like)
    (told,) = store.damages
    store.close()
    assert step == 2
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    assert told.startswith(f"checkpoint 4 is damaged and set aside: {folder / '4'}")
    # The sum of an array does not say in which of its files the byte lies.
    assert str(path) in told or damage in (_missing, _flipped)
    assert sorted(one.name for one in folder.iterdir()) == ["2", f"{checkpoints.DAMAGED}4"]


def _opened(trial_directory):
    from sweeps import trial

    record = trial.read(trial_directory)
    step_function = runner.Worker(io.StringIO())._program(record)
    store = checkpoints.Checkpoints(trial_directory / layout.CHECKPOINTS, record)
    return store, step_function.first_state(record.seed), record


def _only(store, step, like):
    return step, *store._read(step, like)


def test_a_trial_goes_on_from_the_one_before(trained, stopped, capsys):
    """Bit for bit the curve of a run never disturbed; said in log, status, overview and driver."""
    orders, whole, _ = trained
    path = stopped / layout.CHECKPOINTS / "4" / backed.RECORD
    _garbled(path)
    assert orders.run(stopped, stop_at=4) == "preempted"
    note = f"checkpoint 4 is damaged and set aside: {path}: "
    assert [event["text"] for event in orders.events if event["event"] == "note"][0].startswith(
        note
    )
    assert status.read(stopped)["note"].endswith("; goes on from step 2")
    assert note in "\n".join(attempts.log_tail(stopped, 50))
    assert orders.run(stopped) == "done"
    assert equality.trial_problems(stopped, whole) == []
    # What was set aside goes with the other checkpoints that nothing needs.
    assert [one.name for one in (stopped / layout.CHECKPOINTS).iterdir()] == ["6"]
    assert "note" not in overview.render(stopped.parents[3])
    del capsys


def test_none_whole_begins_anew(trained, stopped):
    orders, whole, _ = trained
    for step in ("2", "4"):
        _emptied(_largest(stopped / layout.CHECKPOINTS / step))
    assert orders.run(stopped) == "done"
    (note,) = (event["text"] for event in orders.events if event["event"] == "note")
    assert "checkpoint 4 is" in note
    assert "checkpoint 2 is" in note
    assert note.endswith("; goes on from step 0")
    assert equality.trial_problems(stopped, whole) == []


def test_damage_and_missing_rows_together(trained, stopped):
    """Neither hides the other: no checkpoint whose rows are gone is restored."""
    orders, whole, _ = trained
    _emptied(stopped / layout.CHECKPOINTS / "4" / backed.RECORD)
    (stopped / layout.ATTEMPTS / "1" / "measurements.jsonl").unlink()
    assert orders.run(stopped) == "done"
    assert equality.trial_problems(stopped, whole) == []


def test_tensors_of_a_damaged_checkpoint_are_refused(trained, tmp_path):
    """Another step's would be another answer."""
    whole = tmp_path / trained[1].parents[3].name
    shutil.copytree(trained[1].parents[3], whole)
    directory = whole / trained[1].relative_to(trained[1].parents[3])
    _flipped(_largest(directory / layout.CHECKPOINTS / "6"))
    with pytest.raises(ValueError, match=r"checkpoints/6/state: .* is not what was written"):
        tensors.dump(directory, tmp_path / "out.npz", 2, trained[0].data_dir)
    assert (directory / layout.CHECKPOINTS / "6").exists()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint8", "bool"])
def test_sums_change_with_any_bit(dtype):
    array = jnp.arange(6).astype(dtype).reshape(2, 3)
    (before,) = checkpoints._sums({"a": array}).values()
    for index in range(6):
        content = bytearray(np.asarray(array).tobytes())
        content[index * array.dtype.itemsize] ^= 1
        changed = np.frombuffer(bytes(content), array.dtype).reshape(2, 3)
        (after,) = checkpoints._sums({"a": jnp.asarray(changed)}).values()
        assert after != before


def test_sums_by_hand():
    # 1.0 is 0x3f800000, -2.0 is 0xc0000000; their sum is below 2**32 as 0xff800000.
    assert checkpoints._sums({"a": jnp.asarray([1.0, -2.0])}) == {"['a']": 0xFF800000}
    assert checkpoints._sums({"a": jnp.full((4,), -2.0)}) == {"['a']": 0}


def test_a_trial_that_fails_twice_counts_once(trained, stopped, capsys):
    """A study of one failed trial that fails again has ended 1 of 1, not 2 of 1."""
    from sweeps import trial

    record = trial.read(stopped)
    status.write(stopped, "failed", reason="x")
    shown = progress.Progress()
    shown.stage("grid", [record], stopped.parents[3])
    shown.started(record, 0)
    shown.ended(record, "failed", "x")
    shown.ended(record, "failed", "x")
    assert "0 already finished" in (out := capsys.readouterr().out)
    assert "[1/1]" in out
    assert "[2/1]" not in out
