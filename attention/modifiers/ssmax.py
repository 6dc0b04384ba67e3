"""Scalable softmax: q_i ← s·log(n_i)·q_i, n_i the keys that query i sees (arXiv:2501.19399).

s is learned per head and 1/log S at start, with S the number of keys there (ours), so that a row
that sees everything begins unchanged. A query that sees one key gets logits of 0.
"""

import jax
import jax.numpy as jnp

from attention import masks
from attention.call import Call
from attention.records import Leaf, Leaves, Modifier

_PATH = "ssmax/scale"


def leaves(call: Call) -> tuple[Leaf, ...]:
    """Returns s, [H], 1/log S at start."""
    keys = call.key.shape[-3]

    def start(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
        # May be symbolic in jax.export.
        return jnp.full(shape, 1 / jnp.log(jnp.maximum(jnp.asarray(keys, dtype), 2)), dtype)

    return (Leaf(_PATH, call.query.shape[-2:-1], start),)


def apply(call: Call, leaves: Leaves) -> Call:
    """Returns the call with the query scaled, in its dtype."""
    queries, keys = call.query.shape[-3], call.key.shape[-3]
    wide = jnp.promote_types(call.query.dtype, jnp.float32)
    pairs = masks.merged(call.mask, queries, keys).pairs
    if pairs is None:
        count = jnp.asarray(keys, wide)  # may be symbolic in jax.export
    else:
        pairs = jnp.broadcast_to(pairs, (*pairs.shape[:-1], keys))
        count = jnp.swapaxes(jnp.sum(pairs, axis=-1, dtype=wide), -2, -1)[..., None]
    factor = leaves[_PATH][:, None] * jnp.log(jnp.maximum(count, 1))
    return call._replace(query=(call.query * factor).astype(call.query.dtype))


def formula(call: Call, leaves: Leaves) -> Call:
    """Returns `apply` in float64."""
    counts = jnp.maximum(call.mask.sum(-1), 1).T
    return call._replace(query=call.query * (leaves[_PATH] * jnp.log(counts))[..., None])


MODIFIER = Modifier("inputs", apply, formula, leaves, precedence=50, bfloat16_allowance=1.5)
