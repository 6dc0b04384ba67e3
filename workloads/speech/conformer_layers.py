"""Layers of the Conformer: norms that skip padding, subsampling by two convolutions, SpecAugment.

Facts from algoperf/workloads/librispeech_conformer/librispeech_jax/{models,spectrum_augmenter}.py.
Statistics are float32 whatever the activations are. SpecAugment (arXiv:1904.08779) sets spans of
features to 0. Axes: B batch, T frames, F mel bands, C channels.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from workloads.base.dropout import Dropout


class LayerNorm(nn.Module):
    """(x - mean)/√(var + 1e-6)·(1 + scale) + bias over the last axis; scale starts at 0."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns inputs [..., C] normalised, in `dtype`."""
        scale = self.param("scale", nn.initializers.zeros, (inputs.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (inputs.shape[-1],))
        wide = inputs.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + 1e-6)
        return (normed * (1 + scale) + bias).astype(self.dtype)


class BatchNorm(nn.Module):
    """Normalises each channel over the valid frames of the batch, or by running averages.

    1e-3 is added to the variance. The averages move by 1 - momentum per update towards the batch's
    mean and (biased) variance.
    """

    momentum: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, inputs: jax.Array, paddings: jax.Array, update: bool, use_running_average: bool
    ) -> jax.Array:
        """Returns inputs [B, T, C] normalised, in `dtype`; 0 if paddings [B, T] are 1."""
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
        factor = (1 + scale) / jnp.sqrt(spread + 1e-3)
        return (((wide - centre) * factor + bias) * valid).astype(self.dtype)

    def _moved(self, average: jax.Array, new: jax.Array) -> jax.Array:
        return self.momentum * average + (1 - self.momentum) * new


def masked_moments(inputs: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns mean and biased variance [C] of the valid frames (valid [B, T, 1] of 1) of [B, T, C].

    Both are 0 if no frame is valid.
    """
    count = jnp.maximum(jnp.sum(valid), 1.0)
    mean = jnp.sum(inputs * valid, axis=(0, 1)) / count
    variance = jnp.sum(jnp.square(inputs - mean) * valid, axis=(0, 1)) / count
    return mean, variance


_STRIDE = 2


class Subsample(nn.Module):
    """[B, T, F] to [B, ⌈T/4⌉, dim]: two convolutions, a projection, sine positions, dropout."""

    dim: int
    channels: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, features: jax.Array, paddings: jax.Array, dropout_rate: Any, train: bool
    ) -> tuple[jax.Array, jax.Array]:
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
    def __call__(self, inputs: jax.Array, paddings: jax.Array) -> tuple[jax.Array, jax.Array]:
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


def sine_positions(length: int, dim: int) -> jax.Array:
    """Returns sines, then cosines, of time at dim // 2 rates from 1 to 1e-4, float32 [length, dim].

    An odd `dim` gets a last column of 0.
    """
    rates = np.exp(-np.arange(dim // 2) * np.log(1e4) / max(dim // 2 - 1, 1)).astype(jnp.float32)
    angles = jnp.arange(length, dtype=jnp.float32)[:, None] * rates
    signal = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
    return jnp.pad(signal, ((0, 0), (0, dim % 2)))


@dataclasses.dataclass(frozen=True)
class SpecAugMasks:
    """How much is masked; the defaults are AlgoPerf's.

    `time_masks` spans of up to `time_ratio` of the example's own length each, and
    `frequency_masks` spans of up to `frequency_bins` bands.
    """

    time_masks: int = 10
    time_ratio: float = 0.05
    frequency_masks: int = 2
    frequency_bins: int = 27


class SpecAug(nn.Module):
    """Zeroes random spans of frames, then of mel bands; spans may overlap.

    Randomness comes from the rng collection 'dropout': span sizes first, then places, time before
    frequency.
    """

    masks: SpecAugMasks = SpecAugMasks()

    def __call__(self, features: jax.Array, paddings: jax.Array) -> jax.Array:
        """Returns features [B, T, F] with spans at 0; paddings [B, T] give the lengths."""
        masks = self.masks
        lengths = jnp.sum(1.0 - paddings, axis=-1).astype(jnp.int32)[:, None]
        longest = lengths * masks.time_ratio
        bound = jnp.maximum(longest.astype(jnp.int32), 1)
        frames = self._spans(masks.time_masks, lengths, longest, bound, features.shape[1])
        bands = features.shape[2]
        available = jnp.full_like(lengths, bands)
        longest = jnp.full(lengths.shape, float(masks.frequency_bins))
        bins = self._spans(masks.frequency_masks, available, longest, available, bands)
        return jnp.where(frames[:, :, None] | bins[:, None, :], 0, features)

    def _spans(
        self, count: int, available: jax.Array, longest: jax.Array, bound: jax.Array, size: int
    ) -> jax.Array:
        """Returns bool [B, size], True inside any of `count` spans per example.

        available, longest, bound [B, 1]: spans lie in [0, available) and have
        min(int(u·longest), bound) entries with u uniform in [0, 1).
        """
        shape = (available.shape[0], count)
        portion = jax.random.uniform(self.make_rng("dropout"), shape)
        place = jax.random.uniform(self.make_rng("dropout"), shape)
        length = jnp.minimum((longest * portion).astype(jnp.int32), bound)
        start = (place * (available - length + 1)).astype(jnp.int32)
        position = jnp.arange(size)
        inside = (position >= start[..., None]) & (position < (start + length)[..., None])
        return jnp.any(inside, axis=1)
