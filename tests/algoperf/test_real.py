"""The real AlgoPerf's workloads with variants: trees and types. Skips where it is absent."""

import contextlib

import jax
import pytest

from attention import registry
from sweeps.algoperf import export
from tests.algoperf import small_models
from workloads import algoperf_specs, catalog
from workloads.algoperf import injected, preflight

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
