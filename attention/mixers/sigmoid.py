"""Sigmoid attention: sigmoid(QKᵀ/√D + b)·V with b = −log S (arXiv:2409.04431).

Every key has its weight by itself: no row sums to 1, and one key's weight depends on no other key.
S is the number of key positions of the call, padded and masked ones included, as the source's
n is the sequence length: masks only remove terms, and the others stay as they are. (With a cache,
S is the cache's length.) b makes the weights of S keys of logit 0 sum to about 1, which is what
the source found to be needed for stable training. Bias and mask enter as everywhere: the bias is
added to the logits, a hidden key has weight 0, and a query that sees no key returns 0.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.call import Call
from attention.mixers import standard
from attention.records import Leaves, Mixer, Weighting

Array = jax.Array


def _weights(logits: Array) -> Array:
    keys = jnp.asarray(logits.shape[-1], logits.dtype)  # may be symbolic in jax.export
    return jax.nn.sigmoid(logits - jnp.log(keys))


def _backward(weights: Array, gradient: Array) -> Array:
    return gradient * weights * (1 - weights)


def _jacobian_norm(weights: Array) -> Array:
    """The Jacobian is the diagonal of a·(1 − a)."""
    return jnp.sqrt(jnp.sum(jnp.square(weights * (1 - weights)), axis=-1))


SIGMOID = Weighting(_weights, _backward, _jacobian_norm)


def formula(call: Call, leaves: Leaves, logits: Callable[[Any, Any], Array]) -> Array:
    """Returns Σ_k v_kj/(1 + S·exp(−logit_ik))."""
    del leaves
    scores = jnp.maximum(logits(call.query, call.key), -600)
    weights = jnp.where(call.mask, 1 / (1 + len(call.key) * jnp.exp(-scores)), 0)
    return jnp.einsum("hts,shd->thd", weights, call.value)


MIXER = Mixer(formula, standard.weighted_mean, SIGMOID)
