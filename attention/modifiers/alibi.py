"""Linear biases: logits_ij − m_h·|i − j|, m_h = 2^(−8h/H), h = 1 … H (arXiv:2108.12409).

For every number of heads; the authors' code interpolates slopes if it is no power of two.
"""

import jax.numpy as jnp
from jax import Array

from attention.call import Call
from attention.records import Leaf, Leaves, Modifier

_PATH = "alibi/slope"


def _slopes(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    (heads,) = shape
    return 2.0 ** (-8.0 * jnp.arange(1, heads + 1, dtype=dtype) / heads)


def leaves(call: Call) -> tuple[Leaf, ...]:
    """Returns the slopes, [H], which are constants."""
    return (Leaf(_PATH, call.query.shape[-2:-1], _slopes, is_learned=False),)


def apply(logits: Array, queries: Array, keys: Array, leaves: Leaves) -> Array:
    """Returns the logits less slope times distance."""
    return logits - leaves[_PATH] * jnp.abs(queries - keys)


def formula(logits: Array, leaves: Leaves) -> Array:
    """Returns `apply` in float64, from the slopes' own definition."""
    heads, length, _ = logits.shape
    slopes = jnp.exp2(-8 * jnp.linspace(1 / heads, 1, heads))
    position = jnp.arange(length, dtype=logits.dtype)
    distance = jnp.maximum(position[:, None] - position, position - position[:, None])
    return logits - slopes[:, None, None] * distance


MODIFIER = Modifier("score", apply, formula, leaves, precedence=20)
