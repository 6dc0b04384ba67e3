"""The real AlgoPerf's workloads with variants, its language model included; skips without it."""

import contextlib
import dataclasses

import jax
import numpy as np
import pytest

from attention import registry
from sweeps.algoperf import export
from tests.algoperf import small_models, tiny_data
from workloads import algoperf_specs, catalog
from workloads import registry as workload_registry
from workloads.algoperf import injected, preflight
from workloads.text.text_specs import TransformerSize

# AlgoPerf's libraries warn while they load; what they warn of is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")
WORKLOADS = tuple(algoperf_specs.INJECTION_POINTS)


def _types(installation, name, variant):
    """Traces init_model_fn without computing it; returns the shapes and types of parameters."""
    workload = injected.with_variant(installation.make_workload(name), name, registry.get(variant))
    with jax.disable_jit():
        jax.eval_shape(workload.init_model_fn, jax.random.PRNGKey(0))
    return workload.param_shapes, workload.model_params_types


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_leaf_of_a_variant_has_a_type(algoperf, name, monkeypatch):
    if name not in algoperf.module("algoperf.workloads.workloads").WORKLOADS:
        pytest.skip(f"{algoperf} has no {name}")
    jax_sharding_utils = algoperf.module("algoperf.jax_sharding_utils")
    # Placing arrays on devices needs arrays; here there are shapes only.
    monkeypatch.setattr(jax_sharding_utils, "replicate", lambda tree: tree)
    monkeypatch.setattr(jax_sharding_utils, "shard_along_batch_dim", lambda array: array)
    # Variants at full size take minutes; a leaf's type follows from its name.
    for change in list(small_models.small(algoperf)):
        monkeypatch.setattr(*change)
    accepted, trees = [], {}
    for variant in registry.names():
        with contextlib.suppress(ValueError):
            catalog.check_variant(f"algoperf:{name}", variant)
            accepted.append(variant)
    for variant in accepted:
        shapes, types = _types(algoperf, name, variant)
        assert len(jax.tree.leaves(shapes)) == len(jax.tree.leaves(types)), variant
        trees[variant] = jax.tree.structure(shapes)
    assert trees["laser"] == trees["standard"] == trees["laser+temp"]
    if "laser+per_dim_temp" in trees:
        assert trees["laser+per_dim_temp"] != trees["standard"]


def test_the_registry_and_the_runner_have_the_names_that_we_use(algoperf):
    registered = algoperf.module("algoperf.workloads.workloads").WORKLOADS
    assert {*WORKLOADS, *export._SCORED} <= {
        *registered,
        "finewebedu_lm",  # since 1.0
    }
    text = (algoperf.directory / "submission_runner.py").read_text()
    for name in (*preflight.FLAGS, "max_global_steps"):
        assert f"'{name}'" in text


LANGUAGE_MODEL = "finewebedu_lm"
LM_SETTINGS = {"_vocab_size": 64, "_emb_dim": 32, "_n_heads": 2, "_n_layers": 2, "_mlp_dim": 64}
# Of its mixed precision (ad28694), whose kernel for bfloat16 no CPU has.
FLOAT32 = {"_compute_dtype_str": "float32", "_output_dtype_str": "float32"}
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    pytest.importorskip("tensorflow")
    return tiny_data.prepare(tmp_path_factory.mktemp("lm") / "data", LANGUAGE_MODEL)


@pytest.fixture
def made(algoperf):
    """A function that makes the workload, small, with a variant or none."""
    if LANGUAGE_MODEL not in algoperf.module("algoperf.workloads.workloads").WORKLOADS:
        pytest.skip(f"{algoperf} has no {LANGUAGE_MODEL}: it is of 1.0")

    def make(variant=None):
        workload = algoperf.make_workload(LANGUAGE_MODEL)
        for name, value in (LM_SETTINGS | FLOAT32).items():
            if hasattr(workload, name):
                setattr(workload, name, value)
        if variant is not None:
            workload = injected.with_variant(workload, LANGUAGE_MODEL, registry.get(variant))
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
    small = dataclasses.replace(catalog.get(LANGUAGE_MODEL), model=size)
    monkeypatch.setitem(catalog.WORKLOADS, LANGUAGE_MODEL, small)
    ours = workload_registry.make(LANGUAGE_MODEL)
    start, _ = ours.init_model_fn(jax.random.PRNGKey(0))
    assert jax.tree.structure(start) == jax.tree.structure(params)
    assert jax.tree.all(jax.tree.map(np.array_equal, params, start))
    batch = ours.example_batch(2)
    # Away from the start, where attention is nearly uniform.
    moved = jax.tree.map(lambda leaf: 2 * leaf, params)
    wanted, logits = (
        np.asarray(jax.jit(lambda params, side=side: _logits(side, params, batch, algoperf))(moved))
        for side in (theirs, ours)
    )
    np.testing.assert_allclose(logits, wanted, atol=2e-5)
    assert np.abs(wanted).max() > 1
    losses = [side.loss_fn(batch["targets"], wanted)["summed"] for side in (theirs, ours)]
    np.testing.assert_allclose(*losses, rtol=1e-6)
