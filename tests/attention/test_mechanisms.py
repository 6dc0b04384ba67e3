"""Sigmoid attention, soft-capped logits, sinks, pairs of heads: figures by hand and laws."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attention import norms, probe, registry, table
from attention.masks import Bias
from attention.mixers import head_pairs

LOWEST = jnp.finfo(jnp.float32).min
T, S, H, D = 5, 6, 2, 4


def _qkv(dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(T, H, D), (S, H, D), (S, H, D)]
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


@functools.partial(jax.jit, static_argnums=0, static_argnames=("is_causal", "dropout_rate"))
def _run(variant, sink, *qkv, **settings):
    """Returns a variant's output; its sinks' logits are `sink`."""
    params = {"params": {} if sink is None else {"sink": {"scale": jnp.asarray(sink)}}}
    return Host(variant).apply(params, *qkv, **settings)


class Host(nn.Module):
    """A place for the learned leaves of a variant that needs no depth."""

    variant: object

    @nn.compact
    def __call__(self, query, key, value, **settings):
        return self.variant(query, key, value, **settings)


def test_softcap_comes_before_bias_and_mask_and_after_the_temperature():
    """cap·tanh(logit/(τ·cap)) + bias, by NumPy."""
    query, key, value = _qkv()
    bias = jnp.asarray(np.random.default_rng(2).standard_normal((H, 1, S)), jnp.float32)
    mask = np.arange(S) < 4
    variant = registry.get("standard+softcap+temp", cap=0.7, tau=0.5)
    output = _run(variant, None, query, key, value, bias=bias, mask=mask)
    logits = np.einsum("thd,shd->hts", query, key) / np.sqrt(D) / 0.5
    logits = np.where(mask, 0.7 * np.tanh(logits / 0.7) + bias, -np.inf)
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = np.einsum("hts,shd->thd", weights, value)
    np.testing.assert_allclose(output, expected, atol=1e-6)


def test_sink_by_hand():
    """One key of logit 0, value ln 3, and a sink of logit 0: ½·ln 3, and log(½·3 + ½) = ln 2."""
    query = key = jnp.zeros((1, 1, 1))
    value = jnp.full((1, 1, 1), np.log(3.0), jnp.float32)
    for name, expected in (("standard+sink", np.log(3) / 2), ("laser+sink", np.log(2))):
        output = _run(registry.get(name), [0.0], query, key, value)
        assert float(output[0, 0, 0]) == pytest.approx(expected, rel=1e-6)


def test_weights_of_a_sink_are_observed_last():
    query, key, value = _qkv()
    params = {"params": {"sink": {"scale": jnp.asarray([0.5, -1.0])}}}
    with probe.probed() as seen:
        Host(registry.get("laser+sink")).apply(params, query, key, value)
    weights = np.asarray(seen.layers[0].weights())
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    logits = np.einsum("thd,shd->hts", query, key) / np.sqrt(D)
    sink = np.exp([0.5, -1.0])[:, None]
    np.testing.assert_allclose(weights[..., S], sink / (np.exp(logits).sum(-1) + sink), rtol=1e-5)


HIDING = {
    "mask": lambda seen: {"mask": seen},
    "columns": lambda seen: {
        "bias": Bias(column=jnp.where(seen[2], 0, -1e9)[None].repeat(H, 0)),
        "mask": seen.any(-1)[:, None],
    },
    "a sum": lambda seen: {
        "bias": Bias(
            dense=jnp.where(seen, 0, -3e3).at[3].set(-6e3),
            row=jnp.full((H, T), 7e3),
            column=jnp.where(seen[2], 4e3, -3e3)[None].repeat(H, 0),
        )
    },
    "lowest": lambda seen: {"bias": jnp.where(seen, 0, LOWEST)},
    "-inf": lambda seen: {"bias": jnp.where(seen, 0, -jnp.inf)},
    "lowest in float16": lambda seen: {
        "bias": jnp.where(seen, 0, jnp.finfo(jnp.float16).min).astype(jnp.float16)
    },
}


# What libraries add to the logits of a hidden key: BERT, GPT-NeoX, T5, Lingvo; and float16's lowest
# number, which a cast leaves as it is.
CUSTOMARY = {
    "float32": (-1e4, -1e4 + 3, -1e9, -1e10, -65504.0, -0.7 * 3.4e38, LOWEST, -jnp.inf),
    "bfloat16": (-1e4, -1e9, jnp.finfo(jnp.bfloat16).min),
    "float16": (-1e4, -0.7 * 65504, -65504.0),
}


@pytest.mark.parametrize("name", ["standard", "laser", "laser+sink", "sigmoid"])
def test_a_customary_bias_hides_as_a_mask_does(name):
    """Values 120 above the visible ones are beyond LASER's window; gradients of one bias."""
    query, key, value = _qkv()
    value = value.at[4:].add(120.0)
    seen = np.ones((T, S), bool)
    seen[:, 4:] = seen[3] = False
    host = Host(registry.get(name))
    params = host.init(jax.random.key(0), query, key, value)

    def biased(low, dtype, *qkv):
        return host.apply(params, *qkv, bias=jnp.where(seen, 0, low).astype(dtype))

    expected = host.apply(params, query, key, value, mask=seen)
    for dtype, lows in CUSTOMARY.items():
        for low in lows:
            output = biased(low, dtype, query, key, value)
            np.testing.assert_allclose(output, expected, atol=2e-6, err_msg=f"{low} {dtype}")
    gradient = jax.grad(lambda value: biased(-1e4, "float32", query, key, value).sum())(value)
    assert not gradient[4:].any()
    assert gradient[:4].any()


