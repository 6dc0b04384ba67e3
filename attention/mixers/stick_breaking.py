"""Stick-breaking attention: σ(s_ij)·Π_{j<l<i} (1 − σ(s_il)) for keys j < i (arXiv:2410.17980).

Going back from the query, each key takes a share of what the nearer keys left, so that order is
known without positions. The weights of a row sum to 1 − Π (1 − σ(s)); the first query sees nothing
and returns 0. Later keys, and a query's own, are hidden whatever the mask says.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.call import Call
from attention.masks import Mask
from attention.mixers import standard
from attention.records import Leaves, Mixer, Weighting

Array = jax.Array


def _weights(logits: Array) -> Array:
    """Hidden keys have the lowest number, of which σ is 0: they take nothing."""
    rest = jax.nn.log_sigmoid(-logits)
    # Keys after j: the sum from the end, without j itself.
    nearer = jax.lax.cumsum(rest, axis=rest.ndim - 1, reverse=True) - rest
    return jnp.exp(jax.nn.log_sigmoid(logits) + nearer)


STICK_BREAKING = Weighting(_weights)


def formula(call: Call, leaves: Leaves, logits: Callable[[Any, Any], Array]) -> Array:
    """Returns Σ_{j<i} σ(s_ij)·Π_{j<l<i} (1 − σ(s_il))·v_j, key by key from the last one."""
    del leaves
    scores = logits(call.query, call.key)
    shares = jnp.where(call.mask, 1 / (1 + jnp.exp(-scores)), 0)

    def take(left: Array, share: Array) -> tuple[Array, Array]:
        return left * (1 - share), left * share

    start = jnp.ones(shares.shape[:-1], shares.dtype)
    _, weights = jax.lax.scan(take, start, jnp.moveaxis(shares, -1, 0), reverse=True)
    return jnp.einsum("sht,shd->thd", weights, call.value)


MIXER = Mixer(formula, standard.weighted_mean, STICK_BREAKING, mask=Mask(causal=True, strict=True))
