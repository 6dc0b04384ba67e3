"""LASER's exponential and logarithm as kernels compute them, of tiles that lie on the chip.

By `shift`'s formulas where the inputs are float32; with one exponential and one logarithm where
they are bfloat16, whose rounding is far above what that costs.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from attention.kernels import shift
from attention.kernels.shift import Shift

Array = jax.Array

# Backward passes divide by 1 + R, not by exp(max − c): as far as float32 reaches.
SPAN = 75.0
_SMALL = 0.35


def exponential(value: Array, chosen: Shift, expm1: Callable[[Array], Array] = jnp.expm1) -> Array:
    """Returns F of values [n, Dv], float32: expm1(V − c), in channels of the max form exp(V − c).

    expm1: where JAX's own cannot be had.
    """
    if value.dtype == jnp.float32:
        return shift.exponentiate(value, None, chosen, precise=True, expm1=expm1)
    distance = value.astype(jnp.float32) - chosen.constant
    raised = jnp.exp(jnp.where(chosen.is_max, jnp.maximum(distance, shift.FLOOR), distance))
    # exp(x) − 1 is 6e-8 off, of x = 2e-3 3e-5; below, x + x²/2 is 7e-7 off.
    near = distance * (1 + 0.5 * distance)
    centred = jnp.where(jnp.abs(distance) < 2e-3, near, raised - 1)
    return jnp.where(chosen.is_max, raised, centred)


def exponential_slope(found: Array, chosen: Shift) -> Array:
    """Returns F' from F, [n, Dv] float32."""
    return found + jnp.where(chosen.is_max, 0.0, 1.0)


def logarithm(means: Array, chosen: Shift, dtype: jnp.dtype) -> Array:
    """Returns the output, [n, Dv] float32, of R = A·F; dtype: what it is rounded to."""
    if dtype == jnp.float32:
        return shift.logarithm(means, None, chosen, precise=True)
    # log(1 + R) by one logarithm: 6e-8 off, beside an output that is rounded to bfloat16.
    argument = jnp.where(chosen.is_max, jnp.maximum(means, shift.SMALLEST), 1 + means)
    return chosen.constant + jnp.log(argument)


def logarithm_slope(means: Array, chosen: Shift) -> Array:
    """Returns ∂o/∂R, [n, Dv] float32."""
    return 1 / jnp.where(chosen.is_max, jnp.maximum(means, shift.SMALLEST), 1 + means)


def expm1(x: Array) -> Array:
    """Returns exp(x) − 1, which Mosaic has not: within 3e-7, by Taylor's series below 0.35."""
    small = jnp.clip(x, -_SMALL, _SMALL)
    series = jnp.full_like(x, 1 / math.factorial(7))
    for power in range(6, 0, -1):
        series = series * small + 1 / math.factorial(power)
    return jnp.where(jnp.abs(x) < _SMALL, series * small, jnp.exp(x) - 1)


def capped(logits: Array, cap: float | None) -> tuple[Array, Array | None]:
    """Returns cap·tanh(logits/cap) and its slope, or the logits as they are and None."""
    if cap is None:
        return logits, None
    bent = jnp.tanh(logits / cap)
    return cap * bent, 1 - bent * bent
