"""SpecAugment (arXiv:1904.08779) as AlgoPerf's Conformer applies it: spans of features set to 0.

Facts from algoperf/workloads/librispeech_conformer/librispeech_jax/spectrum_augmenter.py.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Masks:
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

    masks: Masks = Masks()

    def __call__(self, features: Array, paddings: Array) -> Array:
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
        self, count: int, available: Array, longest: Array, bound: Array, size: int
    ) -> Array:
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
