"""The Conformer's norms: layer norm with a factor 1 + scale, and batch norm that skips padding.

Facts from algoperf/workloads/librispeech_conformer/librispeech_jax/models.py. Statistics are
float32 whatever the activations are. Axes: B batch, T frames, C channels.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

Array = jax.Array


class LayerNorm(nn.Module):
    """(x - mean)/√(var + 1e-6)·(1 + scale) + bias over the last axis; scale starts at 0."""

    dtype: Any = jnp.float32
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """Returns inputs [..., C] normalised, in `dtype`."""
        scale = self.param("scale", nn.initializers.zeros, (inputs.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (inputs.shape[-1],))
        wide = inputs.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + self.epsilon)
        return (normed * (1 + scale) + bias).astype(self.dtype)


class BatchNorm(nn.Module):
    """Normalises each channel over the valid frames of the batch, or by running averages.

    The averages move by 1 - momentum per update towards the batch's mean and (biased) variance.
    """

    momentum: float
    epsilon: float = 1e-3
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, inputs: Array, paddings: Array, update: bool, use_running_average: bool
    ) -> Array:
        """Returns inputs [B, T, C] normalised, 0 where paddings [B, T] are 1, in `dtype`."""
        shape = (inputs.shape[-1],)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
        variance = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)
        scale = self.param("scale", nn.initializers.zeros, shape)
        bias = self.param("bias", nn.initializers.zeros, shape)
        valid = 1.0 - paddings[..., None]
        wide = inputs.astype(jnp.float32)
        centre, spread = mean.value, variance.value
        if not use_running_average:
            centre, spread = masked_moments(wide, valid)
            if update and not self.is_initializing():
                mean.value = self._moved(mean.value, centre)
                variance.value = self._moved(variance.value, spread)
        factor = (1 + scale) / jnp.sqrt(spread + self.epsilon)
        return (((wide - centre) * factor + bias) * valid).astype(self.dtype)

    def _moved(self, average: Array, new: Array) -> Array:
        return self.momentum * average + (1 - self.momentum) * new


def masked_moments(inputs: Array, valid: Array) -> tuple[Array, Array]:
    """Returns mean and biased variance [C] of inputs [B, T, C] where valid [B, T, 1] is 1.

    Both are 0 where nothing is valid.
    """
    count = jnp.maximum(jnp.sum(valid), 1.0)
    mean = jnp.sum(inputs * valid, axis=(0, 1)) / count
    variance = jnp.sum(jnp.square(inputs - mean) * valid, axis=(0, 1)) / count
    return mean, variance
