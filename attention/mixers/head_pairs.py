"""Heads in pairs, for the differential mixers: their layout, λ and the norm of each pair.

Heads 2i and 2i + 1 are pair i (arXiv:2410.05258; microsoft/unilm, multihead_diffattn.py, views the
heads as [H/2, 2] too). The first head of a pair gives the map A1, the second A2. Their values, side
by side, are the pair's value of size 2·Dv. Both maps multiply the pair's whole value. One weighted
sum over H heads, each with its pair's value, computes both branches. Masks, biases, backends and
models need no rule for pairs.

Learned parameters (eq. 2, 3):

    λ = exp(λ_q1·λ_k1) − exp(λ_q2·λ_k2) + λ_init,   λ_init = 0.8 − 0.6·exp(−0.3·depth)

with depth from 0 (microsoft/unilm, multihead_diffattn.py; the paper counts layers from 1), so that
λ_init is 0.2 in the first layer. The vectors have the head size D and serve all heads of a layer.

The pair's output then goes through an RMSNorm over its 2·Dv channels and is multiplied by
1 − λ_init. The rows of A1 − λ·A2 sum to 1 − λ. The norm removes that size and the factor restores
it, so that gradients have the size of a plain Transformer's. Without the norm (`head_norm=False`)
the output keeps that size, and there is no factor. The LASER paper does not mention the norm.

Leaves are called `scale...`, see `attention.modifiers.qk_norm`; decay pulls λ to λ_init.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention import norms
from attention.call import Call
from attention.kernels import core
from attention.records import Leaf, Leaves, Mixer

# Two branches are rounded by themselves, and their difference is smaller than they are: by
# √(1 + λ² − 2ρλ)/√(1 + λ²), with ρ = 1/e between random rows at qs 1 (measured: 3.1e-3 in the
# output at vs 0.1, 4.5e-3 in dV at vs 4).
BFLOAT16_ALLOWANCE = 1.15
_VECTORS = tuple(f"diff_lambda/scale_{name}" for name in ("q1", "k1", "q2", "k2"))
_NORM = "head_norm/scale"
_EPSILON = 1e-5  # as in the official code


def values(value: jax.Array) -> jax.Array:
    """Returns [..., S, H, 2·Dv] from [..., S, H, Dv]: both heads of a pair get the pair's value.

    Raises ValueError for an odd number of heads.
    """
    *batch, heads, size = value.shape
    if heads % 2:
        raise ValueError(
            f"differential attention subtracts the maps of two heads, so heads come in pairs; got "
            f"{heads} heads, an odd number. Give the model an even number of heads"
        )
    pairs = value.reshape((*batch, heads // 2, 1, 2 * size))
    shape = (*batch, heads // 2, 2, 2 * size)
    return jnp.broadcast_to(pairs, shape).reshape((*batch, heads, 2 * size))


def difference(branches: jax.Array, lambda_: jax.Array) -> jax.Array:
    """Returns first − λ·second of each pair, [..., T, H/2, W] from [..., T, H, W], float32.

    The subtraction precedes any rounding to bfloat16: the difference of two similar rounded numbers
    has few correct digits.
    """
    wide = core.accumulator(branches.dtype)
    *batch, heads, size = branches.shape
    branches = branches.reshape((*batch, heads // 2, 2, size)).astype(wide)
    return branches[..., 0, :] - lambda_.astype(wide) * branches[..., 1, :]


def lambda_init(index: int | jax.Array) -> jax.Array:
    """Returns 0.8 − 0.6·exp(−0.3·index), a float32 scalar; a layer's index, possibly traced."""
    if isinstance(index, jax.Array):
        return 0.8 - 0.6 * jnp.exp(-0.3 * index.astype(jnp.float32))
    return 0.8 - 0.6 * jnp.exp(jnp.float32(-0.3 * int(index)))


def leaves(call: Call, *, head_norm: bool) -> tuple[Leaf, ...]:
    """Returns the four vectors of λ, [D], sd 0.1 at start, and the norm's factors, [2·Dv]."""
    normal = jax.nn.initializers.normal(0.1)
    vectors = [Leaf(path, (call.query.shape[-1],), normal) for path in _VECTORS]
    norm = [Leaf(_NORM, (2 * call.value.shape[-1],))] if head_norm else []
    return (*vectors, *norm)


def layer_lambda(leaves: Leaves, start: jax.Array) -> jax.Array:
    """Returns λ of a layer from its vectors, a scalar; `start` is λ_init."""
    q1, k1, q2, k2 = (leaves[path] for path in _VECTORS)
    return jnp.exp(jnp.sum(q1 * k1)) - jnp.exp(jnp.sum(q2 * k2)) + start


def output(out: jax.Array, call: Call, leaves: Leaves, *, head_norm: bool) -> jax.Array:
    """Returns the difference of each pair, normed and times 1 − λ_init, cut back into heads.

    [..., T, H, Dv] from [..., T, H, 2·Dv].
    """
    start = lambda_init(call.layer.index)  # type: ignore[union-attr]
    pairs = difference(out, layer_lambda(leaves, start))
    if head_norm:
        factor = 1 + leaves[_NORM].astype(pairs.dtype)
        pairs = norms.rms_norm(pairs, _EPSILON) * factor * (1 - start).astype(pairs.dtype)
    *batch, count, size = pairs.shape
    return pairs.reshape((*batch, 2 * count, size // 2))


def formula(
    branch: Callable[..., jax.Array],
    call: Call,
    leaves: Leaves,
    logits: Callable[[Any, Any], jax.Array],
    *,
    head_norm: bool,
) -> jax.Array:
    """Returns branch 2i − λ·branch 2i + 1 per pair, with the norm; `branch`: of one map."""
    _, heads, size = call.value.shape
    values = jnp.concatenate([call.value[:, 0::2], call.value[:, 1::2]], axis=-1)
    maps = logits(call.query, call.key)
    first, second = (branch(maps[i::2], call.mask[i::2], values) for i in (0, 1))
    start = 0.8 - 0.6 * math.exp(-0.3 * call.layer.index)  # type: ignore[union-attr]
    q1, k1, q2, k2 = (leaves[path] for path in _VECTORS)
    pairs = first - (jnp.exp(q1 @ k1) - jnp.exp(q2 @ k2) + start) * second
    if head_norm:
        root = jnp.sqrt((pairs**2).mean(-1, keepdims=True) + _EPSILON)
        pairs = (1 - start) * (1 + leaves[_NORM]) * pairs / root
    return jnp.stack([pairs[..., :size], pairs[..., size:]], axis=2).reshape(-1, heads, size)


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
        values=values,
        output=output,
        splits=True,
        transform=transform,
        bfloat16_allowance=BFLOAT16_ALLOWANCE,
    )
