"""The shift that lets LASER's exponential and logarithm cancel without loss.

For any constant c per channel, exactly, whenever the weights of a row sum to r:

    log(A·exp(V)) = c + log(r + A·expm1(V − c))                         (centred form, r = 1)

so with c near the values nothing is lost where the paper's `log(A·exp(V − m)) + m` rounds a sum
near 1: at initialisation (values of size 0.1) that form loses 20 % in bfloat16. One c serves a
(batch entry, head, channel), since all rows share the product with V, and it sees valid keys
only, so that padding and the future cannot push it away. c = min(mean, min + log 16): 1 + A·expm1
stays above 1/16, which bounds the rounding of rows that see only values below the mean.

Where a channel spans more than the form can hold, exponents are taken from the maximum downwards
and floored at 75 nats below it (max form). That floor is the only approximation here.

Between 4 and 80 nats from c, float32 itself is too coarse (ulp(70) = 7.6e-6): the rounding of
V − c and of the logarithm are both recovered, by TwoSum and by one Newton step.

`transform` is the same as functions that kernels compute on tiles on the chip: by these formulas if
the inputs are float32, else with one exponential and one logarithm.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.functions import TILE_SPAN, Leaves, Transform

# The max form's exponents run from FLOOR to CEILING, 75 nats around 1: all of it below 1 would let
# 1/S reach e^75, and with attention dropout or cotangents of 1e4 the gradient overflows.
CEILING, FLOOR = 35.0, -40.0
# A sum below this comes from weights that dropout removed; still a normal float32.
SMALLEST = 1e-36
_LOG_K = math.log(16.0)
# Below |y| = 4 a float32 logarithm is exact to 1.2e-7, as good as the Newton step's own noise.
_NEWTON_FROM = 4.0
# Where a kernel has no expm1: Taylor's series below this size, exp(x) − 1 above.
_SMALL = 0.35


class Shift(NamedTuple):
    """One constant per channel, [..., 1, H, D] float32, and where it serves the max form."""

    constant: jax.Array
    is_max: jax.Array


def choose(
    value: jax.Array,
    keys: jax.Array | None,
    span: float,
    *,
    axis: int = -3,
    with_zero: bool = False,
) -> Shift:
    """Returns the shift of value [..., S, H, D], over the keys that are valid.

    keys broadcasts to [..., S, H, 1]; channels without a valid key get 0. axis: that of the keys.
    with_zero: a key of value 0 counts, too. No gradient passes.
    """
    value = jax.lax.stop_gradient(value)
    of_keys: dict[str, Any] = {"axis": axis, "keepdims": True}
    if keys is None:
        count: Any = value.shape[axis]
        total = jnp.sum(value, **of_keys)
        low, high = jnp.min(value, **of_keys), jnp.max(value, **of_keys)
    else:
        keys = jnp.broadcast_to(keys, value.shape)
        count = jnp.sum(keys.astype(value.dtype), **of_keys)
        total = jnp.sum(jnp.where(keys, value, 0), **of_keys)
        low = jnp.min(jnp.where(keys, value, jnp.inf), **of_keys)
        high = jnp.max(jnp.where(keys, value, -jnp.inf), **of_keys)
        low, high = (jnp.where(count > 0, extreme, 0) for extreme in (low, high))
        count = jnp.maximum(count, 1)
    if with_zero:
        count, low, high = count + 1, jnp.minimum(low, 0), jnp.maximum(high, 0)
    centre = jnp.minimum(total / count, low + _LOG_K)
    is_max = high - centre > span
    return Shift(jnp.where(is_max, high - CEILING, centre), is_max)


def exponentiate(
    value: jax.Array,
    keys: jax.Array | None,
    shift: Shift,
    *,
    precise: bool,
    expm1: Callable[[jax.Array], jax.Array] = jnp.expm1,
) -> jax.Array:
    """Returns expm1(V − c), or exp(V − c) in channels of the max form; 0 for invalid keys.

    `precise` recovers the rounding of V − c, for float32 results. expm1: where JAX's own cannot be
    had.
    """
    distance, rest = _two_sum(value, -shift.constant)
    if keys is not None:
        distance = jnp.where(keys, distance, 0)
    centred = expm1(jnp.where(shift.is_max, 0, distance))
    # `where`, not `maximum`: the latter's derivative multiplies by 0, and ∞·0 is NaN.
    floored = jnp.where(shift.is_max & (distance > FLOOR), distance, FLOOR)
    result = jnp.where(shift.is_max, jnp.exp(floored), centred)
    if precise:
        slope = jnp.where(shift.is_max, result, result + 1)
        result = result + jax.lax.stop_gradient(slope * rest)
    return result if keys is None else jnp.where(keys, result, 0)


def logarithm(
    total: jax.Array, mass: jax.Array | None, shift: Shift, *, precise: bool
) -> jax.Array:
    """Returns log Σ a·exp(v) from total = Σ a·(shifted exponentials), [..., T, H, D].

    `mass` is Σ a, [..., T, H, 1], or None if weights sum to 1. Rows of mass 0 come out finite.
    """
    if mass is None:
        argument = jnp.where(shift.is_max, total, 1 + total)
        log = jnp.where(
            shift.is_max,
            jnp.log(jnp.maximum(jnp.where(shift.is_max, total, 1), SMALLEST)),
            jnp.log1p(jnp.where(shift.is_max, 0, total)),
        )
    else:
        # total ≥ −15/16·mass, so this sum cancels nothing where total + (mass − 1) would.
        argument = jnp.where(shift.is_max, total, mass + total)
        log = jnp.log(jnp.maximum(argument, SMALLEST))
    if not precise:
        return shift.constant + log
    argument, fixed = jax.lax.stop_gradient((argument, log))
    newton = jnp.where(jnp.abs(fixed) > _NEWTON_FROM, argument * jnp.exp(-fixed) - 1, 0)
    # A sum that was raised to SMALLEST has no residual to recover.
    newton = jnp.clip(newton, -1e-5, 1e-5)
    result, rest = _two_sum(shift.constant, log)
    return result + jax.lax.stop_gradient(rest + newton)


def _two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns (fl(a + b), its rounding error), exactly (Knuth, TAOCP 2, 4.2.2)."""
    total = a + b
    other = total - a
    return total, jax.lax.stop_gradient((a - (total - other)) + (b - other))


