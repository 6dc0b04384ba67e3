"""AlgoPerf's language model, since its version 1.0: the real workload object, made small."""

import dataclasses

import jax
import numpy as np
import pytest

from attention import registry
from tests.algoperf import tiny_data
from workloads import catalog
from workloads import registry as workload_registry
from workloads.algoperf import injected
from workloads.text.text_specs import TransformerSize

NAME = "finewebedu_lm"
SMALL = {"_vocab_size": 64, "_emb_dim": 32, "_n_heads": 2, "_n_layers": 2, "_mlp_dim": 64}
# Of its mixed precision (ad28694), whose kernel for bfloat16 no CPU has.
FLOAT32 = {"_compute_dtype_str": "float32", "_output_dtype_str": "float32"}
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    pytest.importorskip("tensorflow")
    return tiny_data.prepare(tmp_path_factory.mktemp("lm") / "data", NAME)


@pytest.fixture
def made(algoperf):
    """A function that makes the workload, small, with a variant or none."""
    if NAME not in algoperf.module("algoperf.workloads.workloads").WORKLOADS:
        pytest.skip(f"{algoperf} has no {NAME}: it is of 1.0")

    def make(variant=None):
        workload = algoperf.make_workload(NAME)
        for name, value in (SMALL | FLOAT32).items():
            if hasattr(workload, name):
                setattr(workload, name, value)
        if variant is not None:
            workload = injected.with_variant(workload, NAME, registry.get(variant))
        return workload, workload.init_model_fn(jax.random.PRNGKey(0))[0]

    return make


def _logits(workload, params, batch, algoperf):
    mode = algoperf.module("algoperf.spec").ForwardPassMode.TRAIN
    key = jax.random.PRNGKey(1)
    return workload.model_fn(params, batch, None, mode, key, False)[0].astype("float32")


def test_standard_is_the_host_and_laser_has_its_tree(algoperf, made, data):
    plain, params = made()
    batch = next(plain._build_input_queue(jax.random.PRNGKey(2), "train", str(data), 2))
    wanted = _logits(plain, params, batch, algoperf)
    for variant, apart in (("standard", False), ("laser", True), ("standard+per_dim_temp", False)):
        ours, start = made(variant)
        if "+" not in variant:
            assert jax.tree.all(jax.tree.map(np.array_equal, params, start))
        difference = np.abs(_logits(ours, start, batch, algoperf) - wanted).max()
        assert (difference > 1e-3) if apart else (difference < TOLERANCE), variant


def test_our_own_workload_has_its_values(algoperf, made, monkeypatch):
    """Initial values bit for bit, logits and loss; its MLP is 256 wide at the least.

    Both compiled: angles of 1,023 radians round differently where each operation is a program.
    """
    theirs, params = made()
    size = TransformerSize(2, 32, 256, 2, 16, 64, 1024)
    small = dataclasses.replace(catalog.get(NAME), model=size)
    monkeypatch.setitem(catalog.WORKLOADS, NAME, small)
    ours = workload_registry.make(NAME)
    start, _ = ours.init_model_fn(jax.random.PRNGKey(0))
    assert jax.tree.structure(start) == jax.tree.structure(params)
    assert jax.tree.all(jax.tree.map(np.array_equal, params, start))
    batch = ours.example_batch(2)
    # Away from the start, where attention is nearly uniform.
    moved = jax.tree.map(lambda leaf: 2 * leaf, params)
    wanted, logits = (
        np.asarray(jax.jit(lambda params, one=one: _logits(one, params, batch, algoperf))(moved))
        for one in (theirs, ours)
    )
    np.testing.assert_allclose(logits, wanted, atol=2e-5)
    assert np.abs(wanted).max() > 1
    losses = [one.loss_fn(batch["targets"], wanted)["summed"] for one in (theirs, ours)]
    np.testing.assert_allclose(*losses, rtol=1e-6)
