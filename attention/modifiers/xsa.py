"""Exclusive self-attention: what a query's own value gives is taken out (arXiv:2603.09078).

z_i = y_i − (y_i·v_i/(‖v_i‖² + 1e-6))·v_i, with v_i the value at the query's own position, that of
its head's group if there are fewer value heads.
"""

import jax.numpy as jnp
from jax import Array

from attention.call import Call
from attention.kernels.inputs import per_query_head
from attention.records import Leaves, Modifier

_EPSILON = 1e-6


def apply(out: Array, call: Call, leaves: Leaves) -> Array:
    """Returns the output without its part along the own value, in its dtype."""
    value = per_query_head(call.query, call.value).astype(out.dtype)
    along = jnp.sum(out * value, axis=-1, keepdims=True)
    return out - along / (jnp.sum(jnp.square(value), axis=-1, keepdims=True) + _EPSILON) * value


def formula(out: Array, call: Call, leaves: Leaves) -> Array:
    """Returns `apply` in float64."""
    value = call.value
    share = jnp.einsum("thd,thd->th", out, value)
    share = share / (jnp.einsum("thd,thd->th", value, value) + _EPSILON)
    return out - jnp.einsum("th,thd->thd", share, value)


MODIFIER = Modifier("output", apply, formula, precedence=10)
