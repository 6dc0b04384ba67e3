"""Softpick: relu(e^s − 1)/(ε + Σ_j |e^{s_j} − 1|), a softmax that can be zero (arXiv:2504.20966).

Keys of negative logits have weight 0 and still count in the denominator, so that rows need not sum
to 1 and no key must take what is left over. Computed with m = max(0, the row's maximum) as
relu(e^{s−m} − e^{−m})/(ε·e^{−m} + Σ |e^{s−m} − e^{−m}|), ε = 1e-6 as in the source.

The gradient jumps if a logit is 0: modifiers that round queries and keys to bfloat16 once more
move logits across it, and dQ and dK are 1.4e-2 off (3e-3 without them).
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.call import Call
from attention.functions import Weighting
from attention.mixers import standard
from attention.records import Leaves, Mixer

_EPSILON = 1e-6


def _terms(logits: jax.Array, s: jax.Array) -> jax.Array:
    """Returns e^(l − s) − e^−s by tanh(l/2) = (e^l − 1)/(e^l + 1), which keeps small ones whole."""
    return jnp.tanh(0.5 * logits) * (jnp.exp(logits - s) + jnp.exp(-s))


def _quick_terms(logits: jax.Array, s: jax.Array) -> jax.Array:
    """Returns the same within 6e-8·e^−s, less than bfloat16 rounds logits."""
    return jnp.exp(logits - s) - jnp.exp(-s)


def _of(terms: Callable[[jax.Array, jax.Array], jax.Array]) -> Weighting:
    return Weighting(
        lambda logits, s: jax.nn.relu(terms(logits, s)),
        lambda logits, s: jnp.abs(terms(logits, s)),
        floor=0.0,
        start=math.log(_EPSILON),
    )


_EXACT, _QUICK = _of(_terms), _of(_quick_terms)


def weighting(keys: int, dtype: jnp.dtype) -> Weighting:
    """Returns how logits become weights, for inputs of this dtype."""
    return _QUICK if dtype == jnp.bfloat16 else _EXACT


def formula(call: Call, leaves: Leaves, logits: Callable[[Any, Any], jax.Array]) -> jax.Array:
    """Returns Σ_k relu(e^s_ik − 1)·v_kj/(ε + Σ_k |e^s_ik − 1|)."""
    terms = jnp.where(call.mask, jnp.expm1(logits(call.query, call.key)), 0)
    total = _EPSILON + jnp.abs(terms).sum(-1, keepdims=True)
    return jnp.einsum("hts,shd->thd", jnp.where(terms > 0, terms, 0) / total, call.value)


MIXER = Mixer(formula, standard.weighted_mean, weighting)
