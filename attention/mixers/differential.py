"""What differential attention learns: λ, and the norm of each pair (arXiv:2410.05258, eq. 2, 3).

    λ = exp(λ_q1·λ_k1) − exp(λ_q2·λ_k2) + λ_init,   λ_init = 0.8 − 0.6·exp(−0.3·depth)

with depth from 0 (microsoft/unilm, multihead_diffattn.py; the paper counts layers from 1), so that
λ_init is 0.2 in the first layer. The vectors have the head size D and serve all heads of a layer.

The pair's output then goes through an RMSNorm over its 2·Dv channels and is multiplied by
1 − λ_init. The rows of A1 − λ·A2 sum to 1 − λ; the norm takes that size away, and the factor gives
it back, so that gradients are of the size they have in a plain Transformer. Without the norm
(`head_norm=False`; the LASER paper does not say whether it keeps it) the output still has that
size, so the factor goes with the norm.

Leaves are called `scale...`, see `attention.modifiers`; decay pulls λ to λ_init.
"""

import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

Array = jax.Array


def lambda_init(depth: int | Array) -> Array:
    """Returns 0.8 − 0.6·exp(−0.3·depth), a float32 scalar; depth from 0, possibly traced.

    Raises ValueError where depth is not one integer, or is known to be negative.
    """
    if isinstance(depth, jax.Array):
        if depth.ndim or not jnp.issubdtype(depth.dtype, jnp.integer):
            raise ValueError(
                f"depth is an array of shape {depth.shape} and dtype {depth.dtype}; it is one "
                "integer, the layer's index from 0"
            )
        return 0.8 - 0.6 * jnp.exp(-0.3 * depth.astype(jnp.float32))
    try:
        index = operator.index(depth)
    except TypeError:
        index = -1
    if index < 0 or isinstance(depth, bool):
        raise ValueError(f"depth={depth!r}: it is the layer's index, an integer from 0")
    return 0.8 - 0.6 * jnp.exp(jnp.float32(-0.3 * index))


class DiffLambda(nn.Module):
    """λ of a layer, from four vectors of the head size, each normal with sd 0.1 at start."""

    param_dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, head_size: int, start: Array) -> Array:
        """Returns λ, a float32 scalar; `start` is λ_init."""
        q1, k1, q2, k2 = (
            self.param(name, nn.initializers.normal(0.1), (head_size,), self.param_dtype).astype(
                jnp.float32
            )
            for name in ("scale_q1", "scale_k1", "scale_q2", "scale_k2")
        )
        return jnp.exp(jnp.sum(q1 * k1)) - jnp.exp(jnp.sum(q2 * k2)) + start


class HeadNorm(nn.Module):
    """RMSNorm over the last axis, factor 1 + scale shared by the pairs (arXiv:1910.07467).

    Maps [..., H/2, 2·Dv] to the same shape and dtype; ε = 1e-5 as in the official code.
    """

    param_dtype: jnp.dtype = jnp.float32
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, pairs: Array) -> Array:
        scale = self.param("scale", nn.initializers.zeros, (pairs.shape[-1],), self.param_dtype)
        mean_square = jnp.mean(jnp.square(pairs), axis=-1, keepdims=True)
        return pairs * jax.lax.rsqrt(mean_square + self.epsilon) * (1 + scale.astype(pairs.dtype))


def apply(
    difference: Callable[[Array], Array],
    *,
    head_size: int,
    depth: int | Array,
    head_norm: bool,
) -> Array:
    """Returns `difference(λ)`, [..., T, H/2, 2·Dv], after the norm and its factor 1 − λ_init.

    Call it inside a Flax module's compact method: `diff_lambda` and `head_norm` are made there.
    Raises ValueError as `lambda_init` does.
    """
    start = lambda_init(depth)
    pairs = difference(DiffLambda(name="diff_lambda")(head_size, start))
    if not head_norm:
        return pairs
    return HeadNorm(name="head_norm")(pairs) * (1 - start).astype(pairs.dtype)
