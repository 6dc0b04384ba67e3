"""Diagnostics of attention and the probe that records them."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attention import inject, probe, registry
from attention.kernels import core, inputs
from attention.masks import Bias, Mask, merged
from attention.verification import layer_statistics


def _layer(weights, value=None, mask=None, dtype=jnp.float32, mixer="standard"):
    """Returns a layer whose logits are ln(weights), [T, S] or [B, H, T, S]: keys are a basis."""
    weights = np.asarray(weights, np.float64)
    weights = weights.reshape((1,) * (4 - weights.ndim) + weights.shape)
    batch, heads, _, keys = weights.shape
    query = jnp.asarray(np.moveaxis(np.log(weights), 1, 2), dtype)
    basis = jnp.broadcast_to(jnp.eye(keys, dtype=dtype)[:, None], (batch, keys, heads, keys))
    if value is None:
        value = np.zeros((batch, keys, heads, 1))
    mask = None if mask is None else jnp.asarray(mask, bool)
    return probe.Layer(
        query=query,
        key=basis,
        value=jnp.asarray(value, dtype),
        bias=Bias(),
        masks=merged(Mask(dense=mask), query.shape[1], keys),
        leaves=(),
        scale=1.0,
        precision=None,
        path="",
        span=core.KERNEL.span,
        mixer=mixer,
        score=(),
    )


def test_weights_of_sigmoid_by_hand():
    """Four keys of logits ln 4 and 0: weights 1/2 and 1/5, whose slopes are a·(1 − a).

    They are no distribution, so that there is no entropy; a hidden key does not count.
    """
    logits = np.array([[4.0, 1.0, 1.0, 1.0]])
    found = _summary(_layer(logits, mask=[[1, 1, 1, 0]], mixer="sigmoid"))
    assert (found["entropy"], found["entropy_share"]) == (None, None)
    assert found["jacobian_mean"] == pytest.approx(math.sqrt(0.25**2 + 2 * 0.16**2), rel=1e-6)
    # log10(1/5) = −0.7 lies in the last but one of the bins.
    assert found["histogram"] == [0] * (layer_statistics.BINS - 2) + [2, 1]
    assert "nonfinite" not in found


def _summary(layer, **gradients):
    return layer_statistics.summary(jax.jit(layer_statistics.measure)(layer), gradients)


def test_masked_entries_do_not_count():
    """Row 0 sees one key, row 1 two, row 2 none: six of nine entries are hidden."""
    mask = [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
    found = _summary(_layer([[1, 1, 1], [0.2, 0.8, 1], [1, 1, 1]], mask=mask))
    entropy = -(0.2 * math.log(0.2) + 0.8 * math.log(0.8))
    assert found["histogram"] == [0] * (layer_statistics.BINS - 2) + [1, 2]
    assert found["entropy"] == pytest.approx(entropy / 2, rel=1e-6)
    assert found["entropy_share"] == pytest.approx(entropy / math.log(2), rel=1e-6)
    # A row of one key has no Jacobian; of (p, 1 − p) its norm is 2·p·(1 − p).
    assert found["jacobian_mean"] == pytest.approx(0.16, rel=1e-6)
    assert found["jacobian_max"] == pytest.approx(0.32, rel=1e-6)


def test_shares_count_what_lies_below():
    """One head's row of 1e-9, 1e-5, 1e-2 and the rest; the bins hold [10^a, 10^b)."""
    small = [1e-13, 1e-9, 1e-5, 1e-2]
    found = _summary(_layer([[*small, 1 - sum(small)]]))
    assert found["share_below_1e-7"] == pytest.approx(2 / 5)
    assert found["share_below_1e-3"] == pytest.approx(3 / 5)
    assert found["histogram"][0] == 1
    assert sum(found["histogram"]) == 5
    assert found["histogram"][-1] == 1
    edges = layer_statistics.HISTOGRAM_EDGES
    assert (edges[0], edges[-1], len(found["histogram"])) == (-12, 0, len(edges))


