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
from attention.functions import Weighting
from attention.masks import Mask
from attention.mixers import standard
from attention.records import Leaves, Mixer


def _weights(logits: jax.Array, left: jax.Array) -> jax.Array:
    return jnp.exp(jax.nn.log_sigmoid(logits) + left)


def _left(logits: jax.Array) -> jax.Array:
    return jax.nn.log_sigmoid(-logits)


STICK_BREAKING = Weighting(_weights, left=_left)


def formula(call: Call, leaves: Leaves, logits: Callable[[Any, Any], jax.Array]) -> jax.Array:
    """Returns Σ_{j<i} σ(s_ij)·Π_{j<l<i} (1 − σ(s_il))·v_j, as a product from the last key on."""
    shares = jnp.where(call.mask, 1 / (1 + jnp.exp(-logits(call.query, call.key))), 0)
    rest = jnp.flip(1 - shares[..., 1:], axis=-1)
    left = jnp.pad(jnp.cumprod(rest, axis=-1), ((0, 0), (0, 0), (1, 0)), constant_values=1)
    return jnp.einsum("hts,shd->thd", shares * jnp.flip(left, axis=-1), call.value)


MIXER = Mixer(formula, standard.weighted_mean, STICK_BREAKING, mask=Mask(causal=True, strict=True))
