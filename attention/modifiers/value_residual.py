"""A residual to the first layer's values: v ← a·v + b·v₀ (arXiv:2410.17897, learnable form).

Layer 0 is unchanged and leaves its values for the others. a = b = ½ at start; the leaves hold their
distance from it, so that weight decay pulls them there. Layer 0 has the leaves too, unused, so that
layers can be stacked.
"""

import jax.numpy as jnp

from attention.call import Call
from attention.records import Leaf, Leaves, Modifier

_OWN, _FIRST = "value_residual/scale_own", "value_residual/scale_first"
_NAME = "value_residual"


def leaves(call: Call) -> tuple[Leaf, ...]:
    """Returns a − ½ and b − ½, scalars, zero at start."""
    return Leaf(_OWN, ()), Leaf(_FIRST, ())


def apply(call: Call, leaves: Leaves) -> Call:
    """Returns the call with the values mixed, and the first layer's in its memory.

    Raises ValueError if the memory lacks values of the call's shape in a layer after the first.
    """
    value, memory, index = call.value, call.memory, call.layer.index  # type: ignore[union-attr]
    is_first = index == 0
    # Of a first layer that is known to be one, memory need not hold anything.
    first = value if is_first is True else memory.get(_NAME)  # type: ignore[union-attr]
    if first is None or first.shape != value.shape:
        shape = "nothing" if first is None else f"values of shape {first.shape}"
        raise ValueError(
            f"value_residual in layer {index} finds {shape} in its memory, not the first layer's "
            f"values {value.shape}: hand on the memory that each layer returns, from layer 0 of "
            "the same call of the model"
        )
    wide = jnp.promote_types(value.dtype, jnp.float32)
    share, first_share = (0.5 + leaves[path].astype(wide) for path in (_OWN, _FIRST))
    mixed = (share * value.astype(wide) + first_share * first.astype(wide)).astype(value.dtype)
    kept = jnp.where(is_first, value, first)
    return call._replace(
        value=jnp.where(is_first, value, mixed),
        memory={**memory, _NAME: kept},  # type: ignore[dict-item]
    )


def formula(call: Call, leaves: Leaves) -> Call:
    """Returns `apply` in float64, in a layer after the first."""
    first = call.memory[_NAME]  # type: ignore[index]
    mixed = (0.5 + leaves[_OWN]) * call.value + (0.5 + leaves[_FIRST]) * first
    return call._replace(value=mixed)


MODIFIER = Modifier(
    "inputs", apply, formula, leaves, precedence=10, keeps=jnp.zeros_like, bfloat16_allowance=1.5
)
