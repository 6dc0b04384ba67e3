"""A learned temperature per head dimension (AlgoPerf's QueryScaler, praxis' PerDimScale)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from attention.records import Inputs, Leaves, Modifier

Array = jax.Array

# 1/softplus(0) = 1/ln 2, so that p = 0 is a factor of exactly 1.
INVERSE_SOFTPLUS_OF_ZERO = 1.442695041


class PerDimTemp(nn.Module):
    """Query times 1.442695041·softplus(scale), per head dimension, shared by the heads.

    The formula of AlgoPerf's QueryScaler and praxis' PerDimScale; the paper prints
    softplus(p), which is 0.693 at p = 0. Maps [..., T, H, D] to the same shape and dtype.
    """

    @nn.compact
    def __call__(self, query: Array) -> Array:
        scale = self.param("scale", nn.initializers.zeros, (query.shape[-1],), jnp.float32)
        factor = INVERSE_SOFTPLUS_OF_ZERO * jax.nn.softplus(scale)
        return (query * factor).astype(query.dtype)


def apply(inputs: Inputs) -> Inputs:
    """Returns the inputs with the query scaled; leaf `per_dim_temp`."""
    return inputs._replace(query=PerDimTemp(name="per_dim_temp")(inputs.query))


def formula(
    inputs: Inputs, leaves: Leaves
) -> tuple[Inputs, Callable[[Inputs], tuple[Inputs, Leaves]]]:
    """Returns `apply` in float64, and its gradients from those of its result."""
    scale = leaves["per_dim_temp"]["scale"]
    factor = np.log1p(np.exp(scale)) * INVERSE_SOFTPLUS_OF_ZERO

    def pullback(bars: Inputs) -> tuple[Inputs, Leaves]:
        slope = INVERSE_SOFTPLUS_OF_ZERO / (1 + np.exp(-scale))
        learned = {"scale": slope * (bars.query * inputs.query).sum((0, 1))}
        return bars._replace(query=bars.query * factor), {"per_dim_temp": learned}

    return inputs._replace(query=inputs.query * factor), pullback


# The new queries are rounded to bfloat16 once more, as by `attention.modifiers.qk_norm`.
MODIFIER = Modifier("inputs", apply, formula, bfloat16_allowance=1.5)
