"""Our models against AlgoPerf's, small; skips where AlgoPerf is not installed.

Full size and both versions' table: `python -m workloads algoperf_parity`.
"""

import jax
import pytest

from attention import registry
from workloads.algoperf import installation, parity, parity_models, parity_pairs, parity_variants

try:
    ALGOPERF = parity.prepared()
except installation.AlgoPerfMissingError as missing:
    pytest.skip(f"AlgoPerf is not installed: {missing}", allow_module_level=True)

# AlgoPerf's and TensorFlow's own.
pytestmark = pytest.mark.filterwarnings("ignore")


def check(rows):
    for row in rows:
        assert row.passed, row


@pytest.mark.parametrize("name", [*parity_pairs.VITS, *parity_pairs.CONFORMERS])
def test_the_full_size_tree_is_algoperfs(name):
    check(parity_models.shape_rows(name, ALGOPERF))


@pytest.mark.parametrize("name", ["imagenet_vit_glu", "librispeech_conformer"])
def test_values_steps_and_dropout_are_algoperfs(name):
    check(parity_models.model_rows(name, ALGOPERF, small=True))


@pytest.mark.parametrize("variant", ["laser+qk_norm", "diff_laser"])
def test_a_variant_is_the_same_in_algoperfs_model(variant):
    check(parity_variants.variant_rows("imagenet_vit", variant, ALGOPERF))


def test_loss_functions_are_algoperfs():
    check(parity_models.loss_rows(ALGOPERF))


def test_another_variant_is_not_the_same():
    """The comparison has teeth: LASER in one model alone is seen."""
    laser = registry.get("laser")
    pair = parity_pairs.make("imagenet_vit", ALGOPERF, variant=laser, small=True)
    plain = parity_pairs.make("imagenet_vit", ALGOPERF, small=True)
    mixed = parity_pairs.Pair(pair.name, pair.ours, plain.theirs)
    params = parity_pairs.moved(
        pair.ours.initial(jax.random.key(0), *pair.examples())[0], jax.random.key(1)
    )
    rows = list(parity_variants._step_rows("mixed", mixed, params, {}, jax.random.key(2)))
    assert not any(row.passed for row in rows)


def test_post_layer_norm_fails_in_algoperf_itself():
    """Its second dropout calls a result (imagenet_jax/models.py): the workload cannot run."""
    theirs = ALGOPERF.make_workload("imagenet_vit_post_ln")
    with pytest.raises(TypeError, match="not callable"):
        jax.eval_shape(theirs.init_model_fn, jax.random.PRNGKey(0))
