"""Standard attention: softmax(QKᵀ/√D)·V (arXiv:1706.03762, eq. 1)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from attention.kernels import library
from attention.kernels.masks import Visibility
from attention.mixers import inputs

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
    """Returns the softmax-weighted mean of the values, [..., T, H, Dv] in the inputs' dtype.

    query [..., T, H, D], key [..., S, H, D], value [..., S, H, Dv]. `scale` defaults to D^-0.5;
    `mask` (True where a query may look) and `bias` broadcast to [..., H, T, S]. The softmax runs
    in float32. A query that sees no key returns 0 and passes no gradient. `broadcast_dropout`
    draws one dropout mask for all batch entries and heads, as flax does.

    Raises ValueError for shapes that do not fit and for what `kernel` cannot do.
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
    output = weighted_mean(
        lambda values: chosen.call(posed, values),
        value,
        posed.visible,
        dtype=value.dtype,
        span=chosen.span,
        sums_to_one=posed.dropout is None,
    )
    return output.astype(value.dtype)


def weighted_mean(
    weighted_sum: Callable[[Array], Array],
    value: Array,
    visible: Visibility,
    *,
    dtype: jnp.dtype,
    span: float,
    sums_to_one: bool = True,
) -> Array:
    """Returns A·V, [..., T, H, Dv], from any `weighted_sum` that maps V to A·V, in its dtype.

    value [..., S, H, Dv]; rows that see nothing are 0. `dtype`, `span` and `sums_to_one` are what
    `laser.log_mean_exp` needs, and are not used.
    """
    del dtype, span, sums_to_one
    output = weighted_sum(value)
    return output if visible.rows is None else jnp.where(visible.rows, output, 0)
