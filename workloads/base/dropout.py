"""Dropout whose rate is an argument, so that a sweep over rates compiles once."""

import contextlib
import contextvars
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

Array = jax.Array
Rate = Any  # a float or a traced scalar
_rows: contextvars.ContextVar[Array | None] = contextvars.ContextVar("rows", default=None)


class Dropout(nn.Module):
    """Zeroes entries with probability `rate` and divides the rest by 1 − rate; at 1 all are 0.

    `rate` may be traced; flax's own nn.Dropout branches on it in Python and would compile anew
    for each value. Randomness comes from the rng collection 'dropout'.
    """

    @nn.compact
    def __call__(self, inputs: Array, rate: float | Array, deterministic: bool) -> Array:
        """Returns inputs with dropout applied, or as they are where `deterministic`."""
        if deterministic or (isinstance(rate, float) and rate == 0.0):
            return inputs
        keep = 1.0 - jnp.asarray(rate, jnp.float32)
        kept = keep_mask(self.make_rng("dropout"), keep, inputs.shape)
        # At rate 1 nothing is kept, and the gradient is 0: 0/0 would be NaN behind the selection.
        divisor = jnp.where(keep > 0, keep, 1).astype(inputs.dtype)
        return jnp.where(kept, inputs / divisor, 0)


@contextlib.contextmanager
def rows_of_a_batch(rows: Array) -> Iterator[None]:
    """Has masks drawn within, of arrays [b, …], be those that `rows`, int [b], have of a batch.

    So a batch that is computed in parts draws what it would as a whole.
    """
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)


def keep_mask(key: Array, keep: Array, shape: tuple[int, ...]) -> Array:
    """Returns a bool array, each entry True with probability `keep` (to 2^-24).

    One threefry key per call, then MurmurHash3's finaliser over the position: jax.random.bernoulli
    hashes every entry with threefry, which doubles the step of a small ViT on a CPU (45 to 85 ms
    of CPU time for digits_vit); a dropout mask needs decorrelated bits, not a cipher.
    """
    words = jax.random.bits(key, (2,), jnp.uint32)
    rows = _rows.get()
    if rows is None:
        position = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    else:
        inner = math.prod(shape[1:])
        first = (rows.astype(jnp.uint32) * jnp.uint32(inner)).reshape(-1, *[1] * (len(shape) - 1))
        position = first + jax.lax.iota(jnp.uint32, inner).reshape(shape[1:])
    bits = _finalise(_finalise(position ^ words[0]) ^ words[1])
    return (bits >> 8) < jnp.ceil(keep * 2**24).astype(jnp.uint32)


def _finalise(bits: Array) -> Array:
    """MurmurHash3's 32-bit finaliser (Appleby, public domain): a bijection that avalanches."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)
