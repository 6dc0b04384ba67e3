"""Soft capping of the logits: cap·tanh(logits/cap) (Gemma 2, arXiv:2408.00118, section 2).

As in Gemma's code it acts on the scaled logits (τ included) and before bias and mask, so that no
logit lies outside (−cap, cap) and what is hidden stays hidden. Gemma 2 caps attention at 50.
"""

import jax.numpy as jnp
from jax import Array

from attention.records import Leaves, Modifier


def apply(logits: Array, queries: Array, keys: Array, leaves: Leaves, *, cap: float) -> Array:
    """Returns cap·tanh(logits/cap), of the same shape and dtype."""
    return cap * jnp.tanh(logits / cap)


def formula(logits: Array, leaves: Leaves, *, cap: float) -> Array:
    """Returns cap·(1 − 2/(e^(2·logits/cap) + 1)), which is cap·tanh(logits/cap)."""
    return cap * (1 - 2 / (jnp.exp(2 * logits / cap) + 1))


MODIFIER = Modifier("score", apply, formula, precedence=10)
