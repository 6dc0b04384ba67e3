"""Sigmoid attention: sigmoid(QKᵀ/√D + b)·V with b = −log S (arXiv:2409.04431).

Every key has its weight by itself: no row sums to 1, and one key's weight depends on no other key.
S is the number of key positions of the call, padded and masked ones included, as the source's
n is the sequence length: masks only remove terms, and the others stay as they are. (With a cache,
S is the cache's length.) b makes the weights of S keys of logit 0 sum to about 1, which is what
the source found to be needed for stable training. Bias and mask enter as everywhere: the bias is
added to the logits, a hidden key has weight 0, and a query that sees no key returns 0.
"""

from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np

from attention.kernels.inputs import Settings, through_kernel
from attention.mixers import standard
from attention.records import Exact, Mixer, Weighting

Array = jax.Array


def attend(query: Array, key: Array, value: Array, **settings: Unpack[Settings]) -> Array:
    """Returns Σ_s sigmoid(logit_ts − log S)·v_s, [..., T, H, Dv] in the inputs' dtype.

    Arguments as in `attention.mixers.standard.attend`. Weights in float32, products in the inputs'
    dtype with float32 sums; a hidden key passes no gradient. Raises ValueError for shapes that do
    not fit, and for kernels other than 'xla', which know the softmax alone.
    """
    output = through_kernel(standard.weighted_mean, SIGMOID, query, key, value, **settings)
    return output.astype(jnp.result_type(query, key, value))


def _weights(logits: Array) -> Array:
    keys = jnp.asarray(logits.shape[-1], logits.dtype)  # may be symbolic in jax.export
    return jax.nn.sigmoid(logits - jnp.log(keys))


def _backward(weights: Array, gradient: Array) -> Array:
    return gradient * weights * (1 - weights)


def _jacobian_norm(weights: Array) -> Array:
    """The Jacobian is the diagonal of a·(1 − a)."""
    return jnp.sqrt(jnp.sum(jnp.square(weights * (1 - weights)), axis=-1))


SIGMOID = Weighting(_weights, _backward, _jacobian_norm, normalised=False)


def formula(
    logits: np.ndarray, mask: np.ndarray, value: np.ndarray, cotangent: np.ndarray
) -> Exact:
    """Returns Σ_k a_ik·v_kj, a = 1/(1 + S·exp(−logit)), and its gradients in closed form."""
    keys = logits.shape[-1]
    weights = np.where(mask, 1 / (1 + keys * np.exp(-np.maximum(logits, -600))), 0)
    output = np.einsum("hts,shd->thd", weights, value, optimize=True)
    products = np.einsum("thd,shd->hts", cotangent, value, optimize=True)
    value_bar = np.einsum("hts,thd->shd", weights, cotangent, optimize=True)
    return Exact(output, weights * (1 - weights) * products, value_bar)


MIXER = Mixer(attend, formula, weighting=SIGMOID)
