"""Sigmoid attention, soft-capped logits and learned sinks: figures by hand and laws."""

import functools
import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attention import inject, registry
from attention.hosts import probe
from attention.masks import Bias
from attention.modifiers import softcap
from attention.verification import check

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


def test_sigmoid_by_hand():
    """Logits 0 and ln 6 of two keys, S = 2: weights 1/(1 + 2) and 6/(6 + 2)."""
    query = jnp.ones((1, 1, 1))
    key = jnp.asarray([0.0, np.log(6.0)], jnp.float32).reshape(2, 1, 1)
    value = jnp.asarray([3.0, 8.0]).reshape(2, 1, 1)
    assert float(registry.get("sigmoid")(query, key, value)[0, 0, 0]) == pytest.approx(
        1 + 6, rel=1e-6
    )
    # A mask removes a term, and leaves the other's weight, in which S is still 2.
    masked = registry.get("sigmoid")(query, key, value, mask=jnp.asarray([True, False]))
    assert float(masked[0, 0, 0]) == pytest.approx(1, rel=1e-6)


def test_sigmoid_keys_do_not_know_of_each_other():
    """The output over all keys is the sum of those over two parts; their order does not matter."""
    query, key, value = _qkv()
    attend = jax.jit(registry.get("sigmoid"))
    part = jnp.arange(S) < 2
    whole = attend(query, key, value)
    parts = attend(query, key, value, mask=part) + attend(query, key, value, mask=~part)
    np.testing.assert_allclose(parts, whole, atol=1e-6)
    order = np.random.default_rng(1).permutation(S)
    np.testing.assert_allclose(attend(query, key[order], value[order]), whole, atol=1e-6)


def test_softcap_by_hand_and_its_ends():
    """tanh(ln 3) = 8/10; logits differ by less than 2·cap; a large cap changes nothing."""
    capped = softcap.apply(jnp.log(3.0), None, None, {}, cap=1.0)
    np.testing.assert_allclose(capped, 0.8, rtol=1e-6)
    query, key, value = _qkv()
    for mixer in ("standard", "laser", "sigmoid"):
        plain = _run(registry.get(mixer), None, query, key, value)
        wide = _run(registry.get(f"{mixer}+softcap", cap=1e6), None, query, key, value)
        np.testing.assert_allclose(wide, plain, atol=1e-5)
    with probe.probed() as seen:
        registry.get("standard+softcap", cap=2.0)(1e4 * query, key, value)
    weights = seen.layers[0].weights()
    assert float((weights.max(-1) / weights.min(-1)).max()) <= np.exp(4.0) * (1 + 1e-5)


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


@pytest.mark.parametrize("mixer", ["standard", "laser"])
def test_a_sink_takes_weight_and_none_where_its_logit_is_low(mixer):
    query, key, value = _qkv()
    variant = registry.get(f"{mixer}+sink")
    off = _run(variant, [-1e4, -1e4], query, key, value)
    plain = _run(registry.get(mixer), None, query, key, value)
    np.testing.assert_allclose(off, plain, atol=1e-6)
    params = {"params": {"sink": {"scale": jnp.asarray([0.5, -1.0])}}}
    with probe.probed() as seen:
        output = Host(variant).apply(params, query, key, value)
    weights = np.asarray(seen.layers[0].weights())
    assert weights.shape == (H, T, S + 1)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    logits = np.einsum("thd,shd->hts", query, key) / np.sqrt(D)
    sink = np.exp([0.5, -1.0])[:, None]
    np.testing.assert_allclose(weights[..., -1], sink / (np.exp(logits).sum(-1) + sink), rtol=1e-5)
    # Between the least and the greatest value, the sink's 0 among them.
    assert (output <= np.maximum(value.max(0), 0) + 1e-6).all()
    assert (output >= np.minimum(value.min(0), 0) - 1e-6).all()