@pytest.mark.parametrize("largest", [0.5, 0.9, 1 - 1e-3, 1 - 1e-6])
def test_jacobian_norm_is_that_of_the_matrix(largest):
    """Float32, where the plain closed form leaves 3e-4 of a norm of 2e-6."""
    rest = np.array([0.5, 0.3, 0.2]) * (1 - largest)
    row = np.array([*rest, largest])
    exact = np.linalg.norm(np.diag(row) - np.outer(row, row))
    closed = math.sqrt((row**2).sum() - 2 * (row**3).sum() + (row**2).sum() ** 2)
    assert closed == pytest.approx(exact, rel=1e-3)
    found = core.softmax_jacobian_norm(jnp.asarray(row, jnp.float32))
    assert float(found) == pytest.approx(exact, rel=1e-6)


def test_ranges_of_values_by_hand():
    """Two entries, two channels; the second entry's last key is padding and its value huge."""
    value = np.array([[[0, 1], [3, -1], [1, 0]], [[0, 0], [100, 5], [1e6, -1e6]]], np.float64)
    mask = np.ones((2, 1, 3, 3), bool)
    mask[1, ..., 2] = False
    found = _summary(_layer(np.full((2, 1, 3, 3), 1 / 3), value[:, :, None], mask))
    # Ranges 3, 2, 100, 5; only 100 is more than 80 nats above min(mean, min + ln 16).
    assert found["value_range_min"] == 2
    assert found["value_range_median"] == 4
    assert found["value_range_max"] == 100
    assert (found["channels"], found["floored_channels"]) == (4, 1)


def test_what_does_not_exist_is_none():
    found = _summary(_layer([[1, 1]], mask=[[0, 0]]), logit=0.25)
    numbers = {name for name, given in found.items() if given is not None}
    assert numbers == {"logit_grad_norm", "channels", "floored_channels"}
    assert found["channels"] == 0
    one = _summary(_layer([[1.0]]))
    assert (one["entropy"], one["entropy_share"]) == (0, None)
    assert "nonfinite" not in one


def test_what_is_not_finite_is_named():
    weights = np.ones((2, 3))
    weights[1, 2] = np.nan
    value = np.zeros((1, 3, 1, 1))
    value[0, 0] = np.inf
    found = _summary(_layer(weights, value), query=np.nan, key=1.0)
    assert found["key_grad_norm"] == 1
    assert found["logit_grad_norm"] is None
    assert found["histogram"] is None
    assert {"histogram", "share_below_1e-3", "entropy", "query_grad_norm"} <= set(
        found["nonfinite"]
    )
    assert "value_range_max" in found["nonfinite"]
    assert "logit_grad_norm" not in found["nonfinite"]
    assert all(found[name] is None for name in found["nonfinite"])


def test_norms():
    assert float(layer_statistics.norm(jnp.asarray([[3.0, 0.0], [0.0, 4.0]]))) == 5
    assert float(layer_statistics.norm(jnp.full(4, 1e-30))) == pytest.approx(2e-30, rel=1e-6, abs=0)
    assert float(layer_statistics.norm(jnp.zeros(3))) == 0
    tree = {"a": {"query": {"kernel": jnp.full(4, 2.0)}, "out": {"kernel": jnp.ones(1)}}}
    assert {name: float(n) for name, n in layer_statistics.kernel_norms(tree, "a").items()} == {
        "query": 4
    }
    assert layer_statistics.kernel_norms(tree, "b/c") == {}


@pytest.mark.parametrize(
    ("name", "hiding"),
    [
        ("standard", "none"),
        ("standard", "columns"),
        ("laser+sink", "mask by head"),
        ("diff2+sink", "columns"),
        ("diff2+sink", "mask by head"),
        ("diff_laser", "mask by head"),
    ],
)
def test_grouped_heads_are_measured(name, hiding):
    """Four heads of queries and two of keys: a channel is one of a query's head."""
    rng = np.random.default_rng(0)
    query, x = (jnp.asarray(rng.standard_normal(shape)) for shape in ((2, 5, 4, 6), (2, 5, 8)))
    settings = {
        "none": {},
        "mask by head": {"mask": jnp.asarray(rng.random((4, 5, 5)) < 0.7)},
        "columns": {"bias": Bias(column=jnp.zeros((4, 5)).at[1:, 3:].set(-1e9))},
    }[hiding]

    class Model(nn.Module):
        @nn.compact
        def __call__(self):
            value = query[:, :, :2]
            call = inputs.make_call(query, value, value, x=x, layer=0, **settings)
            return registry.get(name).attend(call)

    with probe.probed() as record:
        Model().init(jax.random.key(0))
    found = _summary(record.layers[0])
    assert found["channels"] == 2 * record.layers[0].query.shape[-2] * 6
    assert found["entropy"] > 0
    assert "nonfinite" not in found
    assert sum(found["histogram"]) == int(record.layers[0].visible().sum())


