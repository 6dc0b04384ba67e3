"""LayerNorm over the head dimension of query and key (arXiv:2302.05442).

No bias, factor 1 + scale, ε = 1e-6, statistics in float32.
"""

import jax
import jax.numpy as jnp

from attention.call import Call
from attention.records import Leaf, Leaves, Modifier

Array = jax.Array
_QUERY, _KEY = "query_ln/scale", "key_ln/scale"
_EPSILON = 1e-6


def leaves(call: Call) -> tuple[Leaf, ...]:
    """Returns the scales of query and key, [D] each, zero at start."""
    return Leaf(_QUERY, call.query.shape[-1:]), Leaf(_KEY, call.key.shape[-1:])


def _normed(heads: Array, scale: Array) -> Array:
    wide = heads.astype(jnp.promote_types(heads.dtype, jnp.float32))
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(variance + _EPSILON)
    return (normal * (1 + scale.astype(wide.dtype))).astype(heads.dtype)


def apply(call: Call, leaves: Leaves) -> Call:
    """Returns the call with query and key normalised, in their dtype."""
    return call._replace(
        query=_normed(call.query, leaves[_QUERY]), key=_normed(call.key, leaves[_KEY])
    )


def formula(call: Call, leaves: Leaves) -> Call:
    """Returns `apply` in float64."""

    def normed(heads: Array, scale: Array) -> Array:
        return (1 + scale) * (heads - heads.mean(-1)[..., None]) / _deviation(heads)

    return call._replace(
        query=normed(call.query, leaves[_QUERY]), key=normed(call.key, leaves[_KEY])
    )


def _deviation(heads: Array) -> Array:
    mean = heads.mean(-1)[..., None]
    return jnp.sqrt((heads**2).mean(-1)[..., None] - mean**2 + _EPSILON)


# The new queries and keys are rounded to bfloat16 once more, forward and backward (measured:
# 4.9e-3 in dQ, 3.5e-3 in the output).
MODIFIER = Modifier("inputs", apply, formula, leaves, precedence=20, bfloat16_allowance=1.5)
