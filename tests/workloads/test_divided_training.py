"""Training divided over devices, and over processes, each with its share of a batch.

Parameters and optimizer state are divided over (data, fsdp, tensor), and tokens by context. Two
processes have the losses and metrics of one process with two devices: a speech model with the batch
divided over processes, a language model divided over them.
"""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest

from sweeps.distributed import process_group
from sweeps.launchers import local
from tests.python_processes import start_python
from tests.workloads import short_training, small_speech, small_text
from tests.workloads.conftest import result_of
from workloads.base import loader, sharding

MESHES = ((2, 2, 2), (1, 4, 2), (1, 2, 2, 2))


def _on_mesh(mesh, name="pydoc_lm", steps=5, microbatches=1, **options):
    """Some steps: losses with gradient norms, and the shapes of the first device's parts."""
    workload = small_text.make(
        name, "laser+qk_norm", scan_layers=True, remat=True, mesh=mesh, **options
    )
    batches = [workload.example_batch(8)] * steps
    compilations, state, losses = short_training.train(workload, batches, microbatches)
    return losses, _parts(state.params), _parts(state.optimizer), compilations


def measure_meshes():
    """Prints what `_on_mesh` gives for each mesh, and in parts; a BERT is compiled, too."""
    results = [_on_mesh(mesh, loss_chunk_tokens=12 * (len(mesh) > 3)) for mesh in MESHES]
    results.append(_on_mesh(MESHES[0], microbatches=2, loss_chunk_tokens=12))
    _on_mesh(MESHES[0], "pydoc_bert", 1)
    print(json.dumps(results))


def _parts(tree):
    """Returns [path, shape on the first device] of every leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        (jax.tree_util.keystr(path), leaf.addressable_shards[0].data.shape) for path, leaf in leaves
    ]


@pytest.fixture(scope="module")
def one_device():
    return _on_mesh((0, 1, 1))


@pytest.fixture(scope="module")
def eight_devices():
    """Returns what `_on_mesh` gives for each mesh, in one process with 8 forced CPU devices.

    Under 'in parts' from microbatches, with the loss in chunks, of the first mesh. What the
    compiler warned of is under 'warnings'; a BERT is compiled for that, too.
    """
    program = start_python(
        "from tests.workloads import test_divided_training as t; t.measure_meshes()", devices=8
    )
    results, errors = result_of(program)
    warnings = [line for line in errors.splitlines() if "rematerialization" in line]
    return {**dict(zip((*MESHES, "in parts"), results, strict=True)), "warnings": warnings}


@pytest.mark.slow
@pytest.mark.xdist_group("sharded_lm")
@pytest.mark.parametrize("run", [*MESHES, "in parts"])
def test_losses_are_those_of_one_device(one_device, eight_devices, run):
    """In parts: one sequence of 16 tokens a device at a time, and 12 of those in the loss.

    The loss is in chunks also where the tokens are divided.
    """
    np.testing.assert_allclose(eight_devices[run][0], one_device[0], rtol=2e-4)
    assert one_device[0][4][0] < one_device[0][0][0]
    assert eight_devices[run][3] == 1


@pytest.mark.slow
@pytest.mark.xdist_group("sharded_lm")
def test_no_array_is_gathered_for_want_of_a_way(eight_devices):
    """The partitioner says so where it gathers a whole array, as it did the embedding's gradient's.

    Language model and BERT, on the CPU's partitioner, which is that of accelerators.
    """
    assert eight_devices["warnings"] == []


@pytest.mark.slow
@pytest.mark.xdist_group("sharded_lm")
@pytest.mark.parametrize("mesh", MESHES)
def test_every_device_holds_its_part(eight_devices, mesh):
    """The embedding and all matrices are divided by fsdp · tensor, moments as parameters."""
    _, fsdp, tensor, *_ = mesh
    _, params, optimizer, _ = eight_devices[mesh]
    shapes = {path: tuple(shape) for path, shape in params}
    width = 16 // fsdp
    assert shapes["['embedding']"] == (64 // tensor, width)
    assert shapes["['layers']['attention']['query']['kernel']"] == (2, width, 4 // tensor, 8)
    assert shapes["['layers']['attention']['query_ln']['scale']"] == (2, 8)
    moments = [tuple(shape) for _, shape in optimizer if shape]
    assert sorted(moments) == sorted(2 * list(shapes.values()))


# --- rows of a batch, made without the others ---


def _noisy(record, generator):
    return {"tokens": record["tokens"] + generator.integers(0, 9, small_text.TINY.context)}


@pytest.mark.parametrize("make", [loader.train_batches, loader.eval_batches])
def test_rows_are_those_of_the_whole_batch(make):
    """Of the third batch of four, of nine examples in evaluations: one row, and three of zeros."""
    seed = {"seed": 3} if make is loader.train_batches else {}
    options = {"batch_size": 4, "transform": _noisy, **seed}
    spans = [None, slice(0, 2), slice(2, 3), slice(3, 4)]
    streams = [make(small_text.records("test"), rows=rows, **options) for rows in spans]
    for _ in range(3):
        whole, *parts = [next(stream) for stream in streams]
        for name, array in whole.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)
            assert {part[name].dtype for part in parts} == {array.dtype}
    for stream in streams:
        stream.close()


# --- two processes ---


def _train(workload, data_dir):
    """Two steps and an evaluation."""
    queue = workload._build_input_queue(0, "train", data_dir, 4)
    _, state, losses = short_training.train(workload, itertools.islice(queue, 2))
    metrics = workload._eval_model_on_split(
        "validation",
        workload.eval_batch_size,
        state.params,
        state.model_state,
        jax.random.key(0),
        data_dir,
    )
    return [*itertools.chain(*losses), *(metrics[name] for name in sorted(metrics))]


def measure(folder):
    """Prints the losses, gradient norms and metrics of each workload, by this process's group."""
    process_group.join()
    size = dataclasses.replace(small_text.TINY, layers=1)
    made = (
        small_text.make("pydoc_lm", "laser", size, mesh=(1, 2, 1)),
        small_speech.make(),
    )
    print(json.dumps([_train(workload, folder) for workload in made]))


@pytest.mark.nightly
def test_two_processes_train_as_one(tmp_path):
    """Within rounding: XLA may add up parts of a sum in another order across processes."""
    folder = small_speech.write(tmp_path)
    code = f"from tests.workloads import test_divided_training as t; t.measure({folder!r})"
    (port,) = local.free_ports(1)
    alone, _ = result_of(start_python(code, devices=2))
    two = [
        start_python(
            code,
            ATTNPERF_COORDINATOR=f"127.0.0.1:{port}",
            ATTNPERF_NUM_PROCESSES="2",
            ATTNPERF_PROCESS_ID=str(number),
        )
        for number in range(2)
    ]
    (first, _), (second, _) = map(result_of, two)
    assert first == second
    for ours, theirs in zip(first, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class _Chip:
    """A TPU's chip, as a mesh looks at it."""

    id: int
    process_index: int
    slice_index: int
    platform: str = "tpu"
    device_kind: str = "TPU v4"
    client: None = None


def test_data_alone_crosses_slices():
    """Processes of two slices come mixed; a group that shares parameters is of one slice."""
    chips = tuple(_Chip(number, number // 4, (number // 4) % 2) for number in range(16))
    groups = sharding.mesh((0, 4, 2), chips).devices.reshape(2, 8)
    assert [{chip.slice_index for chip in group} for group in groups] == [{0}, {1}]
    with pytest.raises(ValueError, match=r"groups of 16 devices in more than one of the 2 slices"):
        sharding.mesh((0, 16, 1), chips)
