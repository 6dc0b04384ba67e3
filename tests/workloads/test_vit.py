"""The ViT: its numbers, and what each option changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import registry as variants
from tests.workloads import parameters
from workloads.base import dropout
from workloads.images import vit


def _small(**options):
    return vit.ViT(
        num_classes=5, patch_size=4, width=16, depth=2, mlp_dim=24, num_heads=2, **options
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {},
            [
                [3.15303, -0.66794, 0.84206, -0.3497, 0.29467],
                [1.1669, -0.4142, 2.23281, 1.838, -0.8789],
            ],
        ),
        (
            {"use_glu": True},
            [
                [2.00254, -1.35046, 0.53542, 1.09111, 1.54247],
                [1.68463, -1.54012, 0.3215, 1.07043, 1.69683],
            ],
        ),
        (
            {"use_map": True},
            [
                [-0.60078, 2.15121, 1.97128, 2.5346, 0.6087],
                [0.18434, 0.1615, 0.12327, 0.82411, 0.35191],
            ],
        ),
        (
            {"use_post_layer_norm": True},
            [
                [1.63913, -1.07549, 0.08969, 0.81409, -0.0879],
                [1.80017, -0.98545, 0.85499, -0.26409, -0.37626],
            ],
        ),
    ],
)
def test_logits_are_those_of_plain_numpy(options, expected):
    """As blocks written out in NumPy gave them; tests/algoperf/parity asks AlgoPerf's own model."""
    model = _small(**options)
    images = np.random.RandomState(1).standard_normal((2, 8, 8, 3)).astype(np.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)
    logits = jax.jit(model.apply)(parameters.drawn(shapes, 0.5), images)
    np.testing.assert_allclose(logits, expected, rtol=2e-4, atol=2e-5)


def test_variants_are_paired_by_their_initial_values():
    """The same seed gives every variant the same values in the leaves they share."""
    trees = [
        jax.jit(_small(variant=variants.get(name)).init)(jax.random.key(3), jnp.ones((1, 8, 8, 3)))
        for name in ("standard", "laser+qk_norm")
    ]
    plain, extended = (
        {jax.tree_util.keystr(p): leaf for p, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in trees
    )
    assert set(plain) < set(extended)
    for path, leaf in plain.items():
        np.testing.assert_array_equal(leaf, extended[path])


def test_dropout_rate_and_scale():
    module = dropout.Dropout()
    ones = jnp.ones((200, 500))

    @jax.jit
    def run(rate, key):
        return module.apply({}, ones, rate, False, rngs={"dropout": key})

    for rate in (0.0, 0.1, 0.5, 0.9):
        output = np.asarray(run(rate, jax.random.key(0)))
        assert set(np.unique(output)) <= {0.0, np.float32(1 / np.float32(1 - np.float32(rate)))}
        assert (output == 0).mean() == pytest.approx(rate, abs=4 * np.sqrt(rate * (1 - rate) / 1e5))
    np.testing.assert_array_equal(module.apply({}, ones, 0.5, True), ones)
    # As drawn when neighbours, rows and keys of 10^6 draws were found to be decorrelated.
    mask = dropout.keep_mask(jax.random.key(0), jnp.float32(0.5), (8, 16))
    assert np.packbits(np.asarray(mask)).tobytes().hex() == "ef5a9d8006ab6d0b5e3e41ddfe1eea5b"


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("rate", [1.0, 1 - 1e-9, 1 - 2**-24])
def test_dropout_of_all_has_no_gradient(rate, dtype):
    """1 − 1e-9 is 1 in float32; at 1 − 2^-24 none of so few entries is kept."""

    def total(inputs):
        key = {"dropout": jax.random.key(0)}
        return dropout.Dropout().apply({}, inputs, rate, False, rngs=key).sum()

    value, gradient = jax.value_and_grad(total)(jnp.ones((4, 5), dtype))
    assert value == 0
    np.testing.assert_array_equal(gradient, np.zeros((4, 5)))
