"""What a probe saw is what the softmax saw, and probing changes nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from attention import inject, probe, registry


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
    with pytest.raises(ValueError, match="once"), probe.probed():
        _apply(variant, _params(variant))
    assert not probe.is_on()


def test_a_model_with_a_softmax_of_its_own_is_refused():
    variant = _variant("standard")
    with pytest.raises(ValueError, match="a function of its own"):
        _apply(variant, _params(variant), host=foreign_attention)
