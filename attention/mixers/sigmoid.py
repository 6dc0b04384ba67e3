"""Sigmoid attention: sigmoid(QKᵀ/√D + b)·V with b = −log S (arXiv:2409.04431).

Every key has its weight by itself: no row sums to 1, and one key's weight depends on no other key.
S is the number of key positions of the call, padded and masked ones included, as the source's
n is the sequence length: masks only remove terms, and the others stay as they are. (With a cache,
S is the cache's length.) b makes the weights of S keys of logit 0 sum to about 1, which is what
the source found to be needed for stable training. Bias and mask enter as everywhere: the bias is
added to the logits, a hidden key has weight 0, and a query that sees no key returns 0.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from attention.call import Call
from attention.functions import Weighting
from attention.mixers import standard
from attention.records import Leaves, Mixer


@dataclasses.dataclass(frozen=True)
class _Sigmoid:
    """σ(x), x = l − log S: keys is S, which may be symbolic in jax.export."""

    keys: Any

    def __call__(self, logits: Array, s: Any) -> Array:
        """Returns σ(|x|)·e^min(x, 0), σ(|x|) by one tanh: all digits if it is small."""
        x = logits - jnp.log(self.keys)
        size, below = jnp.where(x < 0, -x, x), jnp.where(x < 0, x, 0.0)
        return (0.5 + 0.5 * jnp.tanh(0.5 * size)) * jnp.exp(below)


class _QuickSigmoid(_Sigmoid):
    """The same within 3e-8, of weights near 1/S: less than bfloat16 rounds where S < 1e5."""

    def __call__(self, logits: Array, s: Any) -> Array:
        """Returns (1 + tanh(x/2))/2."""
        return 0.5 + 0.5 * jnp.tanh(0.5 * (logits - jnp.log(self.keys)))


def _jacobian_norm(weights: Array) -> Array:
    """The Jacobian is the diagonal of a·(1 − a)."""
    return jnp.sqrt(jnp.sum(jnp.square(weights * (1 - weights)), axis=-1))


def weighting(keys: int, dtype: jnp.dtype) -> Weighting:
    """Returns how the logits of so many keys become weights, for inputs of this dtype."""
    sigmoid = _QuickSigmoid if dtype == jnp.bfloat16 else _Sigmoid
    return Weighting(sigmoid(keys), jacobian_norm=_jacobian_norm)


def formula(call: Call, leaves: Leaves, logits: Callable[[Any, Any], Array]) -> Array:
    """Returns Σ_k v_kj/(1 + S·exp(−logit_ik))."""
    scores = jnp.maximum(logits(call.query, call.key), -600)
    weights = jnp.where(call.mask, 1 / (1 + len(call.key) * jnp.exp(-scores)), 0)
    return jnp.einsum("hts,shd->thd", weights, call.value)


MIXER = Mixer(formula, standard.weighted_mean, weighting)
