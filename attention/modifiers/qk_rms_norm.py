"""RMSNorm over the head dimension of query and key (Qwen3, arXiv:2505.09388; OLMo 2).

q ← (1 + scale)·q/√(mean q² + 1e-6), the key likewise; statistics in float32.
"""

import jax
import jax.numpy as jnp

from attention.call import Call
from attention.records import Leaf, Leaves, Modifier

Array = jax.Array
_QUERY, _KEY = "query_rms/scale", "key_rms/scale"
_EPSILON = 1e-6


def leaves(call: Call) -> tuple[Leaf, ...]:
    """Returns the scales of query and key, [D] each, zero at start."""
    return Leaf(_QUERY, call.query.shape[-1:]), Leaf(_KEY, call.key.shape[-1:])


def _normed(heads: Array, scale: Array) -> Array:
    wide = heads.astype(jnp.promote_types(heads.dtype, jnp.float32))
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    normal = wide * jax.lax.rsqrt(mean_square + _EPSILON)
    return (normal * (1 + scale.astype(wide.dtype))).astype(heads.dtype)


def apply(call: Call, leaves: Leaves) -> Call:
    """Returns the call with query and key normalised, in their dtype."""
    return call._replace(
        query=_normed(call.query, leaves[_QUERY]), key=_normed(call.key, leaves[_KEY])
    )


def formula(call: Call, leaves: Leaves) -> Call:
    """Returns `apply` in float64."""
    arrays = {}
    for name, path in (("query", _QUERY), ("key", _KEY)):
        heads = getattr(call, name)
        root = jnp.linalg.norm(heads, axis=-1, keepdims=True) ** 2 / heads.shape[-1]
        arrays[name] = (1 + leaves[path]) * heads * (root + _EPSILON) ** -0.5
    return call._replace(**arrays)


MODIFIER = Modifier("inputs", apply, formula, leaves, precedence=20, bfloat16_allowance=1.5)