def expm1(x: jax.Array) -> jax.Array:
    """Returns exp(x) − 1, which Mosaic has not: within 3e-7, by Taylor's series below 0.35."""
    small = jnp.clip(x, -_SMALL, _SMALL)
    series = jnp.full_like(x, 1 / math.factorial(7))
    for power in range(6, 0, -1):
        series = series * small + 1 / math.factorial(power)
    return jnp.where(jnp.abs(x) < _SMALL, series * small, jnp.exp(x) - 1)


def _shift(c: Leaves) -> Shift:
    return Shift(c["constant"], c["is_max"] > 0.5)


def _leaves(
    value: jax.Array, keys: jax.Array | None, axis: int, with_zero: bool
) -> dict[str, jax.Array]:
    chosen = choose(value, keys, TILE_SPAN, axis=axis, with_zero=with_zero)
    return {"constant": chosen.constant, "is_max": chosen.is_max.astype(value.dtype)}


def _exponential(value: jax.Array, c: Leaves) -> jax.Array:
    """expm1(V − c), in channels of the max form exp(V − c), by one exponential."""
    chosen = _shift(c)
    distance = value - chosen.constant
    raised = jnp.exp(jnp.where(chosen.is_max, jnp.maximum(distance, FLOOR), distance))
    # exp(x) − 1 is 6e-8 off, of x = 2e-3 3e-5; below, x + x²/2 is 7e-7 off.
    near = distance * (1 + 0.5 * distance)
    centred = jnp.where(jnp.abs(distance) < 2e-3, near, raised - 1)
    return jnp.where(chosen.is_max, raised, centred)


def _logarithm(means: jax.Array, c: Leaves) -> jax.Array:
    """The output of R = A·F: log(1 + R) by one logarithm, 6e-8 off."""
    chosen = _shift(c)
    argument = jnp.where(chosen.is_max, jnp.maximum(means, SMALLEST), 1 + means)
    return chosen.constant + jnp.log(argument)


_EXACT = Transform(
    value=lambda value, c: exponentiate(value, None, _shift(c), precise=True, expm1=expm1),
    output=lambda means, c: logarithm(means, None, _shift(c), precise=True),
    value_slope=lambda value, raised, c: raised + jnp.where(_shift(c).is_max, 0.0, 1.0),
    output_slope=lambda means, c: (
        1 / jnp.where(_shift(c).is_max, jnp.maximum(means, SMALLEST), 1 + means)
    ),
    leaves=_leaves,
    names=("constant", "is_max"),
    filler="constant",
)
# The rounding of bfloat16 is far above what one exponential and one logarithm cost.
_QUICK = _EXACT._replace(value=_exponential, output=_logarithm)


def transform(dtype: jnp.dtype) -> Transform:
    """Returns LASER's exponential and logarithm for inputs of this dtype."""
    return _EXACT if dtype == jnp.float32 else _QUICK
