"""A gate on the output: y ← y ⊙ 2σ(x·W_g) (arXiv:2505.06708; Qwen3-Next, marin).

One gate for each channel (per="channel", W_g: W → H·Dv) or for each head (per="head", W → H). W_g
is zero at start, as in marin, where 2σ(0) = 1 leaves the mechanism unchanged.
"""

import jax
import jax.numpy as jnp

from attention.call import Call
from attention.records import Leaf, Leaves, Modifier

_PATH = "gate/scale"


def leaves(call: Call, *, per: str) -> tuple[Leaf, ...]:
    """Returns W_g, [W, H, Dv] or [W, H, 1], zero at start."""
    size = call.value.shape[-1] if per == "channel" else 1
    return (Leaf(_PATH, (call.x.shape[-1], call.query.shape[-2], size)),)


def apply(out: jax.Array, call: Call, leaves: Leaves, *, per: str) -> jax.Array:
    """Returns the gated output, in its dtype."""
    weights = leaves[_PATH].astype(call.x.dtype)
    gates = jnp.einsum("...w,whd->...hd", call.x, weights, preferred_element_type=out.dtype)
    return out * (2 * jax.nn.sigmoid(gates))


def formula(out: jax.Array, call: Call, leaves: Leaves, *, per: str) -> jax.Array:
    """Returns `apply` in float64."""
    return out * 2 / (1 + jnp.exp(-jnp.tensordot(call.x, leaves[_PATH], 1)))


# W_g is rounded to bfloat16 for its product, and so is its gradient.
MODIFIER = Modifier("output", apply, formula, leaves, precedence=20, bfloat16_allowance=1.2)
