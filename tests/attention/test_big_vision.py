"""big_vision's own ViT with variants; skips where there is no checkout.

ATTNPERF_BIG_VISION_DIR names the checkout. big_vision needs tensorflow and einops beside ours.
"""

import os
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import inject, registry

CHECKOUT = os.environ.get("ATTNPERF_BIG_VISION_DIR")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # big_vision's and its libraries' own
    pytest.mark.slow,
    pytest.mark.skipif(not CHECKOUT, reason="ATTNPERF_BIG_VISION_DIR names no checkout"),
]
DEPTH = 3
BLOCK = "Transformer/encoderblock{}/MultiHeadDotProductAttention_0"


@pytest.fixture(scope="module")
def vit():
    sys.path.insert(0, str(CHECKOUT))
    try:
        from big_vision.models import vit as module
    finally:
        sys.path.remove(str(CHECKOUT))
    return module


def _layer(path):
    """Returns a block's index; the blocks of a loop and the pooling head are given the first."""
    return int((re.search("encoderblock_([0-9]+)", path) or ["", "0"])[1])


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("name", ["standard", "laser+gate+qk_norm", "diff"])
def test_every_layer_of_its_vit_runs_the_variant(vit, name, scan):
    """Blocks and the pooling head; `standard` gives the model's own numbers."""
    model = vit.Model(
        num_classes=5, patch_size=(4, 4), width=16, depth=DEPTH, mlp_dim=32, num_heads=4,
        pool_type="map", scan=scan,
    )  # fmt: skip
    variant, images = registry.get(name), jnp.asarray(np.random.default_rng(0).random((2, 8, 8, 3)))

    def loss(params, injected):
        if not injected:
            return jnp.sum(model.apply({"params": params}, images)[0] ** 2)
        with inject.injected(variant, layer=_layer):
            return jnp.sum(model.apply({"params": params}, images)[0] ** 2)

    with inject.injected(variant, layer=_layer) as injection:
        params = model.init(jax.random.key(0), images)["params"]
    blocks = [BLOCK.format("")] if scan else [BLOCK.format(f"_{n}") for n in range(DEPTH)]
    assert injection.layers == (*blocks, "MAPHead_0/MultiHeadDotProductAttention_0")
    # The classifier starts at zero, and nothing before it would have a gradient.
    params["head"] = jax.tree.map(lambda leaf: jnp.ones_like(leaf) / 16, params["head"])
    value, gradient = jax.jit(jax.value_and_grad(loss), static_argnums=1)(params, True)
    leaves = jax.tree_util.tree_leaves_with_path(gradient)
    learned = [(path, leaf) for path, leaf in leaves if "gate" in jax.tree_util.keystr(path)]
    assert len(learned) == name.count("gate") * len(injection.layers)
    assert all(np.any(leaf) for _, leaf in learned)
    if name == "standard":
        np.testing.assert_allclose(value, loss(params, False), rtol=1e-5)
