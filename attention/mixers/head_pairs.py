"""Heads in pairs: what the differential mixers share, their layout, λ and the norm of each pair.

Heads 2i and 2i + 1 are pair i (arXiv:2410.05258; microsoft/unilm, multihead_diffattn.py, views the
heads as [H/2, 2] too). The first of a pair gives the map A1, the second A2, and their values,
side by side, are the pair's value of size 2·Dv. Both maps meet the pair's whole value, so a
weighted sum over H heads, each given its pair's value, computes both branches in one call: masks
and biases per head, kernels and hosts need not know of pairs.

What is learned (eq. 2, 3):

    λ = exp(λ_q1·λ_k1) − exp(λ_q2·λ_k2) + λ_init,   λ_init = 0.8 − 0.6·exp(−0.3·depth)

with depth from 0 (microsoft/unilm, multihead_diffattn.py; the paper counts layers from 1), so that
λ_init is 0.2 in the first layer. The vectors have the head size D and serve all heads of a layer.

The pair's output then goes through an RMSNorm over its 2·Dv channels and is multiplied by
1 − λ_init. The rows of A1 − λ·A2 sum to 1 − λ; the norm takes that size away, and the factor gives
it back, so that gradients are of the size they have in a plain Transformer. Without the norm
(`head_norm=False`; the LASER paper does not say whether it keeps it) the output still has that
size, so the factor goes with the norm.

Leaves are called `scale...`, see `attention.modifiers.qk_norm`; decay pulls λ to λ_init.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from attention.kernels import core
from attention.kernels.inputs import through_kernel
from attention.kernels.masks import Masks
from attention.records import Exact, Mixer

Array = jax.Array

# Two branches are rounded by themselves, and their difference is smaller than they are: by
# √(1 + λ² − 2ρλ)/√(1 + λ²), with ρ = 1/e between random rows at qs 1 (measured: 3.1e-3 in the
# output at vs 0.1, 4.5e-3 in dV at vs 4).
BFLOAT16_ALLOWANCE = 1.15
_VECTORS = ("scale_q1", "scale_k1", "scale_q2", "scale_k2")
_EPSILON = 1e-5


def attend(
    mean: Callable[..., Array],
    query: Array,
    key: Array,
    value: Array,
    *,
    lambda_: float | Array,
    **settings: Any,
) -> Array:
    """Returns branch 1 − λ·branch 2 per pair, [..., T, H/2, 2·Dv], float32 (float64 for float64).

    query [..., T, H, D], key [..., S, H, D], value [..., S, H, Dv], H even; `mean` is
    `standard.weighted_mean` or `laser.log_mean_exp`; λ is one number, possibly traced; `settings`
    are `attention.kernels.inputs.Settings`.

    Raises ValueError for an odd number of heads, a λ that is not a scalar, and as
    `standard.attend` does.
    """

    def difference_of(weighted_sum: Callable[[Array], Array], value: Array, *of: Any, **given: Any):  # type: ignore[no-untyped-def]
        return host_mean(mean, weighted_sum, value, *of, lambda_=lambda_, **given)

    return through_kernel(difference_of, core.SOFTMAX, query, key, value, wide=True, **settings)


def host_mean(
    mean: Callable[..., Array],
    weighted_sum: Callable[[Array], Array],
    value: Array,
    masks: Masks,
    *,
    lambda_: float | Array,
    **settings: Any,
) -> Array:
    """Returns `attend`'s result from any weighted sum, called once with the values of pairs.

    `settings` as of `mean`. Raises ValueError as `attend`.
    """
    check_even(value.shape[-2])
    branches = mean(weighted_sum, values_of_pairs(value), masks, **settings)
    return difference(branches, lambda_)


def check_even(heads: int) -> None:
    """Raises ValueError for an odd number of heads."""
    if heads % 2:
        raise ValueError(
            f"differential attention subtracts the maps of two heads, so heads come in pairs; got "
            f"{heads} heads, an odd number. Give the model an even number of heads"
        )


def values_of_pairs(value: Array) -> Array:
    """Returns [..., S, H, 2·Dv] from [..., S, H, Dv]: both heads of a pair get the pair's value."""
    *batch, heads, size = value.shape
    pairs = value.reshape((*batch, heads // 2, 1, 2 * size))
    shape = (*batch, heads // 2, 2, 2 * size)
    return jnp.broadcast_to(pairs, shape).reshape((*batch, heads, 2 * size))


def difference(branches: Array, lambda_: float | Array) -> Array:
    """Returns first − λ·second of each pair, [..., T, H/2, W] from [..., T, H, W], float32.

    Subtracted before any rounding to bfloat16: where the maps are alike little is left of two
    rounded numbers. Raises ValueError unless λ is a scalar.
    """
    wide = core.accumulator(branches.dtype)
    lambda_ = jnp.asarray(lambda_, wide)
    if lambda_.ndim:
        raise ValueError(f"lambda_ has shape {lambda_.shape}; λ is one number for all heads")
    *batch, heads, size = branches.shape
    branches = branches.reshape((*batch, heads // 2, 2, size)).astype(wide)
    return branches[..., 0, :] - lambda_ * branches[..., 1, :]


def heads_of_pairs(pairs: Array, dtype: jnp.dtype) -> Array:
    """Returns [..., T, H, Dv] in `dtype` from [..., T, H/2, 2·Dv]: each pair is cut in halves."""
    *batch, count, size = pairs.shape
    return pairs.reshape((*batch, 2 * count, size // 2)).astype(dtype)


def lambda_init(depth: int | Array) -> Array:
    """Returns 0.8 − 0.6·exp(−0.3·depth), a float32 scalar; depth from 0, possibly traced.

    Raises ValueError where depth is not one integer, or is known to be negative.
    """
    if isinstance(depth, jax.Array):
        if depth.ndim or not jnp.issubdtype(depth.dtype, jnp.integer):
            raise ValueError(
                f"depth is an array of shape {depth.shape} and dtype {depth.dtype}; it is one "
                "integer, the layer's index from 0"
            )
        return 0.8 - 0.6 * jnp.exp(-0.3 * depth.astype(jnp.float32))
    try:
        index = operator.index(depth)
    except TypeError:
        index = -1
    if index < 0 or isinstance(depth, bool):
        raise ValueError(f"depth={depth!r}: it is the layer's index, an integer from 0")
    return 0.8 - 0.6 * jnp.exp(jnp.float32(-0.3 * index))


class DiffLambda(nn.Module):
    """λ of a layer, from four vectors of the head size, each normal with sd 0.1 at start."""

    @nn.compact
    def __call__(self, head_size: int, start: Array) -> Array:
        """Returns λ, a float32 scalar; `start` is λ_init."""
        q1, k1, q2, k2 = (
            self.param(name, nn.initializers.normal(0.1), (head_size,), jnp.float32).astype(
                jnp.float32
            )
            for name in _VECTORS
        )
        return jnp.exp(jnp.sum(q1 * k1)) - jnp.exp(jnp.sum(q2 * k2)) + start


class HeadNorm(nn.Module):
    """RMSNorm over the last axis, factor 1 + scale shared by the pairs (arXiv:1910.07467).

    Maps [..., H/2, 2·Dv] to the same shape and dtype; ε = 1e-5 as in the official code.
    """

    @nn.compact
    def __call__(self, pairs: Array) -> Array:
        scale = self.param("scale", nn.initializers.zeros, (pairs.shape[-1],), jnp.float32)
        mean_square = jnp.mean(jnp.square(pairs), axis=-1, keepdims=True)
        return pairs * jax.lax.rsqrt(mean_square + _EPSILON) * (1 + scale.astype(pairs.dtype))


def learned(
    attend: Callable[..., Array],
    *,
    head_size: int,
    depth: int | Array,
    dtype: jnp.dtype,
    head_norm: bool,
) -> Array:
    """Returns `attend(lambda_=λ)` after the norm and its factor 1 − λ_init, cut back into heads.

    [..., T, H, Dv] in `dtype` from [..., T, H/2, 2·Dv]. Call it inside a Flax module's compact
    method: `diff_lambda` and `head_norm` are made there. Raises ValueError as `lambda_init` does.
    """
    start = lambda_init(depth)
    pairs = attend(lambda_=DiffLambda(name="diff_lambda")(head_size, start))
    if head_norm:
        pairs = HeadNorm(name="head_norm")(pairs) * (1 - start).astype(pairs.dtype)
    return heads_of_pairs(pairs, dtype)


def record(mean: Callable[..., Array], branch: Callable[..., Exact]) -> Mixer:
    """Returns the record of the mixer whose branches are `mean`, of the formula `branch`."""
    return Mixer(
        functools.partial(attend, mean),
        functools.partial(formula, branch),
        weighting=core.SOFTMAX,
        host_mean=functools.partial(host_mean, mean),
        learned=learned,
        learned_formula=learned_formula,
        bfloat16_allowance=BFLOAT16_ALLOWANCE,
    )


def formula(
    branch: Callable[..., Exact],
    logits: np.ndarray,
    mask: np.ndarray,
    value: np.ndarray,
    cotangent: np.ndarray,
    *,
    lambda_: float = 0.0,
) -> Exact:
    """Returns branch 2i − λ·branch 2i + 1 per pair, from `branch`, the formula of one map.

    learned: the gradient of λ, −Σ g·(second branch); its size is that of the sum's terms,
    √Σ (g·(second branch))², which is what its rounding is measured by.
    """
    keys, heads, size = value.shape
    both = np.repeat(value.reshape(keys, heads // 2, 2 * size), 2, axis=1)
    g = cotangent.reshape(-1, heads // 2, 2 * size)
    g_both = np.stack([g, -lambda_ * g], axis=2).reshape(-1, heads, 2 * size)
    result = branch(logits, mask, both, g_both)
    first, second = result.output[:, 0::2], result.output[:, 1::2]
    value_bar = result.value.reshape(keys, heads // 2, 2, 2 * size).sum(2)
    terms = -g * second
    return Exact(
        (first - lambda_ * second).reshape(cotangent.shape),
        result.logits,
        value_bar.reshape(value.shape),
        {"diff_lambda": {"lambda_": terms.sum()}},
        {"diff_lambda": float(np.linalg.norm(terms))},
    )


def learned_formula(
    formula: Callable[..., Exact],
    cotangent: np.ndarray,
    leaves: Mapping[str, Mapping[str, np.ndarray]],
    *,
    depth: int,
    head_norm: bool,
) -> Exact:
    """Returns `learned` around `formula(cotangent, lambda_=λ)`, its leaves' gradients included."""
    start = 0.8 - 0.6 * np.exp(-0.3 * depth)
    q1, k1, q2, k2 = (leaves["diff_lambda"][name] for name in _VECTORS)
    first, second = np.exp(q1 @ k1), np.exp(q2 @ k2)
    lambda_ = first - second + start
    gradients: dict[str, dict[str, Any]] = {}
    output = None
    if head_norm:
        plain = formula(cotangent, lambda_=lambda_).output
        pairs = plain.reshape(len(plain), -1, 2 * plain.shape[-1])
        inverse = 1 / np.sqrt((pairs**2).mean(-1, keepdims=True) + _EPSILON)
        normal = pairs * inverse
        factor = (1 - start) * (1 + leaves["head_norm"]["scale"])
        output = (normal * factor).reshape(plain.shape)
        g = cotangent.reshape(normal.shape)
        gradients["head_norm"] = {"scale": (1 - start) * (g * normal).sum((0, 1))}
        g = g * factor
        g = inverse * (g - normal * (g * normal).mean(-1, keepdims=True))
        cotangent = g.reshape(plain.shape)
    result = formula(cotangent, lambda_=lambda_)
    jacobian = (first * k1, first * q1, -second * k2, -second * q2)
    bars = [result.learned["diff_lambda"]["lambda_"] * row for row in jacobian]
    gradients["diff_lambda"] = dict(zip(_VECTORS, bars, strict=True))
    terms = result.sizes["diff_lambda"] * float(np.linalg.norm(jacobian))
    size = max(float(np.linalg.norm(bars)), terms)
    return result._replace(
        output=result.output if output is None else output,
        learned=gradients,
        sizes={"diff_lambda": size},
    )
