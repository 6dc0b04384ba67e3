"""Damaged checkpoints: the one before is taken, and the curve is that of a run never disturbed."""

import errno
import functools
import gc
import json
import os
import shutil
import subprocess
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sweeps.job import trainer
from sweeps.launchers import local
from sweeps.records import layout, measurements, status
from sweeps.training import checkpoints, train_step
from tests.sweeps.chaos import equality
from tests.sweeps.chaos.damage import damage

# Orbax leaves its other reads and writes behind where one has failed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module", autouse=True)
def _left_behind():
    """What orbax left is collected here, and not in another file's test."""
    yield
    gc.collect()


class Orders(trainer.Trainer):
    """Trains in this process; stops after an evaluation where asked to."""

    def __init__(self, data_dir):
        super().__init__()
        self.data_dir = data_dir

    def _stops(self):
        return super()._stops() or status.recorded(self.trial)["global_step"] == self.stop_at

    def run(self, trial, stop_at=None):
        """Returns how the trial ended, and the error."""
        self.trial, self.stop_at, self.stopping = trial, stop_at, False
        return super().run(trial, self.data_dir)


SMALL = {"protocol": "grid", "variants": "standard", "batch_size": 4, "steps": 6, "eval_every": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, make_trial_in, data_dir):
    """A worker, a trial that it trained in peace, and one stopped with checkpoints 2 and 4."""
    orders = Orders(data_dir)
    whole = make_trial_in(tmp_path_factory.mktemp("whole"), "grid", **SMALL)
    assert orders.run(whole).outcome == "done"
    stopped = make_trial_in(tmp_path_factory.mktemp("stopped"), "grid", **SMALL)
    assert orders.run(stopped, stop_at=4).outcome == "preempted"
    return orders, whole, stopped


@pytest.fixture
def stopped(trained, tmp_path):
    """A copy of the trial with two checkpoints, to damage."""
    study_of = trained[2].parents[3]
    shutil.copytree(study_of, tmp_path / study_of.name)
    return tmp_path / study_of.name / trained[2].relative_to(study_of)


def _largest(folder):
    return max(folder.glob("state/**/d/*"), key=lambda path: path.stat().st_size)


RECORD, METADATA = checkpoints.RECORD, "state/_METADATA"
DAMAGES = [
    *[(RECORD, kind) for kind in ("cut", "flipped", "missing")],
    *[(METADATA, kind) for kind in ("garbled", "emptied")],
    ("state/manifest.ocdbt", "missing"),
    *[("arrays", kind) for kind in ("flipped", "emptied")],
]


# Bytes of measurements by attempt, and the clock: of a state that counts on no row.
PROGRESS = {"1": 0}, {"seconds": 1.0}


class _Trial:
    id, keep_checkpoints = "abc", 1

    @staticmethod
    def evaluates_at(step):
        return step % 2 == 0


