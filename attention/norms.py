"""Norms over the last axis, without learned factors. The caller chooses the dtype."""

import jax
import jax.numpy as jnp


def layer_norm(array: jax.Array, epsilon: float) -> jax.Array:
    """Returns entries of mean 0 and variance 1, [..., D] (arXiv:1607.06450)."""
    return rms_norm(array - jnp.mean(array, axis=-1, keepdims=True), epsilon)


def rms_norm(array: jax.Array, epsilon: float) -> jax.Array:
    """Returns entries over their root mean square, [..., D] (arXiv:1910.07467)."""
    mean_square = jnp.mean(jnp.square(array), axis=-1, keepdims=True)
    return array * jax.lax.rsqrt(mean_square + epsilon)