@pytest.mark.parametrize("name", ["standard", "laser", "sigmoid"])
def test_a_bias_of_nan_hides_nothing(name):
    """A model that diverged shows it: a row of hidden keys would return 0."""
    query, key, value = _qkv()
    output = registry.get(name)(query, key, value, bias=jnp.full((T, S), jnp.nan).at[0].set(0.0))
    assert np.isfinite(output[0]).all()
    assert np.isnan(output[1:]).all()


def test_a_large_bias_that_is_no_mask_stays_a_bias():
    """ALiBi's steepest slope over 8,000 positions; every key of a row alike changes nothing."""
    query, key, value = _qkv()
    variant = registry.get("laser")
    shifted = variant(query, key, value, bias=jnp.full((T, 1), -4000.0))
    np.testing.assert_allclose(shifted, variant(query, key, value), atol=2e-3)
    for kernel, low in itertools.product(("xla", "jax_xla"), (-4000.0, -1e9, -jnp.inf)):
        variant = registry.get("standard", kernel=kernel)
        rows = variant(query, key, value, bias=Bias(row=jnp.full((H, T), low)))
        np.testing.assert_allclose(rows, variant(query, key, value), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *[("laser+sink", kind) for kind in HIDING],
        *[("laser", kind) for kind in ("mask", "columns", "a sum")],
        *[("sigmoid", kind) for kind in ("mask", "a sum", "-inf")],
        ("softpick", "columns"),
        ("laser+sink+softcap", "lowest in float16"),
    ],
)
def test_what_is_hidden_gets_nothing(name, kind):
    """Rows that see nothing return 0; hidden keys have no gradient, and may be anything."""
    query, key, value = _qkv()
    key, value = key.at[5].set(jnp.nan), value.at[5].set(jnp.inf)
    seen = np.ones((T, S), bool)
    seen[:, 5] = seen[3] = False
    variant, sinks = registry.get(name), jnp.asarray([0.3, 2.0]) if "sink" in name else None
    settings = HIDING[kind](seen)
    output, pullback = jax.vjp(lambda *a: _run(variant, sinks, *a, **settings), query, key, value)
    query_bar, key_bar, value_bar = pullback(jnp.ones_like(output))
    for array in (output, query_bar, key_bar, value_bar):
        assert np.isfinite(array).all()
    np.testing.assert_allclose(output[3], 0, atol=1e-7)
    assert np.abs(output[2]).max() > 1e-3
    assert not np.asarray(query_bar)[3].any()
    assert not np.asarray(key_bar)[5].any()
    assert not np.asarray(value_bar)[5].any()