def _state(step):
    weights = np.random.default_rng(step).normal(size=(40, 30)).astype(np.float32)
    return {"params": {"w": jnp.asarray(weights), "b": jnp.zeros((30,))}, "step": jnp.int32(step)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The checkpoints of steps 2 and 4 of a small state, to be copied."""
    folder = tmp_path_factory.mktemp("saved") / layout.CHECKPOINTS
    store = checkpoints.Checkpoints(folder, _Trial)
    for step in (2, 4):
        store.save(step, _state(step), *PROGRESS)
    store.close()
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of them."""
    return shutil.copytree(saved, tmp_path / saved.name)


@pytest.mark.parametrize(("file", "kind"), DAMAGES)
def test_the_checkpoint_before_is_restored(folder, file, kind):
    """Whatever is damaged of the newest: it is named, and the older arrays are exact."""
    damage(_largest(folder / "4") if file == "arrays" else folder / "4" / file, kind)
    store = checkpoints.Checkpoints(folder, _Trial)
    step, state, record = store.restore(_state(0))
    store.save(4, _state(4), *PROGRESS)
    store.close()
    (problem,) = store.damages
    assert (step, record["measurements"], record["clock"]) == (2, *PROGRESS)
    jax.tree.map(np.testing.assert_array_equal, state, _state(2))
    assert str(folder / "4") in problem
    assert sorted(os.listdir(folder)) == ["2", "4", f"{checkpoints.DAMAGED}4"]


def test_errors_that_are_no_damage_set_nothing_aside(folder, monkeypatch):
    """A file server that fails, and a checkpoint of another trial, leave it where it is."""
    store = checkpoints.Checkpoints(folder, type("Other", (), {"id": "def"}))
    with pytest.raises(ValueError, match="belongs to trial abc, not def"):
        store.restore(_state(0))
    store.close()
    store = checkpoints.Checkpoints(folder, _Trial)
    fails = mock.Mock(side_effect=OSError(errno.EIO, "Input/output error"))
    monkeypatch.setattr(store._manager, "restore", fails)
    with pytest.raises(OSError, match="Input/output error"):
        store.restore(_state(0))
    store.close()
    assert sorted(os.listdir(folder)) == ["2", "4"]


def test_a_full_disk_is_named(folder, monkeypatch):
    """With what a checkpoint takes; what is unfinished makes room, and whole ones stay."""
    store = checkpoints.Checkpoints(folder, _Trial)
    fails = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(store._manager, "save", fails)
    (folder / f"6{checkpoints._UNFINISHED}1").mkdir()
    with pytest.raises(checkpoints.disk.FullError, match=r"a checkpoint takes 4\.9 kB"):
        store.save(6, _state(6), *PROGRESS)
    store.close()
    assert sorted(os.listdir(folder)) == ["2", "4"]


def test_a_background_save_that_fails_is_said_and_hides_no_later_one(tmp_path, monkeypatch):
    """By the next call, which saves nothing; what is saved after it is on disk."""
    from orbax.checkpoint._src.path import atomicity

    finalize, errors = atomicity.AtomicRenameTemporaryPath.finalize, [OSError(errno.EIO, "lost")]

    async def fails_once(path, *arguments, **named):
        if errors:
            raise errors.pop()
        await finalize(path, *arguments, **named)

    monkeypatch.setattr(atomicity.AtomicRenameTemporaryPath, "finalize", fails_once)
    store = checkpoints.Checkpoints(tmp_path / layout.CHECKPOINTS, _Trial)
    store.save(2, _state(2), *PROGRESS)
    with pytest.raises(OSError, match="lost"):
        store.save(4, _state(4), *PROGRESS)
    for step in (6, 8):
        store.save(step, _state(step), *PROGRESS)
    store.close()
    assert layout.checkpoint_steps(tmp_path) == [6, 8]
    store = checkpoints.Checkpoints(tmp_path / layout.CHECKPOINTS, _Trial)
    step, state, _ = store.restore(_state(0))
    store.close()
    assert step == 8
    jax.tree.map(np.testing.assert_array_equal, state, _state(8))


# What each of two processes does: saves its half of an array twice, restores the second.
_HALF = """
import pathlib, sys
from sweeps.distributed import process_group
process_group.join()
import jax, numpy as np
from sweeps.training import checkpoints
class Trial:
    id, keep_checkpoints = "abc", 1
    evaluates_at = staticmethod(lambda step: True)
mesh = jax.sharding.Mesh(jax.devices(), "d")
halves = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
whole = np.arange(8.0, dtype=np.float32)
store = checkpoints.Checkpoints(pathlib.Path(sys.argv[1]), Trial)
for step in (2, 4):
    array = jax.make_array_from_callback((8,), halves, lambda part: step * whole[part])
    store.save(step, {"w": array}, {"1": 0}, {})
store.wait()
step, state, _ = store.restore({"w": array})
store.close()
for shard in state["w"].addressable_shards:
    np.testing.assert_array_equal(shard.data, 4 * whole[shard.index])
jax.distributed.shutdown()
sys.exit(10 + step)
"""


def test_two_processes_save_with_jax_s_preemption_service_off(tmp_path, environment):
    """Below orbax 0.12.3 the first save raises RuntimeError."""
    (port,) = local.free_ports(1)
    group = {"ATTNPERF_COORDINATOR": f"127.0.0.1:{port}", "ATTNPERF_NUM_PROCESSES": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _HALF, str(tmp_path / layout.CHECKPOINTS)],
            env=environment(**group, ATTNPERF_PROCESS_ID=str(number)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [14, 14], errors
    assert layout.checkpoint_steps(tmp_path) == [2, 4]


def _attempt(trial_directory, number, resumed):
    """Makes an attempt that began after `resumed` updates; returns its measurements' writer."""
    attempt = trial_directory / layout.ATTEMPTS / str(number)
    attempt.mkdir(parents=True)
    layout.write_json(attempt / measurements.RESUMED, {"global_step": resumed})
    return measurements.Writer(attempt)


def _measure(writer, steps):
    """Appends the losses of some updates; returns the bytes that are on disk then."""
    writer.append([{"kind": "train", "global_step": step, "loss": 1.0} for step in steps])
    return writer.sync()


@pytest.fixture
def measured(tmp_path):
    """A store with checkpoints 2 and 4 of an attempt that measured six updates, and its rows."""
    writer = _attempt(tmp_path, 1, 0)
    store = checkpoints.Checkpoints(tmp_path / layout.CHECKPOINTS, _Trial)
    for step in (2, 4):
        store.save(step, _state(step), {"1": _measure(writer, (step - 2, step - 1))}, {})
    _measure(writer, (4, 5))
    store.wait()
    yield store, tmp_path / layout.ATTEMPTS / "1" / measurements.FILE
    store.close()


@pytest.mark.parametrize(
    "end", [b"", b"}{", b"[]", b"\xff\xfe\0"], ids=["cut", "rubbish", "list", "no text"]
)
def test_bytes_of_measurements_that_are_lost(tmp_path, end):
    """From the first damaged line on, though the lines behind it are whole."""
    writer = _attempt(tmp_path, 1, 0)
    sizes = [_measure(writer, [update]) for update in range(4)]
    path = tmp_path / layout.ATTEMPTS / "1" / measurements.FILE
    lines = path.read_bytes().splitlines()
    for damaged, line in enumerate(lines):
        changed = [
            *lines[:damaged],
            *([end.rjust(len(line))] if end else ()),
            *lines[damaged + 1 :],
        ]
        path.write_bytes(b"\n".join(changed if end else [*lines[:damaged], line[:-3]]))
        for update, size in enumerate(sizes):
            problem = measurements.lacking(tmp_path, update + 1, {"1": size})
            assert (problem is None) == (update < damaged)
            assert problem is None or str(path) in problem


def test_a_checkpoint_does_not_count_without_its_measurements(measured):
    store, path = measured
    assert store.restore(_state(0))[0] == 4
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert store.restore(_state(0))[0] == 2
    assert [str(path) in problem for problem in store.damages] == [True]


def test_a_checkpoint_counts_only_until_an_attempt_resumes_before_it(measured, tmp_path):
    """One that a frozen worker finishes is not used, though its own rows are all there."""
    store, _ = measured
    _attempt(tmp_path, 2, 4).close()
    (tmp_path / layout.ATTEMPTS / "3").mkdir()  # it ended before it could begin
    assert store.restore(_state(0))[0] == 4
    _attempt(tmp_path, 4, 2).close()
    assert store.restore(_state(0))[0] == 2
    assert len(store.damages) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damaged", "start"),
    [(("record",), 2), (("arrays 4", "arrays 2"), 0), (("arrays 4", "measurements"), 0)],
)
def test_a_trial_goes_on_from_what_is_whole(trained, stopped, capsys, damaged, start):
    """Bit for bit the curve of a run never disturbed; said in log and status. Neither damage hides
    the other: no checkpoint whose rows are gone is restored."""
    orders, whole, _ = trained
    folder = stopped / layout.CHECKPOINTS
    files = {
        "record": folder / "4" / checkpoints.RECORD,
        "measurements": stopped / layout.ATTEMPTS / "1" / measurements.FILE,
        **{f"arrays {step}": _largest(folder / str(step)) for step in (2, 4)},
    }
    for name in damaged:
        damage(files[name], "emptied")
    assert orders.run(stopped, stop_at=4).outcome == "preempted"
    note = status.read(stopped)["note"]
    assert "checkpoint 4 is set aside: " in note
    assert ("checkpoint 2 is set aside: " in note) == (start == 0)
    assert note.endswith(f"; goes on from step {start}")
    assert note.partition(";")[0] in capsys.readouterr().out  # a job's own goes to its log
    assert orders.run(stopped).outcome == "done"
    assert equality.trial_problems(stopped, whole) == []
    # What was set aside goes with the other checkpoints that nothing needs.
    assert os.listdir(folder) == ["6"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool"])
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


def _bytes_read():
    import tensorstore

    (metric,) = tensorstore.experimental_collect_matching_metrics(
        "/tensorstore/kvstore/file/bytes_read"
    )
    return metric["values"][0]["value"]


def _change_sum(folder, name):
    """Has a checkpoint's record tell another sum of an array, as a whole record does."""
    path = folder / checkpoints.RECORD
    record = layout.read_json(path)
    record.pop("sha256")
    record["sums"][name] ^= 1
    path.write_text(json.dumps({**record, "sha256": layout.digest(record)}))


def test_parameters_are_restored_without_the_optimizers_moments(tmp_path):
    """Fewer bytes are read, and what is read is checked as ever."""
    noise = np.random.default_rng(0).normal(size=(400, 100)).astype(np.float32)
    params = {"dense": {"kernel": jnp.asarray(noise)}}
    moments = {"mu": params, "nu": jax.tree.map(jnp.square, params)}
    model_state = {"batch_stats": {"mean": jnp.arange(3.0)}}
    state = train_step.TrainState(jnp.int32(7), params, model_state, moments, jnp.int32(-1))
    folder = tmp_path / layout.CHECKPOINTS
    # Shapes say where the arrays go: no second set of them is needed.
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here),
        (params, model_state),
    )
    store = checkpoints.Checkpoints(folder, _Trial)
    store.save(7, state, *PROGRESS)
    store.wait()
    restore = functools.partial(checkpoints.restore_parameters, _Trial, tmp_path, 7)
    before = _bytes_read()
    found, found_state = restore(*like)
    read = _bytes_read() - before
    assert noise.nbytes / 2 < read < 1.5 * noise.nbytes
    np.testing.assert_array_equal(found["dense"]["kernel"], noise)
    np.testing.assert_array_equal(found_state["batch_stats"]["mean"], np.arange(3.0))
    # The same store restores whole states afterwards.
    np.testing.assert_array_equal(store.restore(state)[1].optimizer["mu"]["dense"]["kernel"], noise)
    with pytest.raises(ValueError, match=r"is of another model: \.params\['dense'\]\['bias'\]"):
        restore({"dense": {"bias": noise}}, like[1])
    with pytest.raises(ValueError, match=r"is of another model: \.model_state"):
        restore(like[0])
    with pytest.raises(ValueError, match="has no checkpoint of step 8; it has 7"):
        checkpoints.restore_parameters(_Trial, tmp_path, 8, *like)
    _change_sum(folder / "7", ".optimizer['mu']['dense']['kernel']")
    restore(*like)
    _change_sum(folder / "7", ".params['dense']['kernel']")
    with pytest.raises(ValueError, match="params.*is not what was written"):
        restore(*like)
    assert (folder / "7").exists()
    assert store.restore(state) is None
    (problem,) = store.damages
    assert "is not what was written" in problem
    store.close()


@pytest.mark.parametrize(
    ("keeps", "trained", "finished"),
    [(1, ["5", "6"], ["6"]), (3, ["2", "4", "5", "6"], ["2", "4", "6"])],
)
def test_which_checkpoints_stay(folder, tmp_path, keeps, trained, finished):
    """While it trains the newest two, to resume from; those at evaluations, if more are kept."""
    keeping = type("Keeping", (_Trial,), {"keep_checkpoints": keeps})
    for step in (5, 6):  # another attempt for each
        store = checkpoints.Checkpoints(folder, keeping)
        assert store.restore(_state(0))[0] == {5: 4, 6: 5}[step]
        store.save(step, _state(step), *PROGRESS)
        store.close()
    assert sorted(os.listdir(folder)) == trained
    (folder / f"{checkpoints.DAMAGED}3").mkdir()
    checkpoints.keep_the_last(keeping, tmp_path)
    assert sorted(os.listdir(folder)) == finished
