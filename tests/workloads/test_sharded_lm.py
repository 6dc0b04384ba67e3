"""Parameters and optimizer state divided over (data, fsdp, tensor), and tokens by context."""

import json

import jax
import numpy as np
import pytest

from tests.python_processes import start_python
from tests.workloads import short_training, small_text
from tests.workloads.conftest import result_of

MESHES = ((2, 2, 2), (1, 4, 2), (1, 2, 2, 2))


def _train(mesh, name="pydoc_lm", steps=5, microbatches=1, **options):
    """Some steps: losses with gradient norms, and the shapes of the first device's parts."""
    workload = small_text.make(
        name, "laser+qk_norm", scan_layers=True, remat=True, mesh=mesh, **options
    )
    batches = [workload.example_batch(8)] * steps
    compilations, state, losses = short_training.train(workload, batches, microbatches)
    return losses, _parts(state.params), _parts(state.optimizer), compilations


def measure():
    """Prints what `_train` gives for each mesh, and in parts; a BERT is compiled, too."""
    results = [_train(mesh, loss_chunk_tokens=12 * (len(mesh) > 3)) for mesh in MESHES]
    results.append(_train(MESHES[0], microbatches=2, loss_chunk_tokens=12))
    _train(MESHES[0], "pydoc_bert", 1)
    print(json.dumps(results))


def _parts(tree):
    """Returns [path, shape on the first device] of every leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        (jax.tree_util.keystr(path), leaf.addressable_shards[0].data.shape) for path, leaf in leaves
    ]


@pytest.fixture(scope="module")
def one_device():
    return _train((0, 1, 1))


@pytest.fixture(scope="module")
def eight_devices():
    """Returns what `_train` gives for each mesh, in one process with 8 forced CPU devices.

    Under 'in parts' from microbatches, with the loss in chunks, of the first mesh. What the
    compiler warned of is under 'warnings'; a BERT is compiled for that, too.
    """
    program = start_python(
        "from tests.workloads import test_sharded_lm as t; t.measure()", devices=8
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
