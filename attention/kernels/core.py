"""Softmax-weighted sums, computed by XLA, returned in float32: the core under every mixer.

A library kernel hands its sum back in the inputs' dtype. LASER takes the logarithm of that sum,
where a relative rounding becomes an absolute error, so this core keeps it in float32. Its own
backward pass scales each row's cotangent to 1 before its product with V, so that values up to e^80
never overflow to ∞ (times a weight of 0: NaN) whatever the size of the loss; and it runs every
product in the inputs' dtype with float32 accumulation.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
Precision = jax.lax.PrecisionLike


class Settings(NamedTuple):
    """What is compiled in: the softmax scale (applied to QKᵀ) and the matmul precision."""

    scale: float
    precision: Precision = None


def accumulator(dtype: jnp.dtype) -> jnp.dtype:
    """Returns the dtype sums are kept in: float32, or float64 for float64 inputs."""
    return jnp.promote_types(dtype, jnp.float32)


def probabilities(
    settings: Settings,
    query: Array,
    key: Array,
    bias: Array | None,
    visible: Array | None,
) -> Array:
    """Returns softmax(scale·QKᵀ + bias) over what is visible, float32, shape [..., H, T, S].

    query [..., T, H, D], key [..., S, H, D]; bias and visible broadcast to [..., H, T, S].
    Hidden entries are exactly 0; a row that sees nothing is uniform, and its caller discards it.
    """
    wide = accumulator(query.dtype)
    logits = settings.scale * jnp.einsum(
        "...thd,...shd->...hts",
        query,
        key,
        precision=settings.precision,
        preferred_element_type=wide,
    )
    if bias is not None:
        logits = logits + bias.astype(wide)
    if visible is not None:
        # The lowest number, not −∞: a row that sees nothing stays finite, and so do its gradients.
        logits = jnp.where(visible, logits, jnp.finfo(wide).min)
    return jax.nn.softmax(logits, axis=-1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def weighted_sum(
    settings: Settings,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    visible: Array | None,
    multiplier: Array | None,
) -> Array:
    """Returns Σ_s m_ts·p_ts·v_s with p = `probabilities`, float32, shape [..., T, H, D].

    value [..., S, H, Dv]; `multiplier` m (attention dropout) broadcasts to [..., H, T, S]. A value
    in float32 beside bfloat16 queries is rounded here, and its gradient is not: the sum of a
    pair's two gradients, or LASER's chain rule, goes on from there (dV of `diff_laser` 6.5e-3
    otherwise).
    Gradients flow to query, key, value and bias; every product runs in the inputs' dtype with
    float32 accumulation, as a bfloat16 matrix unit wants it. No forward-mode derivative.
    """
    return _forward(settings, query, key, value, bias, visible, multiplier)[0]


def _forward(settings, query, key, value, bias, visible, multiplier):  # type: ignore[no-untyped-def]
    weights = probabilities(settings, query, key, bias, visible)
    dropped = weights if multiplier is None else weights * multiplier
    rounded = value.astype(query.dtype)
    total = jnp.einsum(
        "...hts,...shd->...thd",
        dropped.astype(rounded.dtype),
        rounded,
        precision=settings.precision,
        preferred_element_type=accumulator(rounded.dtype),
    )
    # Weights stay float32: rounded to bfloat16 they took dQ from 3.4e-3 to 4.2e-3.
    # An empty array carries the dtype of the value's gradient.
    like = jnp.empty(0, value.dtype)
    residuals = (query, key, rounded, like, bias, multiplier, weights)
    return total, residuals


def _backward(settings, residuals, cotangent):  # type: ignore[no-untyped-def]
    query, key, value, like, bias, multiplier, weights = residuals
    wide, narrow = accumulator(value.dtype), value.dtype
    einsum = functools.partial(
        jnp.einsum, precision=settings.precision, preferred_element_type=wide
    )
    dropped = weights if multiplier is None else weights * multiplier
    value_bar = einsum("...hts,...thd->...shd", dropped.astype(narrow), cotangent.astype(narrow))

    row = _power_of_two(jnp.max(jnp.abs(cotangent), axis=-1, keepdims=True))
    weight_bar = einsum("...thd,...shd->...hts", (cotangent / row).astype(narrow), value)
    if multiplier is not None:
        weight_bar = weight_bar * multiplier
    # p∘(X − Σ p∘X), as p∘X − p·Σ p∘X: p∘X is bounded by the row's sum where X alone is not.
    product = weights * weight_bar
    logit_bar = product - weights * jnp.sum(product, axis=-1, keepdims=True)
    logit_bar = logit_bar * jnp.swapaxes(row, -3, -2)

    narrow_bar = (settings.scale * logit_bar).astype(query.dtype)
    query_bar = einsum("...hts,...shd->...thd", narrow_bar, key)
    key_bar = einsum("...hts,...thd->...shd", narrow_bar, query)
    bias_bar = None if bias is None else _unbroadcast(logit_bar, bias)
    return (
        query_bar.astype(query.dtype),
        key_bar.astype(key.dtype),
        value_bar.astype(like.dtype),
        bias_bar,
        None,
        None,
    )


weighted_sum.defvjp(_forward, _backward)


def _power_of_two(size: Array) -> Array:
    """Returns the power of two at or above `size`, so that dividing by it rounds nothing."""
    return jnp.ldexp(jnp.ones_like(size), jnp.frexp(size)[1])


def _unbroadcast(gradient: Array, like: Array) -> Array:
    """Returns `gradient` summed over the axes along which `like` was broadcast."""
    extra = gradient.ndim - like.ndim
    summed = jnp.sum(gradient, axis=tuple(range(extra)))
    axes = tuple(
        axis
        for axis, (size, whole) in enumerate(zip(like.shape, summed.shape, strict=True))
        if size == 1 and whole != 1
    )
    return jnp.sum(summed, axis=axes, keepdims=True).astype(like.dtype)
