"""LASER attention: log(softmax(QKᵀ/√D)·exp(V)), element-wise (LASER, ICML 2025, eq. 6).

The arithmetic is that of `attention.kernels.shift`; see there for why the paper's own max trick is
not enough, and what it loses.
"""

from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from attention.kernels import core, shift
from attention.kernels.inputs import Settings, through_kernel
from attention.kernels.masks import Masks
from attention.mixers.standard import exact_softmax
from attention.records import Exact, Mixer

Array = jax.Array


def attend(query: Array, key: Array, value: Array, **settings: Unpack[Settings]) -> Array:
    """Returns log Σ_s a_ts·exp(v_s) per channel, [..., T, H, Dv] in the inputs' dtype.

    Arguments as in `attention.mixers.standard.attend`. A query that sees no key, or whose weights
    dropout removed altogether, returns 0 and passes no gradient. Exact to rounding while a
    channel's valid values span at most 75 nats; beyond that, values more than 75 nats below the
    maximum may count as 75 below.

    Raises ValueError for float16 (its window of 16 nats gives NaN at values of size 4), for
    shapes that do not fit, and for what `kernel` cannot do.
    """
    output = through_kernel(
        log_mean_exp, core.SOFTMAX, query, key, value, inside="log_mean_exp", **settings
    )
    return output.astype(jnp.result_type(query, key, value))


def log_mean_exp(
    weighted_sum: Callable[[Array], Array],
    value: Array,
    masks: Masks,
    *,
    dtype: jnp.dtype,
    span: float,
    sums_to_one: bool = True,
) -> Array:
    """Returns log(A·exp(V)) for any `weighted_sum` that maps V to A·V and is linear in V.

    value [..., S, H, D] in `dtype`, the dtype of the inputs, or wider; the result is [..., T, H, D]
    in float32 (float64 for float64), for the caller to round. So is what `weighted_sum` receives,
    with one more channel (of ones, to learn Σ a) unless `sums_to_one`; it rounds to `dtype`.
    `span` is the kernel's (`records.Kernel`).

    Raises ValueError for float16.
    """
    refuse_float16(dtype)
    wide = value.astype(core.accumulator(dtype))
    precise = dtype == wide.dtype
    shifted = shift.choose(wide, masks.keys, span)
    exponential = shift.exponentiate(wide, masks.keys, shifted, precise=precise)
    if sums_to_one:
        total, mass = weighted_sum(exponential).astype(wide.dtype), None
    else:
        ones = jnp.ones((*exponential.shape[:-1], 1), exponential.dtype)
        both = weighted_sum(jnp.concatenate([exponential, ones], axis=-1)).astype(wide.dtype)
        total, mass = both[..., :-1], both[..., -1:]
    output = shift.logarithm(total, mass, shifted, precise=precise)
    if masks.rows is not None:
        output = jnp.where(masks.rows, output, 0)
    if mass is not None:
        output = jnp.where(mass <= 0, 0, output)  # a mass of NaN stays visible
    return output


def host_mean(
    weighted_sum: Callable[[Array], Array], value: Array, masks: Masks, **settings: Any
) -> Array:
    """Returns log(A·exp(V)) from a host's weighted mean, in the value's dtype."""
    return log_mean_exp(weighted_sum, value, masks, **settings).astype(value.dtype)


def refuse_float16(dtype: jnp.dtype) -> None:
    """Raises ValueError for float16."""
    if dtype == jnp.float16:
        raise ValueError(
            "LASER in float16 gives NaN: exp() leaves a window of 10 to 16 nats, which values of "
            "standard deviation 4 exceed. Use bfloat16 (same width) or float32"
        )


def formula(
    logits: np.ndarray, mask: np.ndarray, value: np.ndarray, cotangent: np.ndarray | None
) -> Exact:
    """Returns logsumexp_k(log a_ik + v_kj), from that definition, and the closed forms

    ∂/∂v_kj = Σ_i a_ik·exp(v_kj − o_ij)·g_ij,
    ∂/∂(logit)_ik = Σ_j (a_ik·exp(v_kj − o_ij) − a_ik)·g_ij.
    """
    weights = exact_softmax(logits, mask)
    sees = weights.sum(-1) > 0
    given = [None] * len(weights) if cotangent is None else np.moveaxis(cotangent, 1, 0)
    heads = [_head(weights[h], value[:, h], g, sees[h]) for h, g in enumerate(given)]
    output, logit_bar, value_bar = zip(*heads, strict=True)
    return Exact(np.stack(output, 1), np.stack(logit_bar), np.stack(value_bar, 1))


def _head(
    weights: np.ndarray, value: np.ndarray, cotangent: np.ndarray | None, sees: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One head: weights [T, S], value [S, D], cotangent [T, D], sees [T].

    A channel is exponentiated below its own visible maximum. Channels that span more than 600
    nats, where float64 would underflow, go through an explicit logsumexp.
    """
    alone = cotangent is None
    cotangent = np.zeros((len(weights), value.shape[1])) if cotangent is None else cotangent
    valid = weights.max(0) > 0
    if not valid.any():
        return np.zeros_like(cotangent), np.zeros_like(weights), np.zeros_like(value)
    value = np.where(valid[:, None], value, 0)
    top = value[valid].max(0)
    if (top - value[valid].min(0)).max() > 600:
        return _wide_head(weights, value, cotangent, sees)
    exponentials = np.exp(np.where(valid[:, None], value, top) - top) * valid[:, None]
    total = np.where(sees[:, None], weights @ exponentials, 1)
    output = np.where(sees[:, None], top + np.log(total), 0)
    if alone:
        return output, weights, value
    ratio = cotangent / total
    logit_bar = weights * (ratio @ exponentials.T - cotangent.sum(-1, keepdims=True))
    return output, logit_bar, exponentials * (weights.T @ ratio)


def _wide_head(
    weights: np.ndarray, value: np.ndarray, cotangent: np.ndarray, sees: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    output, logit_bar = np.zeros_like(cotangent), np.zeros_like(weights)
    value_bar = np.zeros_like(value)
    for row in np.flatnonzero(sees):
        seen = weights[row] > 0
        terms = np.log(weights[row, seen])[:, None] + value[seen]
        top = terms.max(0)
        output[row] = top + np.log(np.exp(terms - top).sum(0))
        share = np.exp(terms - output[row]) * cotangent[row]
        value_bar[seen] += share
        logit_bar[row, seen] = share.sum(-1) - weights[row, seen] * cotangent[row].sum()
    return output, logit_bar, value_bar


def paper_snippet(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Array | None = None,
) -> Array:
    """Returns the paper's max-trick LASER, literally, in the dtype of its inputs.

    m = max over all keys; log(attention(Q, K, exp(V − m))) + m (LASER, ICML 2025, section 4).
    Kept as the reference that shows why `attention.kernels.shift` exists: 9.0e-3 to 0.23 in
    bfloat16. Shapes [T, H, D] and [S, H, D]; mask [H or 1, T or 1, S].
    """
    top = jnp.max(value, axis=0, keepdims=True)
    return jnp.log(jax.nn.dot_product_attention(query, key, jnp.exp(value - top), mask=mask)) + top


MIXER = Mixer(
    attend,
    formula,
    weighting=core.SOFTMAX,
    host_mean=host_mean,
    snippet=paper_snippet,
)
