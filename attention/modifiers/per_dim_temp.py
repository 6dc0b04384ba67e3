"""A learned temperature per head dimension (AlgoPerf's QueryScaler, praxis' PerDimScale).

The query is multiplied by 1.442695041·softplus(p), per head dimension, shared by the heads; the
paper prints softplus(p), which is 0.693 at p = 0.
"""

import jax
import jax.numpy as jnp

from attention.call import Call
from attention.records import Leaf, Leaves, Modifier

# 1/softplus(0) = 1/ln 2, so that p = 0 is a factor of exactly 1.
_INVERSE_SOFTPLUS_OF_ZERO = 1.442695041
_PATH = "per_dim_temp/scale"


def leaves(call: Call) -> tuple[Leaf, ...]:
    """Returns p, [D], zero at start."""
    return (Leaf(_PATH, call.query.shape[-1:]),)


def factor(scale: jax.Array) -> jax.Array:
    """Returns what multiplies the query, [D], for p: 1 where p is 0."""
    return _INVERSE_SOFTPLUS_OF_ZERO * jax.nn.softplus(scale)


def apply(call: Call, leaves: Leaves) -> Call:
    """Returns the call with the query scaled, in its dtype."""
    query = call.query * factor(leaves[_PATH])
    return call._replace(query=query.astype(call.query.dtype))


def formula(call: Call, leaves: Leaves) -> Call:
    """Returns `apply` in float64."""
    softplus = jnp.log(1 + jnp.exp(leaves[_PATH]))
    return call._replace(query=call.query * (_INVERSE_SOFTPLUS_OF_ZERO * softplus))


# The new queries are rounded to bfloat16 once more, as by `attention.modifiers.qk_norm`.
MODIFIER = Modifier("inputs", apply, formula, leaves, precedence=30, bfloat16_allowance=1.5)
