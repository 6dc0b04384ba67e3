"""Parameters and optimizer state divided over (data, fsdp, tensor): same losses, less memory."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from attention import registry as variants
from sweeps.training import train_step
from workloads import catalog
from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.text import costs, language_models
from workloads.text.specs import SIZES, TransformerSize

TINY = TransformerSize(2, 16, 32, 4, 8, vocabulary=64, context=16)
POINT = {
    "learning_rate": 1e-2, "one_minus_beta1": 0.1, "beta2": 0.99, "epsilon": 1e-8,
    "weight_decay": 0.1, "label_smoothing": 0.1, "dropout_rate": 0.1, "grad_clip": np.inf,
    "warmup_steps": 1.0, "step_hint": 10.0,
}  # fmt: skip


def _train(mesh, make=language_models.LMWorkload, steps=5, microbatches=1, **options):
    """Some steps: losses with gradient norms, and the shapes of the first device's parts."""
    options = Options(scan_layers=True, remat=True, mesh=mesh, **options)
    workload = make(
        catalog.get("pydoc_lm"), variants.get("laser+qk_norm"), options, TINY, Sizes(8, 8, 8, 8, 8)
    )
    step_function = train_step.TrainStep(workload, "adamw", microbatches)
    state = step_function.first_state(0)
    scalars = {name: jax.numpy.float32(value) for name, value in POINT.items()}
    key, batch = train_step.seed_key(0, train_step.DROPOUT), workload.example_batch(8)
    losses = []
    for _ in range(steps):
        update = step_function.compile(state, batch, scalars, key)
        state, measured = update(state, batch, scalars, key)
        losses.append((float(measured.loss), float(measured.grad_norm)))
    return losses, _parts(state.params), _parts(state.optimizer), step_function.compilations


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
    here = pathlib.Path(__file__).resolve()
    code = (
        f"import sys, json; sys.path.insert(0, {str(here.parent)!r}); import test_sharded_lm as t;"
        "print('RESULT', json.dumps([t._train(mesh) for mesh in ((2, 2, 2), (1, 4, 2))]));"
        "in_parts = t._train((2, 2, 2), microbatches=2, loss_chunk_tokens=12);"
        "print('PARTS', json.dumps(in_parts));"
        "t._train((2, 2, 2), t.language_models.BertWorkload, 1)"
    )
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    environment = {
        **os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(here.parents[2])
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    return {
        **dict(zip(((2, 2, 2), (1, 4, 2)), json.loads(lines["RESULT"]), strict=True)),
        "in parts": json.loads(lines["PARTS"]),
        "warnings": [line for line in done.stderr.splitlines() if "rematerialization" in line],
    }


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(2, 2, 2), (1, 4, 2)])
def test_losses_are_those_of_one_device(one_device, eight_devices, mesh):
    np.testing.assert_allclose(eight_devices[mesh][0], one_device[0], rtol=2e-4)
    assert one_device[0][4][0] < one_device[0][0][0]
    assert eight_devices[mesh][3] == 1


@pytest.mark.slow
def test_microbatches_and_chunks_change_nothing(one_device, eight_devices):
    """One sequence of 16 tokens a device at a time, and 12 of those in the loss."""
    np.testing.assert_allclose(eight_devices["in parts"][0], one_device[0], rtol=2e-4)


@pytest.mark.slow
def test_no_array_is_gathered_for_want_of_a_way(eight_devices):
    """The partitioner says so where it gathers a whole array, as it did the embedding's gradient's.

    Language model and BERT, on the CPU's partitioner, which is that of accelerators.
    """
    assert eight_devices["warnings"] == []


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(2, 2, 2), (1, 4, 2)])
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
@pytest.mark.parametrize("mesh", [(2, 2, 2), (1, 4, 2)])
def test_costs_count_what_devices_hold(eight_devices, mesh, monkeypatch):
    monkeypatch.setitem(SIZES, "tiny_lm", TINY)
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
