"""What a query may look at: masks, causality and biases brought to one answer.

Shapes: T queries, S keys, H heads. A key is hidden where the mask is False, where it lies in the
future of a causal query, and where the bias is at most `HIDING_BIAS`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array

# A mask written as a bias: −1e4 (BERT, GPT-NeoX; −9984 in bfloat16), −1e9 and −1e10 (T5), float16's
# minimum −65504, −∞. The weight of such a key is exactly 0 in every dtype, but LASER must also keep
# its value out of the shift. No bias with a meaning of its own is as low: ALiBi's steepest slope,
# 1/2, gets there after 10,000 positions, with a weight of e^−5000.
HIDING_BIAS = -5000.0


class Masks(NamedTuple):
    """Which key each query sees. None means everything.

    pairs: bool, broadcasts to [..., H, T, S].
    keys: bool, broadcasts to [..., S, H, 1]: some query of that batch entry and head sees it.
    rows: bool, broadcasts to [..., T, H, 1]: the query sees something.
    """

    pairs: Array | None = None
    keys: Array | None = None
    rows: Array | None = None


def merged(
    queries: int, keys: int, *, mask: Array | None, bias: Array | None, is_causal: bool
) -> Masks:
    """Returns what `queries` rows see of `keys` keys.

    `is_causal` means that query t sees keys 0..t (as in jax.nn.dot_product_attention, aligned at
    the start where T ≠ S). mask and bias broadcast to [..., H, T, S].
    """
    parts = []
    if mask is not None:
        parts.append(_four_axes(mask.astype(bool)))
    if bias is not None:
        parts.append(_four_axes(~(bias <= HIDING_BIAS)))  # NaN hides nothing
    if is_causal:
        parts.append(jnp.tril(jnp.ones((1, queries, keys), bool)))
    if not parts:
        return Masks()
    pairs = parts[0]
    for part in parts[1:]:
        pairs = pairs & part
    return Masks(
        pairs,
        keys=jnp.swapaxes(jnp.any(pairs, axis=-2), -2, -1)[..., None],
        rows=jnp.swapaxes(jnp.any(pairs, axis=-1), -2, -1)[..., None],
    )


def of_causality(queries: int, keys: int) -> Masks:
    """Returns the same for causality alone, known without an array: every query sees key 0, and a
    key is seen by its own query."""
    return Masks(keys=None if keys <= queries else (jnp.arange(keys) < queries)[:, None, None])


def _four_axes(pairs: Array) -> Array:
    """Returns `pairs` with at least the axes [H, T, S]."""
    return pairs.reshape((1,) * max(0, 3 - pairs.ndim) + pairs.shape)
