"""Standard attention: softmax(QKᵀ/√D)·V (arXiv:1706.03762, eq. 1)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.call import Call
from attention.kernels import inputs
from attention.kernels.core import SOFTMAX
from attention.masks import Masks
from attention.records import Leaves, Mixer


def attend(query: jax.Array, key: jax.Array, value: jax.Array, **settings: Any) -> jax.Array:
    """Returns the softmax-weighted mean of the values, [..., T, H, Dv] in the inputs' dtype.

    query [..., T, H, D], key [..., S, K, D], value [..., S, K, Dv]; settings, all optional, are
    those of `attention.kernels.inputs.attend`. The softmax runs in float32. A query that sees no
    key returns 0 and passes no gradient.

    Raises ValueError for shapes that do not fit and for what `kernel` cannot do.
    """
    return inputs.attend(MIXER, query, key, value, **settings)


def weighted_mean(
    weighted_sum: Callable[[jax.Array], jax.Array],
    value: jax.Array,
    masks: Masks,
    *,
    dtype: jnp.dtype,
    span: float,
    sums_to_one: bool = True,
) -> jax.Array:
    """Returns A·V, [..., T, H, Dv], from any `weighted_sum` that maps V to A·V, in its dtype.

    value [..., S, H, Dv]; rows that see nothing are 0. `dtype`, `span` and `sums_to_one` are what
    `laser.log_mean_exp` needs, and are not used.
    """
    output = weighted_sum(value)
    return output if masks.rows is None else jnp.where(masks.rows, output, 0)


def host_mean(
    weighted_sum: Callable[[jax.Array], jax.Array], value: jax.Array, *_: object, **__: object
) -> jax.Array:
    """Returns the model's weighted mean as the model left it, rows that see nothing included."""
    return weighted_sum(value)


def reference_softmax(logits: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the rows' softmax over what the mask shows, float64; 0 if nothing is seen."""
    top = jnp.max(logits, axis=-1, keepdims=True, where=mask, initial=-jnp.inf)
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    exponentials = jnp.where(mask, jnp.exp(jnp.where(mask, logits - top, 0)), 0)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    return exponentials / jnp.where(total > 0, total, 1)


def branch(logits: jax.Array, mask: jax.Array, value: jax.Array) -> jax.Array:
    """Returns softmax(logits)·V in float64, [T, H, Dv] from logits [H, T, S], value [S, H, Dv]."""
    return jnp.einsum("hts,shd->thd", reference_softmax(logits, mask), value)


def formula(call: Call, leaves: Leaves, logits: Callable[[Any, Any], jax.Array]) -> jax.Array:
    """Returns softmax(QKᵀ/√D)·V."""
    return branch(logits(call.query, call.key), call.mask, call.value)


MIXER = Mixer(formula, weighted_mean, SOFTMAX, host_mean=host_mean)
