"""Dropout whose rate is an argument, so that a sweep over rates compiles once."""

import contextlib
import contextvars
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention.functions import scrambled

Rate = Any  # a float or a traced scalar
_rows: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar("rows", default=None)


class Dropout(nn.Module):
    """Zeroes entries with probability `rate` and divides the rest by 1 − rate; at 1 all are 0.

    `rate` may be traced. flax's nn.Dropout branches on it in Python and would compile once a value.
    Randomness comes from the rng collection 'dropout'.
    """

    @nn.compact
    def __call__(
        self, inputs: jax.Array, rate: float | jax.Array, deterministic: bool
    ) -> jax.Array:
        """Returns inputs with dropout applied, unchanged if `deterministic`."""
        if deterministic or (isinstance(rate, float) and rate == 0.0):
            return inputs
        keep = 1.0 - jnp.asarray(rate, jnp.float32)
        kept = keep_mask(self.make_rng("dropout"), keep, inputs.shape)
        # At rate 1 nothing is kept, and the gradient is 0: 0/0 would be NaN behind the selection.
        divisor = jnp.where(keep > 0, keep, 1).astype(inputs.dtype)
        return jnp.where(kept, inputs / divisor, 0)


@contextlib.contextmanager
def rows_of_a_batch(rows: jax.Array) -> Iterator[None]:
    """Inside this context a microbatch draws the masks of its rows in the whole batch.

    rows: int32 [b], the place of each row of the microbatch in the batch.
    """
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)


def keep_mask(key: jax.Array, keep: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns a bool array, each entry True with probability `keep` (to 2^-24).

    One threefry key per call, then MurmurHash3's finaliser over the position. jax.random.bernoulli
    hashes every entry with threefry, which doubles the step of a small ViT on a CPU (45 to 85 ms
    of CPU time for digits_vit). A dropout mask needs decorrelated bits, not a cipher.
    """
    words = jax.random.bits(key, (2,), jnp.uint32).astype(jnp.int32)
    rows = _rows.get()
    if rows is None:
        position = jax.lax.iota(jnp.int32, math.prod(shape)).reshape(shape)
    else:
        inner = math.prod(shape[1:])
        first = (rows * jnp.int32(inner)).reshape(-1, *[1] * (len(shape) - 1))
        position = first + jax.lax.iota(jnp.int32, inner).reshape(shape[1:])
    bits = position
    for word in words:
        bits = scrambled(bits ^ word)
        bits ^= jax.lax.shift_right_logical(bits, 16)
    threshold = jnp.ceil(keep * 2**24).astype(jnp.int32)
    return jax.lax.shift_right_logical(bits, 8) < threshold
