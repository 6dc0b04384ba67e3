"""The ViT: its numbers, and what each option changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import registry as variants
from workloads import registry
from workloads.base import dropout
from workloads.images import vit


def _small(**options):
    return vit.ViT(
        num_classes=5, patch_size=4, width=16, depth=2, mlp_dim=24, num_heads=2, **options
    )


@pytest.mark.parametrize(
    "options", [{}, {"use_glu": True}, {"use_map": True}, {"use_post_layer_norm": True}]
)
def test_forward_pass_against_plain_numpy(options):
    """Blocks written out in NumPy, from the same parameters."""
    model = _small(**options)
    images = np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype(np.float32)
    variables = model.init(jax.random.key(0), images)
    params = jax.tree.map(
        lambda leaf: np.asarray(jax.random.normal(jax.random.key(leaf.size), leaf.shape)) * 0.2,
        variables["params"],
    )
    got = model.apply({"params": params}, images)
    np.testing.assert_allclose(got, _reference(params, images, options), rtol=2e-4, atol=2e-5)


def _norm(x, p):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _attend(p, queries, keys):
    q, k, v = (
        np.einsum("bld,dhk->blhk", x, p[n]["kernel"]) + p[n]["bias"]
        for n, x in (("query", queries), ("key", keys), ("value", keys))
    )
    logits = np.einsum("bthk,bshk->bhts", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    heads = np.einsum("bhts,bshk->bthk", weights, v)
    return np.einsum("bthk,hkd->btd", heads, p["out"]["kernel"]) + p["out"]["bias"]


def _mlp(p, x, glu=False):
    hidden = _gelu(x @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"])
    if glu:
        hidden = hidden * (hidden @ p["Dense_1"]["kernel"] + p["Dense_1"]["bias"])
    last = p["Dense_2"] if glu else p["Dense_1"]
    return hidden @ last["kernel"] + last["bias"]


def _reference(params, images, options):
    patches = images.reshape(2, 2, 4, 2, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 4, 48)
    kernel = params["conv_patch_extract"]["kernel"].reshape(48, 16)
    x = patches @ kernel + params["conv_patch_extract"]["bias"]
    omega = 1 / 10_000 ** (np.arange(4) / 3)
    rows, columns = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    y, z = rows[:, None] * omega, columns[:, None] * omega
    x = x + np.concatenate([np.sin(z), np.cos(z), np.sin(y), np.cos(y)], axis=1)
    for layer in range(2):
        p = params["Transformer"][f"encoderblock_{layer}"]
        if options.get("use_post_layer_norm"):
            x = _norm(x + _attend(p["MultiHeadDotProductAttention_1"], x, x), p["LayerNorm_0"])
            x = _norm(x + _mlp(p["MlpBlock_3"], x), p["LayerNorm_2"])
            continue
        h = _norm(x, p["LayerNorm_0"])
        x = x + _attend(p["MultiHeadDotProductAttention_1"], h, h)
        x = x + _mlp(p["MlpBlock_3"], _norm(x, p["LayerNorm_2"]), options.get("use_glu", False))
    if not options.get("use_post_layer_norm"):
        x = _norm(x, params["Transformer"]["encoder_layernorm"])
    if options.get("use_map"):
        p = params["MAPHead_0"]
        probe = np.tile(p["probe"], (2, 1, 1))
        h = _attend(p["MultiHeadDotProductAttention_0"], probe, x)
        x = (h + _mlp(p["MlpBlock_0"], _norm(h, p["LayerNorm_0"])))[:, 0]
    else:
        x = x.mean(1)
    x = np.tanh(x @ params["pre_logits"]["kernel"] + params["pre_logits"]["bias"])
    return x @ params["head"]["kernel"] + params["head"]["bias"]


def test_variants_are_paired_by_their_initial_values():
    """The same seed gives every variant the same values in the leaves they share."""
    trees = [
        registry.make("digits_vit", variants.get(name)).init_model_fn(jax.random.key(3))[0]
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


def test_dropout_masks_are_decorrelated():
    """Neighbours, rows, and keys: correlations of 10^6 draws stay within 5 standard errors."""
    masks = [
        np.asarray(dropout.keep_mask(jax.random.key(seed), jnp.float32(0.5), (1000, 1000)), float)
        for seed in range(3)
    ]
    pairs = [(masks[0], masks[1]), (masks[1], masks[2])]
    for shift in (1, 2, 16, 64, 128, 999):
        pairs.append((masks[0][:, shift:], masks[0][:, :-shift]))
        pairs.append((masks[0][shift:], masks[0][:-shift]))
    for a, b in pairs:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(a.size)
    # Sums over rows spread as binomials do: neither too even nor clumped.
    spread = masks[0].sum(1).var() / 250
    assert 0.85 < spread < 1.15