def foreign_attention(query, key, value, bias=None, mask=None):
    """Flax's function with a factor on its output."""
    return 2.0 * nn.dot_product_attention(query, key, value, bias, mask)


class Block(nn.Module):
    """Two attention layers with a mask, then a nonlinear end."""

    host: object = nn.dot_product_attention

    @nn.compact
    def __call__(self, inputs, mask):
        for index in range(2):
            attend = nn.MultiHeadDotProductAttention(
                num_heads=2, attention_fn=self.host, name=f"block_{index}"
            )
            inputs = inputs + attend(inputs, mask=mask)
        return jnp.tanh(inputs)


CASES = ["laser+qk_norm+temp", "standard+per_dim_temp", "diff_laser"]


def _variant(name):
    return registry.get(name, **({"tau": 0.9} if "temp" in name.split("+") else {}))


def _inputs():
    inputs = np.random.default_rng(1).standard_normal((2, 5, 8)).astype(np.float32)
    there = jnp.asarray([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
    return jnp.asarray(inputs), nn.make_attention_mask(there, there, dtype=bool)


def _apply(variant, params, probes=None, is_observed=True, host=nn.dot_product_attention):
    """Returns the model's output and the layers seen, [] where nobody looks."""

    def run():
        with inject.injected(variant, layer=lambda path: int(path[-1])):
            return Block(host).apply(params, *_inputs())

    if not is_observed:
        return run(), []
    with probe.probed(probes) as seen:
        output = run()
    return output, seen.layers


@functools.cache
def _params(variant):
    def init(key):
        with inject.injected(variant, layer=lambda path: int(path[-1])):
            return Block().init(key, *_inputs())

    # Away from the initial values, where learned factors are 1.
    shapes = jax.eval_shape(init, jax.random.key(0))
    rng = np.random.default_rng(3)
    return jax.tree.map(lambda leaf: 0.5 * rng.standard_normal(leaf.shape, np.float32), shapes)


@functools.cache
def _observed(variant):
    """Returns the output and the layers of a compiled model."""
    return jax.jit(lambda params: _apply(variant, params))(_params(variant))


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_an_unobserved_model_bit_for_bit(name):
    variant = _variant(name)
    plain = jax.jit(lambda params: _apply(variant, params, is_observed=False)[0])
    output, layers = _observed(variant)
    assert np.array_equal(plain(_params(variant)), output)
    assert [layer.path for layer in layers] == ["block_0", "block_1"]


def test_weights_times_values_are_the_output():
    """Of modified logits, grouped heads and a bias, beside a mask; LASER's in the exponential."""
    rng = np.random.default_rng(0)
    query = jnp.asarray(rng.standard_normal((2, 5, 4, 6)), jnp.float32)
    key, value = jnp.asarray(rng.standard_normal((2, 2, 5, 2, 6)), jnp.float32)
    bias = jnp.asarray(rng.standard_normal((4, 5, 5)), jnp.float32)
    inside = {"standard": (lambda v: v, lambda r: r), "laser": (np.exp, np.log)}
    for mixer, (raised, lowered) in inside.items():
        variant = registry.get(f"{mixer}+alibi+sink+softcap+temp", learned=False, tau=0.7, cap=2.0)
        with probe.probed() as seen:
            output = variant(query, key, value, bias=bias, is_causal=True)
        weights = seen.layers[0].weights()
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
        terms = np.pad(np.repeat(value, 2, 2), ((0, 0), (0, 1), (0, 0), (0, 0)))
        sums = np.einsum("bhts,bshd->bthd", weights, raised(terms))
        np.testing.assert_allclose(output, lowered(sums), atol=2e-6)


@pytest.mark.parametrize("name", CASES[:2])
def test_a_probes_gradient_is_the_gradient_on_the_logits(name):
    """By finite differences of the bias that the added is; hidden entries get none."""
    variant = _variant(name)
    params, layers = _params(variant), _observed(variant)[1]
    weights = jnp.asarray(np.random.default_rng(2).standard_normal((2, 5, 8)), jnp.float32)

    @jax.jit
    def loss(probes):
        return jnp.sum(weights * _apply(variant, params, probes)[0])

    probes = probe.zero_probes(layers)
    gradients = jax.jit(jax.grad(loss))(probes)
    step = 1e-2
    for at in [(0, 1, 2, 3), (1, 0, 1, 2)]:
        for number, added in enumerate(probes):
            up, down = (
                loss([added.at[at].set(move) if n == number else probes[n] for n in range(2)])
                for move in (step, -step)
            )
            difference = (up - down) / (2 * step)
            np.testing.assert_allclose(gradients[number][at], difference, atol=1e-3)
    assert float(jnp.abs(gradients[0][1, :, :, 3:]).max()) == 0


def test_a_probe_adds_to_the_bias_that_is_there():
    rng = np.random.default_rng(0)
    query, key, value = jnp.asarray(rng.standard_normal((3, 4, 2, 3)), jnp.float32)
    bias, added = jnp.asarray(rng.standard_normal((2, 2, 4, 4)), jnp.float32)
    bias = bias.at[0, 1, 2].set(-jnp.inf)
    attend = registry.get("laser")
    with probe.probed((added,)) as seen:
        probed = attend(query, key, value, bias=bias)
    np.testing.assert_allclose(probed, attend(query, key, value, bias=bias + added), rtol=1e-6)
    (layer,) = seen.layers
    assert layer.path == ""
    assert float(layer.weights()[0, 1, 2]) == 0
    assert not bool(layer.masks.pairs[..., 0, 1, 2].any())


def test_layers_leave_jit_as_they_are():
    variant = _variant(CASES[0])
    layers = _observed(variant)[1]
    assert layers[0].shape == (2, 2, 5, 5)
    shapes = jax.eval_shape(lambda: _apply(variant, _params(variant))[1])
    assert [added.shape for added in probe.zero_probes(shapes)] == [(2, 2, 5, 5)] * 2
    assert [layer.path for layer in shapes] == [layer.path for layer in layers]


def test_a_traced_scale_leaves_jit_in_the_query():
    query, key, value = jnp.asarray(np.random.default_rng(0).standard_normal((3, 4, 2, 3)))

    def observe(scale):
        with probe.probed() as seen:
            registry.get("laser+temp", tau=0.5)(query, key, value, scale=scale)
        return seen.layers[0]

    weights = jax.jit(observe)(0.3).weights()
    np.testing.assert_allclose(weights, observe(0.3).weights(), rtol=1e-5)


class Looped(nn.Module):
    """One attention layer inside nn.remat or nn.scan."""

    lift: str

    @nn.compact
    def __call__(self, inputs):
        variant = registry.get("standard")

        class Inner(nn.Module):
            @nn.compact
            def __call__(self, carry, _):
                heads = nn.Dense(8)(carry).reshape((*carry.shape[:-1], 2, 4))
                return variant(heads, heads, heads).reshape(carry.shape), None

        if self.lift == "remat":
            return nn.remat(Inner)()(inputs, None)[0]
        scan = nn.scan(Inner, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
        return scan()(inputs, None)[0]


@pytest.mark.parametrize("lift", ["scan", "remat"])
def test_layers_inside_a_loop_are_refused_by_name(lift):
    model, inputs = Looped(lift), _inputs()[0]

    def run(inputs):
        params = model.init(jax.random.key(0), inputs)
        with probe.probed():
            return model.apply(params, inputs)

    with pytest.raises(ValueError, match="scan_layers=False and remat=False"):
        jax.eval_shape(run, inputs)


def test_contexts_do_not_nest():
    variant = _variant(CASES[0])
    params = _params(variant)  # made before, unless another test has
    with pytest.raises(ValueError, match="once"), probe.probed():
        _apply(variant, params)
    assert not probe.is_on()


def test_a_model_with_a_softmax_of_its_own_is_refused():
    variant = _variant("standard")
    with pytest.raises(ValueError, match="a function of its own"):
        _apply(variant, _params(variant), host=foreign_attention)