def test_dropout_falls_on_weights_and_on_the_sink():
    """Σ m·a·v and log(Σ m·a·exp(v) + m_sink·a_sink), from the mask that is drawn."""
    query, key, value = _qkv()
    rng, sinks = jax.random.key(3), np.array([0.3, -0.4])
    settings = {"dropout_rng": rng, "dropout_rate": 0.5}
    logits = np.einsum("thd,shd->hts", query, key) / np.sqrt(D)
    keep = np.asarray(jax.random.bernoulli(rng, 0.5, (1, T, S)), np.float64) / 0.5
    weights = keep / (1 + S * np.exp(-logits))
    expected = np.einsum("hts,shd->thd", weights, value)
    output = _run(registry.get("sigmoid"), None, query, key, value, **settings)
    np.testing.assert_allclose(output, expected, atol=1e-6)
    keep = np.asarray(jax.random.bernoulli(rng, 0.5, (1, T, S + 1)), np.float64) / 0.5
    terms = np.exp(np.concatenate([logits, np.broadcast_to(sinks[:, None, None], (H, T, 1))], -1))
    weights = keep * terms / terms.sum(-1, keepdims=True)
    padded = np.concatenate([value, np.zeros((1, H, D))])
    sums = np.einsum("hts,shd->thd", weights, np.exp(padded))
    output = _run(registry.get("laser+sink"), sinks, query, key, value, **settings)
    np.testing.assert_allclose(output, np.log(np.where(sums > 0, sums, 1)), atol=3e-6)


def _pair(first=0.0):
    """Returns parameters of a pair's λ = e^first − e⁰ + 0.2 in layer 0."""
    vectors = {f"scale_{name}": jnp.zeros(D) for name in ("q1", "k1", "q2", "k2")}
    vectors["scale_q1"] = vectors["scale_k1"].at[0].set(first)
    vectors["scale_k1"] = vectors["scale_k1"].at[0].set(1.0)
    return {"diff_lambda": vectors}


def test_each_map_of_a_pair_has_its_own_sink_mask_and_bias():
    """Without the head norm: head 0 with its own minus λ times head 1 with its own."""
    query, key, value = _qkv()
    rng, sinks = np.random.default_rng(1), jnp.asarray([0.7, -0.4])
    bias = jnp.asarray(rng.standard_normal((H, 1, S)), jnp.float32)
    mask = rng.random((H, T, S)) < 0.7
    pair = jnp.concatenate([value[:, :1], value[:, 1:]], -1)
    both = [
        _run(
            registry.get("laser+sink"),
            sinks[h],
            *(query[:, h], key[:, h], pair),
            bias=bias[h],
            mask=mask[h],
        )
        for h in (slice(0, 1), slice(1, 2))
    ]
    host = Host(registry.get("diff_laser+sink", head_norm=False))
    params = {"params": {"sink": {"scale": sinks}, **_pair()}}
    output = host.apply(params, query, key, value, layer=0, bias=bias, mask=mask)
    np.testing.assert_allclose(output.reshape(T, 1, 2 * D), both[0] - 0.2 * both[1], atol=2e-6)


def test_dropout_shares_its_mask_within_a_pair_when_broadcast():
    """Equal maps and λ = 1 cancel while both lose the same keys; drawn by each, they do not."""
    query, key, value = _qkv()
    query, key = (jnp.repeat(array[:, :1], H, axis=1) for array in (query, key))
    host = Host(registry.get("diff", head_norm=False))
    settings = {"layer": 0, "dropout_rng": jax.random.key(0), "dropout_rate": 0.5}
    run = functools.partial(
        host.apply, {"params": _pair(jnp.log(1.8))}, query, key, value, **settings
    )
    np.testing.assert_allclose(run(), 0.0, atol=1e-6)
    assert np.abs(run(broadcast_dropout=False)).max() > 0.1


@pytest.mark.parametrize("mixer", table.DIFF_ROWS)
def test_a_library_kernel_serves_values_of_half_the_size(mixer):
    query, key, value = _qkv()
    outputs = [
        Host(registry.get(mixer, kernel=kernel, head_norm=False)).apply(
            {"params": _pair()}, query, key, value[..., : D // 2], layer=1
        )
        for kernel in ("xla", "jax_xla")
    ]
    np.testing.assert_allclose(*outputs, atol=2e-6)


def test_lambda_init_by_hand():
    """0.8 − 0.6·exp(−0.3·depth): 0.2 in the first layer, 0.8 − 0.6·0.740818 in the second."""
    for depth, expected in ((0, 0.2), (1, 0.355509), (np.int64(100), 0.8)):
        assert float(head_pairs.lambda_init(depth)) == pytest.approx(expected, abs=1e-6)
    assert float(jax.jit(head_pairs.lambda_init)(jnp.int32(1))) == pytest.approx(0.355509, abs=1e-6)


def test_head_norm_by_hand():
    """Pair (0.003, 0.004): mean square 12.5e-6, beside ε = 1e-5."""
    pair = norms.rms_norm(jnp.asarray([3e-3, 4e-3]), head_pairs._EPSILON)
    np.testing.assert_allclose(pair, np.array([3e-3, 4e-3]) / np.sqrt(22.5e-6), rtol=1e-6)
