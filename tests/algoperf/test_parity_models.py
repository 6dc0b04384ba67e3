"""Our models against AlgoPerf's, small; skips where AlgoPerf is not installed.

Full size and both versions' table: `python -m sweeps algoperf_parity`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import registry
from workloads.algoperf.parity import models, table_of_rows, variants, workload_pairs

# AlgoPerf's and TensorFlow's own.
pytestmark = pytest.mark.filterwarnings("ignore")


def check(rows):
    for row in rows:
        assert row.passed, row


@pytest.mark.parametrize("name", table_of_rows.WORKLOADS)
def test_the_full_size_tree_is_algoperfs(reference, name):
    check(models.shape_rows(name, reference))


@pytest.mark.parametrize("name", ["imagenet_vit_glu", "librispeech_conformer"])
def test_values_steps_and_dropout_are_algoperfs(reference, name):
    check(models.model_rows(name, reference, small=True))


@pytest.mark.parametrize("variant", ["standard", "diff_laser"])
def test_without_rounding_the_conformers_gradient_is_algoperfs(reference, variant):
    """In float64; float32's two gradients, each some 1e-5 wrong, show less."""
    check(models.double_rows("librispeech_conformer", variant, reference))
    assert jnp.ones(1).dtype == jnp.float32 == np.float32


def test_a_comparison_that_is_not_in_float64_is_refused():
    with pytest.raises(TypeError, match="'float32'.*wanted float64 alone"):
        models._check_precision({"a": np.ones(1)}, np.ones(1, np.float32))


@pytest.mark.parametrize("variant", ["laser+qk_norm", "diff_laser"])
def test_a_variant_is_the_same_in_algoperfs_model(reference, variant):
    check(variants.variant_rows("imagenet_vit", variant, reference))


def test_loss_functions_are_algoperfs(reference):
    check(models.loss_rows(reference))


def test_another_variant_is_not_the_same(reference):
    """The comparison has teeth: LASER in one model alone is seen."""
    laser = registry.get("laser")
    pair = workload_pairs.make("imagenet_vit", reference, variant=laser, small=True)
    plain = workload_pairs.make("imagenet_vit", reference, small=True)
    mixed = workload_pairs.Pair(pair.name, pair.ours, plain.theirs)
    params = workload_pairs.moved(
        pair.ours.initial(jax.random.key(0), *pair.examples())[0], jax.random.key(1)
    )
    both = mixed.outputs(params, {}, mixed.batch(size=64), jax.random.key(2), train=True)
    names = ("logits", "loss", "gradient")
    rows = list(workload_pairs.step_rows("mixed", names, *both, mixed.tolerances))
    assert not any(row.passed for row in rows)


def test_post_layer_norm_fails_in_algoperf_itself(reference):
    """Its second dropout calls a result (imagenet_jax/models.py): the workload cannot run."""
    theirs = reference.make_workload("imagenet_vit_post_ln")
    with pytest.raises(TypeError, match="not callable"):
        jax.eval_shape(theirs.init_model_fn, jax.random.PRNGKey(0))
