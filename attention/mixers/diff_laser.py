"""Differential LASER: log(A1·exp V) − λ·log(A2·exp V) per pair of heads (LASER, ICML 2025).

The logarithm is taken in each branch, so that values moved by c move the output by (1 − λ)·c.
Pairs are those of `attention.mixers.diff`, each branch's arithmetic that of
`attention.mixers.laser`, and exact as far as that is, over the keys its own head sees.
"""

from typing import Unpack

import jax
import jax.numpy as jnp

from attention.kernels.inputs import Settings
from attention.mixers import head_pairs, laser

Array = jax.Array


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    lambda_: float | Array,
    **settings: Unpack[Settings],
) -> Array:
    """Returns log(A1·exp V) − λ·log(A2·exp V) per pair, cut back into heads: [..., T, H, Dv].

    Shapes, arguments, dropout and dtype as in `attention.mixers.diff.attend`; each branch is exact
    as far as `attention.mixers.laser.attend` is, over the keys its own head sees. A branch whose
    query sees no key, or lost all of them to dropout, counts as 0.

    Raises ValueError for float16, and as `attention.mixers.diff.attend` does.
    """
    difference = MIXER.attend(query, key, value, lambda_=lambda_, **settings)
    return head_pairs.heads_of_pairs(difference, jnp.result_type(query, key, value))


MIXER = head_pairs.record(laser.log_mean_exp, laser.formula)
