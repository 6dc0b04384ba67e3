"""Two strided convolutions that bring a spectrogram to one frame in 40 ms, and its positions.

Facts from algoperf/workloads/librispeech_conformer/librispeech_jax/models.py. Axes: B batch,
T frames, F mel bands, C channels.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from workloads.base.dropout import Dropout

Array = jax.Array

_STRIDE = 2


class Subsample(nn.Module):
    """[B, T, F] to [B, ⌈T/4⌉, dim]: two convolutions, a projection, sine positions, dropout."""

    dim: int
    channels: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, features: Array, paddings: Array, dropout_rate: Any, train: bool
    ) -> tuple[Array, Array]:
        """Returns frames [B, ⌈T/4⌉, dim] and their paddings for features [B, T, F]."""
        hidden = features[..., None].astype(self.dtype)
        for _ in range(2):
            hidden, paddings = Conv2dSubsampling(self.channels, self.dtype)(hidden, paddings)
        hidden = hidden.reshape(*hidden.shape[:2], -1)
        project = nn.Dense(self.dim, kernel_init=nn.initializers.xavier_uniform(), dtype=self.dtype)
        hidden = project(hidden)
        hidden = hidden + sine_positions(hidden.shape[1], self.dim).astype(self.dtype)
        return Dropout()(hidden, dropout_rate, not train), paddings


class Conv2dSubsampling(nn.Module):
    """3 x 3 convolution with stride 2 in time and frequency, then ReLU; padded frames are 0."""

    channels: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, inputs: Array, paddings: Array) -> tuple[Array, Array]:
        """Returns [B, ⌈T/2⌉, ⌈F/2⌉, channels] and paddings [B, ⌈T/2⌉] for [B, T, F, C]."""
        shape = (3, 3, inputs.shape[-1], self.channels)
        kernel = self.param("kernel", nn.initializers.xavier_uniform(), shape)
        bias = self.param("bias", nn.initializers.zeros, (self.channels,))
        hidden = jax.lax.conv_general_dilated(
            inputs,
            kernel.astype(self.dtype),
            window_strides=(_STRIDE, _STRIDE),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        hidden = nn.relu(hidden + bias.astype(self.dtype))
        paddings = paddings[:, ::_STRIDE]
        return hidden * (1 - paddings[:, :, None, None]).astype(self.dtype), paddings


def sine_positions(length: int, dim: int) -> Array:
    """Returns sines, then cosines, of time at dim // 2 rates from 1 to 1e-4, float32 [length, dim].

    An odd `dim` gets a last column of 0.
    """
    rates = np.exp(-np.arange(dim // 2) * np.log(1e4) / max(dim // 2 - 1, 1)).astype(jnp.float32)
    angles = jnp.arange(length, dtype=jnp.float32)[:, None] * rates
    signal = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
    return jnp.pad(signal, ((0, 0), (0, dim % 2)))
