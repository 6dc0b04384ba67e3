"""The methods whose bfloat16 reconstruction the paper compares, and ours, as plain functions.

Each maps query [T, H, D], key and value [S, H, D] and a mask (bool [H or 1, T or 1, S], or None) to
the output [T, H, D]. `arrays` computes in the dtype of its inputs; `products` takes float32 arrays
of which every matrix product rounds its two inputs to bfloat16 and sums in float32.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attention.kernels import core
from attention.kernels.masks import visibility
from attention.mixers import laser, shift, standard
from attention.verification import oracle

Array = jax.Array
Method = Callable[[Array, Array, Array, Array | None], Array]


class Row(NamedTuple):
    """A method: its name (the paper's, or ours), the mixer it computes, and two ways to."""

    name: str
    mixer: str
    arrays: Method
    products: Method


def _standard(query: Array, key: Array, value: Array, mask: Array | None) -> Array:
    return standard.attend(query, key, value, mask=mask)


def _vanilla(query: Array, key: Array, value: Array, mask: Array | None) -> Array:
    """LASER as its equation stands, without any maximum."""
    return jnp.log(jax.nn.dot_product_attention(query, key, jnp.exp(value), mask=mask))


def _snippet(query: Array, key: Array, value: Array, mask: Array | None) -> Array:
    return oracle.paper_snippet(query, key, value, mask=mask)


def _ours(query: Array, key: Array, value: Array, mask: Array | None) -> Array:
    return laser.attend(query, key, value, mask=mask)


def _standard_products(query: Array, key: Array, value: Array, mask: Array | None) -> Array:
    """Our core rounds a float32 value to the queries' dtype and returns its sum in float32."""
    settings = core.Settings(query.shape[-1] ** -0.5)
    narrow = query.astype(jnp.bfloat16), key.astype(jnp.bfloat16)
    return core.weighted_sum(settings, *narrow, value, None, mask, None)


def _vanilla_products(query: Array, key: Array, value: Array, mask: Array | None) -> Array:
    return jnp.log(_standard_products(query, key, jnp.exp(value), mask))


def _snippet_products(query: Array, key: Array, value: Array, mask: Array | None) -> Array:
    top = jnp.max(value, axis=0, keepdims=True)
    return _vanilla_products(query, key, value - top, mask) + top


def _ours_products(query: Array, key: Array, value: Array, mask: Array | None) -> Array:
    return laser.log_mean_exp(
        lambda values: _standard_products(query, key, values, mask),
        value,
        visibility(len(query), len(key), mask=mask, bias=None, is_causal=False),
        dtype=value.dtype,
        span=shift.OWN_SPAN,
    )


METHODS = (
    Row("Standard", "standard", _standard, _standard_products),
    Row("LASER vanilla", "laser", _vanilla, _vanilla_products),
    Row("LASER+log-weighted-sum-exp", "laser", _snippet, _snippet_products),
    Row("LASER, ours", "laser", _ours, _ours_products),
)
