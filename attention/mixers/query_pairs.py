"""Two queries per head: what Differential Transformer V2 and its LASER form share.

Every head has a second query, which meets the same keys and values, and the two outputs are
subtracted: y = y₁ − λ·y₂ with λ = σ(x·w) per query and head (Microsoft, Differential Transformer
V2, 2026-01). There is no norm of the heads and no λ_init; w starts at zero, where λ is ½.

V2 widens the model's query projection to 2·H heads. Here the second queries are a learned
projection of the block's input beside it, so that every model can have the mechanism unchanged.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.call import Call
from attention.kernels import core
from attention.mixers.head_pairs import BFLOAT16_ALLOWANCE, difference
from attention.records import Leaf, Leaves, Mixer

_QUERY, _LAMBDA = "diff2/scale_query", "diff2/scale_lambda"


def leaves(call: Call) -> tuple[Leaf, ...]:
    """Returns the second queries' projection [W, H, D], normal with variance 1/W, and w [W, H]."""
    width, (heads, size) = call.x.shape[-1], call.query.shape[-2:]
    start = jax.nn.initializers.variance_scaling(
        1.0, "fan_in", "normal", in_axis=0, out_axis=(1, 2)
    )
    return Leaf(_QUERY, (width, heads, size), start), Leaf(_LAMBDA, (width, heads))


def inputs(call: Call, leaves: Leaves) -> Call:
    """Returns the call with 2·H heads of queries: the first and second query of each head."""
    dtype, (heads, size) = call.query.dtype, call.query.shape[-2:]
    second = jnp.einsum("...w,whd->...hd", call.x.astype(dtype), leaves[_QUERY].astype(dtype))
    pairs = jnp.stack([call.query, second], axis=-2)
    return call._replace(
        query=pairs.reshape((*pairs.shape[:-3], 2 * heads, size)),
        bias=call.bias.per_head(2),
        mask=call.mask.per_head(2),
    )


def output(out: jax.Array, call: Call, leaves: Leaves) -> jax.Array:
    """Returns first − σ(x·w)·second, [..., T, H, Dv] from [..., T, 2·H, Dv], float32."""
    wide = core.accumulator(out.dtype)
    lambda_ = jax.nn.sigmoid(
        jnp.einsum("...w,wh->...h", call.x.astype(wide), leaves[_LAMBDA].astype(wide))
    )
    return difference(out, lambda_[..., None])


def formula_inputs(call: Call, leaves: Leaves) -> Call:
    """Returns `inputs` in float64."""
    second = jnp.tensordot(call.x, leaves[_QUERY], 1)
    twice = [jnp.repeat(array, 2, axis=0) for array in (call.bias, call.mask)]
    query = jnp.concatenate([call.query, second], axis=-1).reshape(
        len(second), -1, second.shape[-1]
    )
    return call._replace(query=query, bias=twice[0], mask=twice[1])


def formula(
    branch: Callable[..., jax.Array],
    call: Call,
    leaves: Leaves,
    logits: Callable[[Any, Any], jax.Array],
) -> jax.Array:
    """Returns the difference in float64; `branch`: the formula of one map."""
    maps = branch(logits(call.query, call.key), call.mask, call.value)
    shares = 1 / (1 + jnp.exp(-call.x @ leaves[_LAMBDA]))
    return maps[:, 0::2] - shares[..., None] * maps[:, 1::2]


def record(
    mean: Callable[..., jax.Array], branch: Callable[..., jax.Array], transform: Any = None
) -> Mixer:
    """Returns the record of the mixer whose branches are `mean`, of the formula `branch`.

    transform: as of the mixer of one branch.
    """
    return Mixer(
        functools.partial(formula, branch),
        mean,
        core.SOFTMAX,
        leaves=leaves,
        inputs=inputs,
        formula_inputs=formula_inputs,
        output=output,
        splits=True,
        transform=transform,
        bfloat16_allowance=BFLOAT16_ALLOWANCE,
    )
