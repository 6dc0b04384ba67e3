"""BERT's masking (arXiv:1810.04805, section 3.1), drawn on the device.

15 % of a sequence's ordinary tokens are to be predicted; of those 80 % become the mask id, 10 % a
random ordinary token, and 10 % stay. What is drawn is a function of the sequence's key alone.
Axes: B batch, L length, K places to predict.
"""

import math

import jax
import jax.numpy as jnp

Array = jax.Array

MASK = 3
# Ids 0 to 3 are pad, end of document, unknown and mask: never chosen, never put in.
FIRST_ORDINARY = 4
CHOSEN = 0.15
_MASKED, _RANDOM = 0.8, 0.1


def places(length: int) -> int:
    """Returns K, room for the chosen places of one sequence: 15 % of it, rounded up."""
    return math.ceil(CHOSEN * length)


def masked(tokens: Array, keys: Array, vocabulary: int) -> dict[str, Array]:
    """Returns what a masked language model trains on, from tokens [B, L] and one key each, [B].

    inputs int32 [B, L]; positions int32 [B, K], ascending; targets int32 [B, K], the tokens that
    stood there; weights float32 [B, K], 0 where a sequence has fewer than K places to predict.
    The number of places is 15 % of the ordinary tokens, rounded up or down so that it is 15 % on
    average.
    """
    result: dict[str, Array] = jax.vmap(_masked_sequence, in_axes=(0, 0, None))(
        tokens.astype(jnp.int32), keys, vocabulary
    )
    return result


def _masked_sequence(tokens: Array, key: Array, vocabulary: int) -> dict[str, Array]:
    choose, rounding, change, replace = jax.random.split(key, 4)
    positions, weights = _choose(tokens, choose, rounding)
    targets = tokens[positions]
    draw = jax.random.uniform(change, positions.shape)
    random = jax.random.randint(replace, positions.shape, FIRST_ORDINARY, vocabulary)
    changed = jnp.where(draw < _MASKED + _RANDOM, random, targets)
    changed = jnp.where(draw < _MASKED, MASK, changed)
    changed = jnp.where(weights > 0, changed, targets)
    inputs = tokens.at[positions].set(changed)
    return {"inputs": inputs, "positions": positions, "targets": targets, "weights": weights}


def _choose(tokens: Array, key: Array, rounding: Array) -> tuple[Array, Array]:
    """Returns K different places in ascending order, and weight 1 for those to predict."""
    ordinary = tokens >= FIRST_ORDINARY
    score = jnp.where(ordinary, jax.random.uniform(key, tokens.shape), -1.0)
    _, positions = jax.lax.top_k(score, places(len(tokens)))
    count = jnp.floor(CHOSEN * jnp.sum(ordinary) + jax.random.uniform(rounding))
    weights = (jnp.arange(len(positions)) < count) & ordinary[positions]
    order = jnp.argsort(positions)
    return positions[order], weights[order].astype(jnp.float32)
