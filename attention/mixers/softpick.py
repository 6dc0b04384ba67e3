"""Softpick: relu(e^s − 1)/(ε + Σ_j |e^{s_j} − 1|), a softmax that can be zero (arXiv:2504.20966).

Keys of negative logits have weight 0 and still count in the denominator, so that rows need not sum
to 1 and no key must take what is left over. Computed with m = max(0, the row's maximum) as
relu(e^{s−m} − e^{−m})/(ε·e^{−m} + Σ |e^{s−m} − e^{−m}|), ε = 1e-6 as in the source.

The gradient jumps where a logit is 0: modifiers that round queries and keys to bfloat16 once more
move logits across it, and dQ and dK are 1.4e-2 off (3e-3 without them).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.call import Call
from attention.mixers import standard
from attention.records import Leaves, Mixer, Weighting

Array = jax.Array
_EPSILON = 1e-6


def _weights(logits: Array) -> Array:
    # Hidden keys have the lowest number, and count nowhere.
    is_seen = logits > jnp.finfo(logits.dtype).min
    top = jax.lax.stop_gradient(jnp.maximum(jnp.max(logits, axis=-1, keepdims=True), 0))
    # e^{s−m} − e^{−m} by expm1, which keeps its digits where s is near 0.
    near = jnp.where(is_seen & (logits < 1), logits, 0)
    far = jnp.where(is_seen & (logits >= 1), logits, top)
    low = jnp.exp(-top)
    terms = jnp.where(logits < 1, low * jnp.expm1(near), jnp.exp(far - top) - low)
    terms = jnp.where(is_seen, terms, 0)
    total = jnp.sum(jnp.abs(terms), axis=-1, keepdims=True)
    return jax.nn.relu(terms) / (_EPSILON * low + total)


SOFTPICK = Weighting(_weights)


def formula(call: Call, leaves: Leaves, logits: Callable[[Any, Any], Array]) -> Array:
    """Returns Σ_k relu(e^s_ik − 1)·v_kj/(ε + Σ_k |e^s_ik − 1|)."""
    del leaves
    terms = jnp.where(call.mask, jnp.expm1(logits(call.query, call.key)), 0)
    total = _EPSILON + jnp.abs(terms).sum(-1, keepdims=True)
    return jnp.einsum("hts,shd->thd", jnp.where(terms > 0, terms, 0) / total, call.value)


MIXER = Mixer(formula, standard.weighted_mean, SOFTPICK)
