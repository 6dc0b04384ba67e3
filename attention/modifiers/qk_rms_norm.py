"""RMSNorm over the head dimension of query and key (Qwen3, arXiv:2505.09388; OLMo 2).

q ← (1 + scale)·q/√(mean q² + 1e-6), the key likewise; statistics in float32.
"""

import jax.numpy as jnp
from jax import Array

from attention import norms
from attention.modifiers import qk_norm


def reference(heads: Array) -> Array:
    """Returns `norms.rms_norm` in float64."""
    root = jnp.linalg.norm(heads, axis=-1, keepdims=True) ** 2 / heads.shape[-1]
    return heads * (root + 1e-6) ** -0.5


MODIFIER = qk_norm.record("query_rms/scale", "key_rms/scale", norms.rms_norm, reference)
