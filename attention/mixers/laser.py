"""LASER attention: log(softmax(QKᵀ/√D)·exp(V)), element-wise (LASER, ICML 2025, eq. 6).

The arithmetic is that of `attention.mixers.shift`; see there for why the paper's own max trick is
not enough, and what it loses.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from attention.kernels import core, library
from attention.kernels.masks import Visibility
from attention.mixers import inputs, shift

Array = jax.Array


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: float | Array | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    is_causal: bool = False,
    dropout_rng: Array | None = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = True,
    precision: jax.lax.PrecisionLike = None,
    kernel: str = "xla",
) -> Array:
    """Returns log Σ_s a_ts·exp(v_s) per channel, [..., T, H, Dv] in the inputs' dtype.

    Arguments as in `attention.mixers.standard.attend`. A query that sees no key, or whose weights
    dropout removed altogether, returns 0 and passes no gradient. Exact to rounding while a
    channel's valid values span at most 75 nats; beyond that, values more than 75 nats below the
    maximum may count as 75 below.

    Raises ValueError for float16 (its window of 16 nats gives NaN at values of size 4), for
    shapes that do not fit, and for what `kernel` cannot do.
    """
    posed, value = inputs.pose(
        query,
        key,
        value,
        scale=scale,
        bias=bias,
        mask=mask,
        is_causal=is_causal,
        dropout_rng=dropout_rng,
        dropout_rate=dropout_rate,
        broadcast_dropout=broadcast_dropout,
        precision=precision,
    )
    chosen = library.get(kernel)
    output = log_mean_exp(
        lambda values: chosen.call(posed, values),
        value,
        posed.visible,
        dtype=value.dtype,
        span=chosen.span,
        sums_to_one=posed.dropout is None,
    )
    return output.astype(value.dtype)


def log_mean_exp(
    weighted_sum: Callable[[Array], Array],
    value: Array,
    visible: Visibility,
    *,
    dtype: jnp.dtype,
    span: float,
    sums_to_one: bool = True,
) -> Array:
    """Returns log(A·exp(V)) for any `weighted_sum` that maps V to A·V and is linear in V.

    value [..., S, H, D] in `dtype`, the dtype of the inputs, or wider; the result is [..., T, H, D]
    in float32 (float64 for float64), for the caller to round. So is what `weighted_sum` receives,
    with one more channel (of ones, to learn Σ a) unless `sums_to_one`; it rounds to `dtype`.
    `span` is the kernel's (`kernels.Kernel`).

    Raises ValueError for float16.
    """
    refuse_float16(dtype)
    wide = value.astype(core.accumulator(dtype))
    precise = dtype == wide.dtype
    shifted = shift.choose(wide, visible.keys, span)
    exponential = shift.exponentiate(wide, visible.keys, shifted, precise=precise)
    if sums_to_one:
        total, mass = weighted_sum(exponential).astype(wide.dtype), None
    else:
        ones = jnp.ones((*exponential.shape[:-1], 1), exponential.dtype)
        both = weighted_sum(jnp.concatenate([exponential, ones], axis=-1)).astype(wide.dtype)
        total, mass = both[..., :-1], both[..., -1:]
    output = shift.logarithm(total, mass, shifted, precise=precise)
    if visible.rows is not None:
        output = jnp.where(visible.rows, output, 0)
    if mass is not None:
        output = jnp.where(mass > 0, output, 0)
    return output


def refuse_float16(dtype: jnp.dtype) -> None:
    """Raises ValueError for float16."""
    if dtype == jnp.float16:
        raise ValueError(
            "LASER in float16 gives NaN: exp() leaves a window of 10 to 16 nats, which values of "
            "standard deviation 4 exceed. Use bfloat16 (same width) or float32"
        )
