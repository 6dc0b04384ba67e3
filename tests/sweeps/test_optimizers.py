"""NAdamW, schedule and clipping against plain float64 arithmetic."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sweeps import optimizers

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


@pytest.mark.parametrize("step", [0, 1, 3, 4, 5, 12, 19, 20, 30])
def test_schedule(step):
    got = optimizers.learning_rate(jnp.int32(step), SCALARS)
    assert float(got) == pytest.approx(_rate(step), rel=1e-5, abs=1e-9)


def test_schedule_without_warmup_starts_at_its_peak():
    scalars = {**SCALARS, "warmup_steps": jnp.float32(0)}
    assert float(optimizers.learning_rate(jnp.int32(0), scalars)) == pytest.approx(0.01)


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


def test_first_update_by_hand():
    """m = 0.1·g, ahead = (0.9·0.1 + 0.1)·g/0.1 = 1.9·g, √v̂ = |g|: the update is 1.9·sign(g)."""
    direction, _ = optimizers.scale_by_nadam(0.9, 0.95, 1e-8).update(
        {"w": jnp.asarray([2.0, -3.0])}, optimizers.init("nadamw", {"w": jnp.zeros(2)})
    )
    np.testing.assert_allclose(direction["w"], [1.9, -1.9], rtol=1e-5)


def test_optax_variant_is_another_formula():
    gradient, params = {"w": jnp.asarray([2.0])}, {"w": jnp.zeros(1)}
    ours, theirs = (
        optimizers.OPTIMIZERS[name](SCALARS).update(gradient, optimizers.init(name, params))[0]
        for name in ("nadamw", "nadamw_optax")
    )
    assert float(ours["w"][0]) == pytest.approx(1.9, rel=1e-4)
    assert abs(float(theirs["w"][0]) - 1.9) > 0.2


def test_clipping():
    gradients = {"w": jnp.asarray([3.0, 4.0])}
    clipped = optimizers.clip(gradients, jnp.float32(5.0), jnp.float32(1.0))
    np.testing.assert_allclose(clipped["w"], [0.6, 0.8], rtol=1e-5)
    for limit in (10.0, math.inf):
        same = optimizers.clip(gradients, jnp.float32(5.0), jnp.float32(limit))
        np.testing.assert_array_equal(same["w"], gradients["w"])
