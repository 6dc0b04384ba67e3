"""LASER's exponential and logarithm as kernels compute them, of tiles that lie on the chip.

By `shift`'s formulas if the inputs are float32; with one exponential and one logarithm where
they are bfloat16, whose rounding is far above what that costs.
"""

import math

import jax.numpy as jnp
from jax import Array

from attention import functions
from attention.functions import Leaves, Transform
from attention.mixers import laser_shift
from attention.mixers.laser_shift import Shift

_SMALL = 0.35


def expm1(x: Array) -> Array:
    """Returns exp(x) − 1, which Mosaic has not: within 3e-7, by Taylor's series below 0.35."""
    small = jnp.clip(x, -_SMALL, _SMALL)
    series = jnp.full_like(x, 1 / math.factorial(7))
    for power in range(6, 0, -1):
        series = series * small + 1 / math.factorial(power)
    return jnp.where(jnp.abs(x) < _SMALL, series * small, jnp.exp(x) - 1)


def _shift(c: Leaves) -> Shift:
    return Shift(c["constant"], c["is_max"] > 0.5)


def _leaves(value: Array, keys: Array | None, axis: int, with_zero: bool) -> dict[str, Array]:
    chosen = laser_shift.choose(value, keys, functions.TILE_SPAN, axis=axis, with_zero=with_zero)
    return {"constant": chosen.constant, "is_max": chosen.is_max.astype(value.dtype)}


def _exponential(value: Array, c: Leaves) -> Array:
    """expm1(V − c), in channels of the max form exp(V − c), by one exponential."""
    chosen = _shift(c)
    distance = value - chosen.constant
    raised = jnp.exp(jnp.where(chosen.is_max, jnp.maximum(distance, laser_shift.FLOOR), distance))
    # exp(x) − 1 is 6e-8 off, of x = 2e-3 3e-5; below, x + x²/2 is 7e-7 off.
    near = distance * (1 + 0.5 * distance)
    centred = jnp.where(jnp.abs(distance) < 2e-3, near, raised - 1)
    return jnp.where(chosen.is_max, raised, centred)


def _exact_exponential(value: Array, c: Leaves) -> Array:
    return laser_shift.exponentiate(value, None, _shift(c), precise=True, expm1=expm1)


def _exponential_slope(value: Array, raised: Array, c: Leaves) -> Array:
    return raised + jnp.where(_shift(c).is_max, 0.0, 1.0)


def _logarithm(means: Array, c: Leaves) -> Array:
    """The output of R = A·F: log(1 + R) by one logarithm, 6e-8 off."""
    chosen = _shift(c)
    argument = jnp.where(chosen.is_max, jnp.maximum(means, laser_shift.SMALLEST), 1 + means)
    return chosen.constant + jnp.log(argument)


def _exact_logarithm(means: Array, c: Leaves) -> Array:
    return laser_shift.logarithm(means, None, _shift(c), precise=True)


def _logarithm_slope(means: Array, c: Leaves) -> Array:
    return 1 / jnp.where(_shift(c).is_max, jnp.maximum(means, laser_shift.SMALLEST), 1 + means)


_EXACT = Transform(
    _exact_exponential,
    _exact_logarithm,
    _exponential_slope,
    _logarithm_slope,
    _leaves,
    ("constant", "is_max"),
    filler="constant",
)
# The rounding of bfloat16 is far above what one exponential and one logarithm cost.
_QUICK = _EXACT._replace(value=_exponential, output=_logarithm)


def transform(dtype: jnp.dtype) -> Transform:
    """Returns LASER's exponential and logarithm for inputs of this dtype."""
    return _EXACT if dtype == jnp.float32 else _QUICK
