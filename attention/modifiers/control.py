"""A control that must change nothing: Q ← e^p·Q, K ← e^−p·K, so that QKᵀ stays.

p is one number. The loss does not depend on it, so its gradient is zero, without
the rounding that an optimizer would scale up. Rounding of Q and K differs from the mixer's, so that
two runs of one seed end apart, as those of two equally good programs do. A study that finds a
difference here finds them where there are none.
"""

import jax
import jax.numpy as jnp

from attention.call import Call
from attention.records import Leaf, Leaves, Modifier

_PATH = "control/scale"


def leaves(call: Call) -> tuple[Leaf, ...]:
    """Returns p, [1], 0.1 at start."""
    return (Leaf(_PATH, (1,), jax.nn.initializers.constant(0.1)),)


def apply(call: Call, leaves: Leaves) -> Call:
    """Returns the call with query and key scaled, in their dtype."""
    scale = jnp.exp(jax.lax.stop_gradient(leaves[_PATH]))
    return call._replace(
        query=(call.query * scale).astype(call.query.dtype),
        key=(call.key / scale).astype(call.key.dtype),
    )


def formula(call: Call, leaves: Leaves) -> Call:
    """Returns the call: in float64 it is not scaled."""
    return call


# Both are rounded once more, also after a norm (measured with qk_norm: 6.3e-3 in gradients).
MODIFIER = Modifier("inputs", apply, formula, leaves, precedence=60, bfloat16_allowance=2.0)
