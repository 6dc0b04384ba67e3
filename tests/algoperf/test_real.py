"""The real AlgoPerf's workloads with variants: trees, types, decoding. Skips where it is absent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import registry, table
from tests.algoperf import small_models
from workloads import catalog
from workloads.algoperf import injected, supported

# AlgoPerf's libraries warn while they load; what they warn of is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")
WORKLOADS = tuple(supported.SUPPORTED)


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
    trees = {}
    model = catalog.get(f"algoperf:{name}").support
    for variant in (name for name in registry.names() if name.count("+") < 2):
        if model.refusal(variant):
            continue
        try:
            shapes, types = _types(algoperf, name, variant)
        except ValueError as refused:
            if variant in table.PAPER_ROWS or "keeps its own softmax" not in str(refused):
                raise
            continue
        assert len(jax.tree.leaves(shapes)) == len(jax.tree.leaves(types)), variant
        trees[variant] = jax.tree.structure(shapes)
    assert trees["laser"] == trees["standard"] == trees["laser+temp"]
    if "laser+per_dim_temp" in trees:
        assert trees["laser+per_dim_temp"] != trees["standard"]


def test_post_ln_vit_still_crashes_in_algoperf_itself(algoperf):
    """The reason it is refused; when this fails, AlgoPerf has repaired it."""
    workload = algoperf.make_workload("imagenet_vit_post_ln")
    with pytest.raises(TypeError, match="not callable"):
        jax.eval_shape(workload.init_model_fn, jax.random.PRNGKey(0))


def test_a_checkpoint_still_cannot_be_restored(algoperf, tmp_path):
    """The reason --resume_last_run is refused; when this fails, AlgoPerf has repaired it."""
    checkpoints = algoperf.module("algoperf.checkpoint_utils")
    state, params = ({"step": jnp.zeros([])}, None), {"kernel": jnp.ones((2, 3))}
    results = [(1, {"validation/loss": 1.0})]
    checkpoints.save_checkpoint("jax", state, params, None, {}, results, 1, 0, str(tmp_path), False)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'items'"):
        checkpoints.maybe_restore_checkpoint(
            "jax", state, params, None, {}, [], 0, 0, str(tmp_path)
        )
    restored = checkpoints.replicate_checkpoint({"model_params": params}, ["model_params"])
    assert restored["model_params"]["kernel"].shape == (jax.local_device_count(), 2, 3)


@pytest.mark.parametrize("variant", ["standard", "laser", "laser+per_dim_temp+qk_norm"])
def test_wmt_evaluates_and_decodes_with_the_variant(algoperf, monkeypatch, variant):
    """Cached decoding step by step: test_injected.py."""
    spec = algoperf.module("algoperf.spec")
    for change in list(small_models.small(algoperf)):
        monkeypatch.setattr(*change)
    workload = injected.with_variant(algoperf.make_workload("wmt"), "wmt", registry.get(variant))
    params, _ = workload.init_model_fn(jax.random.PRNGKey(0))
    shift = lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape)  # noqa: E731
    params = jax.tree.map(shift, params)
    inputs = jnp.array([[3, 4, 5, 2, 0], [7, 6, 2, 0, 0]])
    targets = jnp.array([[5, 9, 4, 8, 2], [4, 3, 10, 6, 2]])
    whole, _ = workload.model_fn(
        params,
        {"inputs": inputs, "targets": targets},
        None,
        spec.ForwardPassMode.EVAL,
        jax.random.PRNGKey(0),
        update_batch_norm=False,
        dropout_rate=0.0,
    )
    weights = jnp.ones(targets.shape)
    batch = {"inputs": inputs, "targets": targets, "weights": weights}
    wanted = workload.compute_weighted_cross_entropy(whole, targets, weights, 0.0)["summed"]
    for _ in range(2):  # traced, then from the cache
        np.testing.assert_allclose(workload.eval_step(params, batch)["loss"], wanted, rtol=1e-5)
    decoded = workload.predict_step(inputs, params, workload.initialize_cache(inputs, 5), 2, 5)
    assert decoded.shape == (2, 4)
