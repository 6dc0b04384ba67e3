"""Cross-entropy over tokens. Axes: B batch, N tokens to predict, V vocabulary."""

from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array


def cross_entropy(
    labels: Array, logits: Array, mask: Array | None = None, label_smoothing: Any = 0.0
) -> dict[str, Array]:
    """Returns 'summed', 'n_valid_examples' (tokens, weighted) and 'per_example' [B]; nats, float32.

    labels int [B, N], logits [B, N, V], mask [B] or [B, N]. The target distribution is
    (1 − s)·onehot + s/V, as in optax.
    """
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    expected = (1.0 - label_smoothing) * _at(logits, labels)
    expected = expected + label_smoothing * jnp.mean(logits, axis=-1)
    weights = token_weights(labels.shape, mask)
    losses = (normaliser - expected) * weights
    return {
        "summed": losses.sum(),
        "n_valid_examples": weights.sum(),
        "per_example": losses.sum(axis=-1),
    }


def correct(labels: Array, logits: Array, mask: Array | None = None) -> Array:
    """Returns how many labels have the highest logit, weighted, float32."""
    right = jnp.argmax(logits, axis=-1) == labels
    return jnp.sum(right * token_weights(labels.shape, mask))


def token_weights(shape: tuple[int, ...], mask: Array | None) -> Array:
    """Returns float32 weights [B, N] for a mask [B], [B, N] or None (all 1)."""
    if mask is None:
        return jnp.ones(shape, jnp.float32)
    mask = mask[:, None] if mask.ndim == 1 else mask
    return jnp.broadcast_to(mask, shape).astype(jnp.float32)


def _at(logits: Array, labels: Array) -> Array:
    """Returns logits[..., label]; as a sum, which needs no gather where V is divided."""
    entries = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return jnp.sum(jnp.where(entries == labels[..., None], logits, 0.0), axis=-1)