def test_each_map_of_a_pair_has_its_own_sink():
    """Without the head norm: head 0 with its sink minus λ times head 1 with its own."""
    query, key, value = _qkv()
    sinks = jnp.asarray([0.7, -0.4])
    pair = jnp.concatenate([value[:, :1], value[:, 1:]], -1)
    both = [
        _run(registry.get("laser+sink"), sinks[h : h + 1], query[:, h, None], key[:, h, None], pair)
        for h in (0, 1)
    ]
    host = check.Host(registry.get("diff_laser+sink", head_norm=False), layer=0)
    zeros = {f"scale_{name}": jnp.zeros(D) for name in ("q1", "k1", "q2", "k2")}
    params = {"params": {"sink": {"scale": sinks}, "diff_lambda": zeros}}
    output = host.apply(params, query, key, value, None)
    # λ = e⁰ − e⁰ + 0.2.
    np.testing.assert_allclose(output.reshape(T, 1, 2 * D), both[0] - 0.2 * both[1], atol=2e-6)


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
    host = check.Host(registry.get(name), layer=0)
    params = host.init(jax.random.key(0), query, key, value, None)

    class Biased(nn.Module):
        @nn.compact
        def __call__(self, bias, *qkv):
            return host.variant(*qkv, bias=bias, layer=0)

    def biased(low, dtype, *qkv):
        return Biased().apply(params, jnp.where(seen, 0, low).astype(dtype), *qkv)

    expected = host.apply(params, query, key, value, seen)
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


@pytest.mark.parametrize("name", ["standard", "laser+softcap", "sigmoid"])
def test_lengths_may_be_symbolic(name):
    """One exported program serves every length, as jax.export makes it."""
    variant = registry.get(name)
    queries, keys = jax.export.symbolic_shape("t, s")
    shapes = [(queries, H, D), (keys, H, D), (keys, H, D)]
    symbolic = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    program = jax.export.export(jax.jit(lambda *qkv: variant(*qkv)))(*symbolic)
    qkv = _qkv()
    np.testing.assert_allclose(program.call(*qkv), variant(*qkv), atol=1e-6)


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
        *[(name, kind) for name in ("laser+sink", "laser", "sigmoid") for kind in HIDING],
        ("standard+sink", "a sum"),
        ("softpick", "columns"),
        ("laser+sink+softcap", "lowest in float16"),
        ("laser+sink+softcap", "-inf"),
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


@pytest.mark.parametrize("name", ["standard+sink", "laser+sink"])
def test_a_sink_beside_causality_and_beside_its_array(name):
    query, key, value = _qkv()
    query = jnp.concatenate([query, query[:1]])
    sinks, past = jnp.asarray([0.3, -0.4]), np.tril(np.ones((S, S), bool))
    causal = _run(registry.get(name), sinks, query, key, value, is_causal=True)
    masked = _run(registry.get(name), sinks, query, key, value, mask=past)
    np.testing.assert_array_equal(causal, masked)


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


def _own_softmax(query, key, value, bias=None, mask=None):
    """A host's attention function that is not flax's."""
    return nn.dot_product_attention(query, key, value, bias, mask)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sigmoid", "the model cannot have 'sigmoid'.*can have: standard, laser, diff"),
        ("laser+softcap", "'softcap' needs a softmax.*can have: temp, qk_norm, per_dim_temp"),
        ("standard+sink", "'sink' needs a softmax"),
    ],
)
def test_a_host_with_a_softmax_of_its_own_refuses_them_by_name(name, message):
    layer = nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=_own_softmax)
    with pytest.raises(ValueError, match=message), inject.injected(registry.get(name)):
        layer.init(jax.random.key(0), jnp.ones((2, 3, 8)))


@pytest.mark.parametrize("kernel", ["jax_xla", "cudnn"])
def test_library_kernels_refuse_what_is_no_plain_softmax(kernel):
    with pytest.raises(ValueError, match="no weights other than the softmax's.*use kernel='xla'"):
        registry.get("sigmoid", kernel=kernel)


def test_a_mask_or_bias_that_does_not_fit_is_named_beside_a_sink():
    for settings in ({"mask": "causal"}, {"mask": np.ones(5, bool)}, {"bias": jnp.ones((3, 1, S))}):
        name = next(iter(settings))
        with pytest.raises(ValueError, match=f"{name}.*(no array|does not broadcast)"):
            Host(registry.get("laser+sink")).init(jax.random.key(0), *_qkv(), **settings)


def test_a_sinks_leaf():
    """One logit per head, 0 at start, beside the host's projections."""
    layer = nn.MultiHeadDotProductAttention(4, attention_fn=registry.get("laser+sink"))
    params = jax.jit(layer.init)(jax.random.key(0), jnp.ones((2, 3, 8)))["params"]
    assert set(params) == {"query", "key", "value", "out", "sink"}
    np.testing.assert_array_equal(params["sink"]["scale"], np.zeros(4))
