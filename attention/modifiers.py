"""Modifiers with learned factors, as Flax modules that live beside the host's projections.

Every factor is stored so that weight decay pulls it to 1: AlgoPerf's NAdamW decays all
parameters, and a scale stored as itself would decay to 0. Leaves are called `scale`, which
AlgoPerf's parameter typing wants below a module named attention (algoperf/param_utils.py).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

Array = jax.Array

# 1/softplus(0) = 1/ln 2, so that p = 0 is a factor of exactly 1.
INVERSE_SOFTPLUS_OF_ZERO = 1.442695041


class QKNorm(nn.Module):
    """LayerNorm over the head dimension, no bias, factor 1 + scale (arXiv:2302.05442).

    Maps [..., length, H, D] to the same shape and dtype; statistics in float32, ε = 1e-6.
    """

    param_dtype: jnp.dtype = jnp.float32
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, heads: Array) -> Array:
        scale = self.param("scale", nn.initializers.zeros, (heads.shape[-1],), self.param_dtype)
        wide = heads.astype(jnp.promote_types(heads.dtype, jnp.float32))
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        normal = centred * jax.lax.rsqrt(variance + self.epsilon)
        return (normal * (1 + scale.astype(wide.dtype))).astype(heads.dtype)


class PerDimTemp(nn.Module):
    """Query times 1.442695041·softplus(scale), per head dimension, shared by the heads.

    The formula of AlgoPerf's QueryScaler and praxis' PerDimScale; the paper prints
    softplus(p), which is 0.693 at p = 0. Maps [..., T, H, D] to the same shape and dtype.
    """

    param_dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, query: Array) -> Array:
        scale = self.param("scale", nn.initializers.zeros, (query.shape[-1],), self.param_dtype)
        factor = INVERSE_SOFTPLUS_OF_ZERO * jax.nn.softplus(scale)
        return (query * factor).astype(query.dtype)


def _qk_norm(query: Array, key: Array) -> tuple[Array, Array]:
    return QKNorm(name="query_ln")(query), QKNorm(name="key_ln")(key)


def _per_dim_temp(query: Array, key: Array) -> tuple[Array, Array]:
    return PerDimTemp(name="per_dim_temp")(query), key


def _temp(query: Array, key: Array) -> tuple[Array, Array]:
    """τ divides the scale of the logits instead: `Variant.__call__`, `foreign.prepared`."""
    return query, key


# What each modifier of the table does to query and key, in the order in which they are applied.
MODIFY: dict[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    "qk_norm": _qk_norm,
    "per_dim_temp": _per_dim_temp,
    "temp": _temp,
}
