"""Optimizers, schedule and clipping against plain float64 arithmetic and optax."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sweeps.training import optimizers

POINT = {
    "learning_rate": 0.01,
    "one_minus_beta1": 0.1,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "weight_decay": 0.3,
    "warmup_steps": 4.0,
    "step_hint": 20.0,
}
SCALARS = {name: jnp.float32(value) for name, value in POINT.items()}


def _rate(step):
    """AlgoPerf's warmup and cosine, in Python."""
    if step < 4:
        return 0.01 * step / 4
    return 0.01 * 0.5 * (1 + math.cos(math.pi * min(step - 4, 16) / 16))


@pytest.mark.parametrize(
    ("step", "warmup", "expected"),
    [*((step, 4, _rate(step)) for step in (0, 1, 3, 4, 5, 12, 19, 20, 30)), (0, 0, 0.01)],
)
def test_schedule(step, warmup, expected):
    scalars = {**SCALARS, "warmup_steps": jnp.float32(warmup)}
    rate = optimizers.learning_rate(jnp.int32(step), scalars)
    assert float(rate) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_nadamw_over_fifty_steps():
    """The formula of arXiv:1910.05446 table 1 as AlgoPerf writes it, in float64."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(5)
    params, state = {"w": jnp.asarray(weights, jnp.float32)}, None
    state = optimizers.init("nadamw", params)
    step = jax.jit(lambda g, s, p, i: optimizers.step("nadamw", g, s, p, i, SCALARS))
    first, second = np.zeros(5), np.zeros(5)
    for update in range(50):
        gradient = rng.standard_normal(5)
        params, state = step(
            {"w": jnp.asarray(gradient, jnp.float32)}, state, params, jnp.int32(update)
        )
        count = update + 1
        first = 0.9 * first + 0.1 * gradient
        second = 0.95 * second + 0.05 * gradient**2
        ahead = (0.9 * first + 0.1 * gradient) / (1 - 0.9**count)
        direction = ahead / (np.sqrt(second / (1 - 0.95**count)) + 1e-8)
        weights = weights - _rate(update) * (direction + 0.3 * weights)
    np.testing.assert_allclose(params["w"], weights, rtol=2e-5, atol=1e-6)


def test_optax_variant_is_another_formula():
    gradient, params = {"w": jnp.asarray([2.0])}, {"w": jnp.zeros(1)}
    ours, theirs = (
        optimizers.OPTIMIZERS[name](SCALARS).update(
            gradient, optimizers.init(name, params), params
        )[0]
        for name in ("nadamw", "nadamw_optax")
    )
    assert float(ours["w"][0]) == pytest.approx(1.9, rel=1e-5)
    assert abs(float(theirs["w"][0]) - 1.9) > 0.2


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_adamw_and_lamb_are_optax_with_our_schedule(name):
    """Ten updates with traced hyperparameters against optax's own optimizer, built with numbers."""
    theirs = {"adamw": optax.adamw, "lamb": optax.lamb}[name](
        lambda count: optimizers.learning_rate(count, SCALARS),
        b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.3,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    params = {"w": jnp.asarray(rng.standard_normal((3, 4)), jnp.float32), "b": jnp.ones(2)}
    ours, expected = params, params
    state, their_state = optimizers.init(name, params), theirs.init(params)
    step = jax.jit(lambda g, s, p, i, scalars: optimizers.step(name, g, s, p, i, scalars))
    for update in range(10):
        gradients = jax.tree.map(
            lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), jnp.float32), params
        )
        ours, state = step(gradients, state, ours, jnp.int32(update), SCALARS)
        updates, their_state = theirs.update(gradients, their_state, expected)
        expected = optax.apply_updates(expected, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ours, expected)


@pytest.mark.parametrize("name", list(optimizers.OPTIMIZERS))
def test_stacked_layers_are_updated_as_single_ones(name):
    """scan_layers is a way to compute: LAMB's ratio of a stack of layers is each layer's own."""
    rng = np.random.default_rng(2)
    weights, gradients = (
        jnp.asarray(rng.standard_normal((2, 3, 4)) * [[[1.0]], [[9.0]]], jnp.float32)
        for _ in range(2)
    )
    trees = {
        "stacked": lambda leaf: {"layers": {"w": leaf}},
        "single": lambda leaf: {"layer_0": {"w": leaf[0]}, "layer_1": {"w": leaf[1]}},
    }
    got = {}
    for kind, tree in trees.items():
        params = tree(weights)
        state = optimizers.init(name, params)
        new, _ = optimizers.step(name, tree(gradients), state, params, jnp.int32(4), SCALARS)
        got[kind] = jax.tree.leaves(new)
    np.testing.assert_allclose(got["stacked"][0], np.stack(got["single"]), rtol=1e-6)


@pytest.mark.parametrize("name", list(optimizers.OPTIMIZERS))
def test_bfloat16_parameters_keep_their_dtype_and_float32_moments(name):
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    state = optimizers.init(name, params)
    new, after = optimizers.step(
        name, {"w": jnp.ones(3, jnp.bfloat16)}, state, params, jnp.int32(4), SCALARS
    )
    assert new["w"].dtype == jnp.bfloat16
    assert 0.96 < float(new["w"][0]) < 0.995
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (state, after))
    assert shapes[0] == shapes[1]
    assert {leaf.dtype for leaf in jax.tree.leaves(after) if leaf.ndim} == {jnp.dtype("float32")}


def test_clipping():
    gradients = {"w": jnp.asarray([3.0, 4.0])}
    clipped = optimizers.clip(gradients, jnp.float32(5.0), jnp.float32(1.0))
    np.testing.assert_allclose(clipped["w"], [0.6, 0.8], rtol=1e-5)
    for limit in (10.0, math.inf):
        same = optimizers.clip(gradients, jnp.float32(5.0), jnp.float32(limit))
        np.testing.assert_array_equal(same["w"], gradients["w"])
