"""Parameters and optimizer state divided over (data, fsdp, tensor): same losses, less memory."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

from attention import registry as variants
from tests.workloads import short_training, small_text
from tests.workloads.conftest import result_of, start_python
from workloads.base.options import Options
from workloads.text import costs
from workloads.text.specs import SIZES

MESHES = ((2, 2, 2), (1, 4, 2))


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
    results = [_train(mesh) for mesh in MESHES]
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
@pytest.mark.parametrize("run", [*MESHES, "in parts"])
def test_losses_are_those_of_one_device(one_device, eight_devices, run):
    """In parts: one sequence of 16 tokens a device at a time, and 12 of those in the loss."""
    np.testing.assert_allclose(eight_devices[run][0], one_device[0], rtol=2e-4)
    assert one_device[0][4][0] < one_device[0][0][0]
    assert eight_devices[run][3] == 1


@pytest.mark.slow
def test_no_array_is_gathered_for_want_of_a_way(eight_devices):
    """The partitioner says so where it gathers a whole array, as it did the embedding's gradient's.

    Language model and BERT, on the CPU's partitioner, which is that of accelerators.
    """
    assert eight_devices["warnings"] == []


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_every_device_holds_its_part(eight_devices, mesh):
    """The embedding and all matrices are divided by fsdp · tensor, moments as parameters."""
    _, fsdp, tensor = mesh
    _, params, optimizer, _ = eight_devices[mesh]
    shapes = {path: tuple(shape) for path, shape in params}
    width = 16 // fsdp
    assert shapes["['embedding']"] == (64 // tensor, width)
    assert shapes["['layers']['attention']['query']['kernel']"] == (2, width, 4 // tensor, 8)
    assert shapes["['layers']['attention']['query_ln']['scale']"] == (2, 8)
    moments = [tuple(shape) for _, shape in optimizer if shape]
    assert sorted(moments) == sorted(2 * list(shapes.values()))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_costs_count_what_devices_hold(eight_devices, mesh, monkeypatch):
    monkeypatch.setitem(SIZES, "tiny_lm", small_text.TINY)
    parts = costs.per_device(
        "tiny_lm",
        Options(scan_layers=True, remat=True, mesh=mesh),
        batch_size=8,
        devices=8,
        variant=variants.get("laser+qk_norm"),
    )["memory"]
    held = 4 * sum(int(np.prod(shape)) for _, shape in eight_devices[mesh][1])
    assert (parts["parameters"], parts["moments"], parts["gradients"]) == (held, 2 * held, held)


def test_memory_of_the_large_models():
    """By hand: 2.2 B parameters over 256 devices, all matrices divided, norms whole."""
    options = Options("bfloat16", scan_layers=True, remat=True, mesh=(1, 256, 1))
    count = functools.partial(costs.per_device, "c4_lm_2b", batch_size=1024, devices=256)
    parts = count(options)["memory"]
    norms = 65 * 2048
    assert parts["parameters"] == 4 * ((2_213_152_768 - norms) // 256 + norms)
    # 32 residuals of 4 sequences of 1024 tokens, width 2048, 2 bytes, and one block's inside.
    block = 4096 * 2 * (8 * 2048 + 8 * 4096 + 4 * 8192)
    assert (parts["kept"], parts["block"]) == (32 * 4096 * 2048 * 2, block)
    assert parts["scores"] == 4096 * 8 * 1024 * 4
    assert parts["logits"] == 4 * 4096 * 32_000
    assert parts["gathered"] == 2 * (4 * 2048 * 4096 + 2 * 2048 * 8192 + 32_000 * 2048)
    chunked = count(dataclasses.replace(options, loss_chunk_tokens=2048))["memory"]
    assert chunked["logits"] == 4 * 2048 * 32_000 + 4 * 32_000 * 2048
    assert count(Options("bfloat16", mesh=(1, 256, 1)))["memory"]["kept"] == 32 * block
    assert count(options, keeps_scores=False)["memory"]["scores"] == 0
    # Two microbatches: half of what a batch keeps, and the sum of gradients.
    halves = count(options, microbatches=2)["memory"]
    assert halves["kept"] == parts["kept"] / 2
    assert halves["gradients"] == 2 * parts["gradients"]


def test_work_of_a_large_model():
    """FLOP against the model's own: remat makes 8 of 6; a causal kernel half of the scores'."""
    options = Options("bfloat16", scan_layers=True, remat=True, mesh=(0, 8, 1))
    count = functools.partial(costs.per_device, "c4_lm", batch_size=1024, devices=64)
    size = SIZES["c4_lm"]
    tokens = 16 * 1024
    layers = 32 * (4 * 1024 * 1024 + 2 * 1024 * 2048)
    work = count(options)["work"]
    assert work["products"] == tokens * (8 * layers + 6 * 32_000 * 1024)
    assert work["score_products"] == tokens * 16 * 32 * 8 * 128 * 1024
    plain = count(dataclasses.replace(options, remat=False))["work"]
    norms = 6 * 65 * 1024 * tokens
    model = size.flops() * 16 - norms
    assert plain["products"] + plain["score_products"] == pytest.approx(model)
    on_chip = count(options, keeps_scores=False)["work"]
    assert on_chip["kernel_products"] == work["score_products"] / 2
    assert (on_chip["score_products"], work["kernel_products"]) == (0, 0)
    assert (on_chip["score_bytes"], work["score_bytes"]) == (0, 32 * tokens * 4 * 8 * 1024)
    both = count(options, variant=variants.get("diff"))["work"]
    assert both["score_bytes"] == 2 * work["score_bytes"]
    # What fsdp collects, it collects for every microbatch.
    again = count(options, microbatches=4)["work"]
    assert again["gathered_bytes"] == 4 * work["gathered_bytes"] == 8 * (layers + 32_000 * 1024)
    assert again["products"] == work["products"]


@pytest.mark.parametrize(
    ("name", "mesh", "batch_size", "message"),
    [
        ("digits_vit", (0, 1, 1), 8, "'digits_vit' is no Transformer workload"),
        ("c4_lm", (3, 1, 1), 8, "does not fit the 8 device"),
        ("c4_lm", (8, 1, 1), 12, "batch_size 12 cannot be divided over 8 devices"),
        ("c4_lm_8b", (1, 1, 32), 32, "cannot be divided over 32 devices of mesh axis 'tensor'"),
    ],
)
def test_costs_refuse(name, mesh, batch_size, message):
    devices = 32 if mesh[2] == 32 else 8
    with pytest.raises(ValueError, match=message):
        costs.per_device(name, Options(mesh=mesh), batch_size=batch_size, devices=devices)
