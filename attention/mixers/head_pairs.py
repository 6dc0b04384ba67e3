"""Heads in pairs: the layout and the difference that Differential attention is made of.

Heads 2i and 2i + 1 are pair i (arXiv:2410.05258; microsoft/unilm, multihead_diffattn.py, views the
heads as [H/2, 2] too). The first of a pair gives the map A1, the second A2, and their values,
side by side, are the pair's value of size 2·Dv. Both maps meet the pair's whole value, so a
weighted sum over H heads, each given its pair's value, computes both branches in one call: masks
and biases per head, kernels and foreign attention functions need not know of pairs.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.kernels import core, library
from attention.mixers import inputs

Array = jax.Array


def attend(
    mean: Callable[..., Array],
    query: Array,
    key: Array,
    value: Array,
    *,
    lambda_: float | Array,
    kernel: str = "xla",
    **settings: Any,
) -> Array:
    """Returns branch 1 − λ·branch 2 per pair, [..., T, H/2, 2·Dv], float32 (float64 for float64).

    query [..., T, H, D], key [..., S, H, D], value [..., S, H, Dv]; `mean` is
    `standard.weighted_mean` or `laser.log_mean_exp`; `settings` are `problem.pose`'s.

    Raises ValueError for an odd number of heads, a λ that is not a scalar, and as
    `standard.attend` does.
    """
    posed, value = inputs.pose(query, key, value, **settings)
    check_even(value.shape[-2])
    chosen = library.get(kernel)
    branches = mean(
        lambda values: chosen.call(posed, values),
        # In float32, so that the gradients of a pair's two uses are added before they are rounded.
        values_of_pairs(value.astype(core.accumulator(value.dtype))),
        posed.visible,
        dtype=value.dtype,
        span=chosen.span,
        sums_to_one=posed.dropout is None,
    )
    return difference(branches, lambda_)


def check_even(heads: int) -> None:
    """Raises ValueError for an odd number of heads."""
    if heads % 2:
        raise ValueError(
            f"differential attention subtracts the maps of two heads, so heads come in pairs; got "
            f"{heads} heads, an odd number. Give the model an even number of heads"
        )


def values_of_pairs(value: Array) -> Array:
    """Returns [..., S, H, 2·Dv] from [..., S, H, Dv]: both heads of a pair get the pair's value."""
    *batch, heads, size = value.shape
    pairs = value.reshape((*batch, heads // 2, 1, 2 * size))
    shape = (*batch, heads // 2, 2, 2 * size)
    return jnp.broadcast_to(pairs, shape).reshape((*batch, heads, 2 * size))


def difference(branches: Array, lambda_: float | Array) -> Array:
    """Returns first − λ·second of each pair, [..., T, H/2, W] from [..., T, H, W], float32.

    Subtracted before any rounding to bfloat16: where the maps are alike little is left of two
    rounded numbers. Raises ValueError unless λ is a scalar.
    """
    wide = core.accumulator(branches.dtype)
    lambda_ = jnp.asarray(lambda_, wide)
    if lambda_.ndim:
        raise ValueError(f"lambda_ has shape {lambda_.shape}; λ is one number for all heads")
    *batch, heads, size = branches.shape
    branches = branches.reshape((*batch, heads // 2, 2, size)).astype(wide)
    return branches[..., 0, :] - lambda_ * branches[..., 1, :]


def heads_of_pairs(pairs: Array, dtype: jnp.dtype) -> Array:
    """Returns [..., T, H, Dv] in `dtype` from [..., T, H/2, 2·Dv]: each pair is cut in halves."""
    *batch, count, size = pairs.shape
    return pairs.reshape((*batch, 2 * count, size // 2)).astype(dtype)
