"""Differential attention: (softmax(Q₁K₁ᵀ/√D) − λ·softmax(Q₂K₂ᵀ/√D))·V (arXiv:2410.05258, eq. 1).

Heads 2i and 2i + 1 are a pair with one value of size 2·Dv; the layout, λ from its learned vectors,
and the norm per pair that follows, are in `attention.mixers.head_pairs`.
"""

from typing import Unpack

import jax
import jax.numpy as jnp

from attention.kernels.inputs import Settings
from attention.mixers import head_pairs, standard

Array = jax.Array


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    lambda_: float | Array,
    **settings: Unpack[Settings],
) -> Array:
    """Returns (A1 − λ·A2)·V per pair, cut back into heads: [..., T, H, Dv] in the inputs' dtype.

    query [..., T, H, D], key [..., S, H, D], value [..., S, H, Dv], H even; `lambda_` (λ) is one
    number, possibly traced. `mask` and `bias` broadcast to [..., H, T, S], so that they may differ
    between the two maps of a pair; the other arguments are `attention.mixers.standard.attend`'s. A
    map whose query sees no key, or lost all of them to dropout, counts as 0.

    Attention dropout falls on the weights of all H maps as elsewhere: with `broadcast_dropout`
    (flax's default) both maps of a pair lose the same keys, which is dropout on A1 − λ·A2; without
    it every map draws its own.

    Raises ValueError for an odd number of heads, a λ that is not a scalar, and as
    `standard.attend` does. `jax_xla` and `cudnn` want 2·Dv to equal D, and say so.
    """
    difference = MIXER.attend(query, key, value, lambda_=lambda_, **settings)
    return head_pairs.heads_of_pairs(difference, jnp.result_type(query, key, value))


MIXER = head_pairs.record(standard.weighted_mean, standard.formula)
