"""Attention whose queries have a learned scale per dimension, as AlgoPerf's Conformer has it.

Facts from algoperf/workloads/librispeech_conformer/librispeech_jax/models.py. Axes: T queries,
S keys, H heads, D head dimension.
"""

from typing import Any

import jax
from flax import linen as nn

Array = jax.Array


class QueryScaler(nn.Module):
    """Multiplies each dimension of the query by softplus(scale)/softplus(0): 1 at the start."""

    @nn.compact
    def __call__(self, query: Array) -> Array:
        """Returns query [..., D] scaled by parameters [D]."""
        scale = self.param("scale", nn.initializers.zeros, (query.shape[-1],))
        # 1/softplus(0) = 1/ln 2, in AlgoPerf's digits.
        return query * (1.442695041 * jax.nn.softplus(scale)).astype(query.dtype)


def query_scaled_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    temperature: float = 1.0,
) -> Array:
    """flax's dot_product_attention of a scaled query, times `temperature`; same axes.

    To be called by nn.MultiHeadDotProductAttention, among whose parameters the scale lies.
    """
    output: Array = nn.dot_product_attention(
        QueryScaler()(query),
        key,
        value,
        bias=bias,
        mask=mask,
        broadcast_dropout=broadcast_dropout,
        dropout_rng=dropout_rng,
        dropout_rate=dropout_rate,
        deterministic=deterministic,
        dtype=dtype,
        precision=precision,
    )
    return output * temperature
