"""Forget gates: logits_ij + c_i − c_j for j ≤ i, c_t = Σ_{l≤t} log f_l (arXiv:2503.02130).

f_t = σ(x_t·w + b) per head, b = log 99 and w = 0 at start (ours), so that every gate begins at
0.99. Later keys are hidden whatever the mask says. Two vectors, a row and a column, hold the bias.
"""

import math

import jax
import jax.numpy as jnp

from attention.call import Call
from attention.masks import Mask
from attention.records import Leaf, Leaves, Modifier

_WEIGHTS, _SHIFT = "fox/scale", "fox/scale_bias"
_START = math.log(99.0)


def leaves(call: Call) -> tuple[Leaf, ...]:
    """Returns w [W, H] and b − log 99 [H], zero at start."""
    width, heads = call.x.shape[-1], call.query.shape[-2]
    return Leaf(_WEIGHTS, (width, heads)), Leaf(_SHIFT, (heads,))


def apply(call: Call, leaves: Leaves) -> Call:
    """Returns the call with later keys hidden, c on the rows of its bias and −c on its columns."""
    wide = jnp.promote_types(call.x.dtype, jnp.float32)
    logits = jnp.einsum("...tw,wh->...ht", call.x.astype(wide), leaves[_WEIGHTS].astype(wide))
    logits = logits + (leaves[_SHIFT] + _START)[:, None].astype(wide)
    sums = jnp.cumsum(jax.nn.log_sigmoid(logits), axis=-1)
    return call._replace(bias=call.bias.plus(sums, -sums), mask=call.mask & Mask(causal=True))


def formula(call: Call, leaves: Leaves) -> Call:
    """Returns `apply` in float64."""
    gates = 1 / (1 + jnp.exp(-(call.x @ leaves[_WEIGHTS] + leaves[_SHIFT] + _START)))
    length = len(gates)
    sums = jnp.tri(length) @ jnp.log(gates)
    decay = sums.T[:, :, None] - sums.T[:, None]
    return call._replace(bias=call.bias + decay, mask=call.mask & jnp.tri(length, dtype=bool))


MODIFIER = Modifier("inputs", apply, formula, leaves, precedence=46)
