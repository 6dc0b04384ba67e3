"""A sliding window: a query sees keys fewer than `width` away (Mistral 7B, arXiv:2310.06825).

|i − j| < width; of a causal model 0 ≤ i − j < width.
"""

import jax.numpy as jnp

from attention.call import Call
from attention.masks import Mask
from attention.records import Leaves, Modifier


def apply(call: Call, leaves: Leaves, *, width: int) -> Call:
    """Returns the call with keys further away hidden."""
    return call._replace(mask=call.mask & Mask(width=width))


def formula(call: Call, leaves: Leaves, *, width: int) -> Call:
    """Returns `apply` on whole masks."""
    _, queries, keys = call.mask.shape
    near = jnp.tri(queries, keys, width - 1, dtype=bool) & ~jnp.tri(
        queries, keys, -width, dtype=bool
    )
    return call._replace(mask=call.mask & near)


MODIFIER = Modifier("inputs", apply, formula, precedence=45)
