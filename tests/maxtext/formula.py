"""LASER in float64, as MaxText calls attention."""

import numpy as np


def laser(query, key, value, seen):
    """Returns log(softmax(QKᵀ)·exp(V)) [B, T, H, D] of query [B, T, H, D], key and value
    [B, T, K, D]; seen: bool, broadcasts to [B, H, T, T]. MaxText scales its queries itself."""
    query, key, value = (array.astype(np.float64) for array in (query, key, value))
    times = query.shape[2] // key.shape[2]
    key, value = (np.repeat(array, times, axis=2) for array in (key, value))
    logits = np.einsum("bthd,bshd->bhts", query, key)
    weights = np.exp(logits - logits.max(-1, keepdims=True)) * seen
    weights /= weights.sum(-1, keepdims=True)
    return np.log(np.einsum("bhts,bshd->bthd", weights, np.exp(value)))
