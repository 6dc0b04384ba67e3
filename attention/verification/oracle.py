"""What attention variants are measured against: a float64 oracle, and the paper's snippet.

The oracle is numpy, written from the definition `o_ij = logsumexp_k(log a_ik + v_kj)`, and shares
no code with `attention.mixers.laser`. Gradients are the closed forms, for cotangent g:
    ∂/∂v_kj = Σ_i a_ik·exp(v_kj − o_ij)·g_ij
    ∂/∂(logit)_ik = Σ_j (a_ik·exp(v_kj − o_ij) − a_ik)·g_ij   (LASER)
                  = Σ_j a_ik·(v_kj − o_ij)·g_ij                (standard)
Differential mixers subtract λ times head 2i + 1 from head 2i, both over the values of the pair.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Float64 = np.ndarray


class Gradients(NamedTuple):
    """Gradients with the shapes of query, key and value, float64."""

    query: Float64
    key: Float64
    value: Float64


class Result(NamedTuple):
    """Output [..., T, H, D] and gradients for the cotangent given, float64.

    Of differential mixers also the gradient of λ, −Σ g·(second branch), and the size of that
    sum's terms, √Σ (g·(second branch))², which is what its rounding is measured by: terms of both
    signs may cancel to any small number.
    """

    output: Float64
    gradients: Gradients
    lambda_bar: float = 0.0
    lambda_terms: float = 0.0


def attend(
    mixer: str,
    query: Float64,
    key: Float64,
    value: Float64,
    cotangent: Float64,
    *,
    scale: float | None = None,
    mask: np.ndarray | None = None,
    lambda_: float = 0.0,
) -> Result:
    """Returns output and gradients of `mixer` in float64, before any head norm.

    mixer: 'standard', 'laser', or 'diff', 'diff_laser' with `lambda_` (λ) and H even.
    query [T, H, D], key and value [S, H, D], cotangent [T, H, D]; mask broadcasts to [H, T, S].
    Inputs are taken as they are: pass the rounded bfloat16 values to judge arithmetic, not
    rounding of the inputs. Rows that see nothing return 0.
    """
    check(mixer)
    if mixer in _BRANCHES:
        branch = _BRANCHES[mixer]
        return _attend_pairs(branch, query, key, value, cotangent, scale, mask, lambda_)
    q, k, v, g = (np.asarray(array, np.float64) for array in (query, key, value, cotangent))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    weights = _softmax(scale * np.einsum("thd,shd->hts", q, k), mask)
    sees = weights.sum(-1) > 0
    g = g * sees.T[..., None]
    one = _HEADS[mixer]
    outputs, logit_bar, value_bar = zip(
        *(one(weights[head], v[:, head], g[:, head], sees[head]) for head in range(q.shape[1])),
        strict=True,
    )
    bars = np.stack(logit_bar)
    gradients = Gradients(
        scale * np.einsum("hts,shd->thd", bars, k),
        scale * np.einsum("hts,thd->shd", bars, q),
        np.stack(value_bar, axis=1),
    )
    return Result(np.stack(outputs, axis=1), gradients)


def output(
    mixer: str,
    query: Float64,
    key: Float64,
    value: Float64,
    *,
    mask: np.ndarray | None = None,
) -> Float64:
    """Returns the output of `attend` alone, [T, H, D], for 'standard' or 'laser'.

    Without the products of the backward pass, and in the memory of one head's T × S weights.
    """
    q, k, v = (np.asarray(array, np.float64) for array in (query, key, value))
    every = None if mask is None else np.broadcast_to(mask, (q.shape[1], len(q), len(k)))
    outputs = []
    for head in range(q.shape[1]):
        logits = q.shape[-1] ** -0.5 * (q[:, head] @ k[:, head].T)
        weights = _softmax(logits[None], None if every is None else every[head, None])[0]
        sees = weights.sum(-1) > 0
        if mixer == "standard":
            outputs.append(weights @ v[:, head])
        else:
            outputs.append(_laser_output(weights, v[:, head], sees))
    return np.stack(outputs, axis=1)


def _attend_pairs(
    branch: str,
    query: Float64,
    key: Float64,
    value: Float64,
    cotangent: Float64,
    scale: float | None,
    mask: np.ndarray | None,
    lambda_: float,
) -> Result:
    """Differential attention, from its definition: branch 2i − λ·branch 2i + 1 per pair i."""
    value, cotangent = (np.asarray(array, np.float64) for array in (value, cotangent))
    keys, heads, size = value.shape
    pairs = heads // 2
    of_pairs = value.reshape(keys, pairs, 2 * size)
    g = cotangent.reshape(-1, pairs, 2 * size)
    both = np.repeat(of_pairs, 2, axis=1)
    g_both = np.stack([g, -lambda_ * g], axis=2).reshape(-1, heads, 2 * size)
    result = attend(branch, query, key, both, g_both, scale=scale, mask=mask)
    first, second = result.output[:, 0::2], result.output[:, 1::2]
    value_bar = result.gradients.value.reshape(keys, pairs, 2, 2 * size).sum(2)
    terms = -g * second
    return Result(
        (first - lambda_ * second).reshape(cotangent.shape),
        result.gradients._replace(value=value_bar.reshape(value.shape)),
        float(terms.sum()),
        float(np.linalg.norm(terms)),
    )


def _softmax(logits: Float64, mask: np.ndarray | None) -> Float64:
    if mask is None:
        mask = np.ones((1, 1, 1), bool)
    logits = np.where(mask, logits, -np.inf)
    top = logits.max(-1, keepdims=True)
    exponentials = np.exp(logits - np.where(np.isfinite(top), top, 0))
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / np.where(total > 0, total, 1)


def _standard_head(
    weights: Float64, value: Float64, cotangent: Float64, sees: np.ndarray
) -> tuple[Float64, Float64, Float64]:
    del sees
    output = weights @ value
    delta = (cotangent * output).sum(-1, keepdims=True)
    return output, weights * (cotangent @ value.T - delta), weights.T @ cotangent


def _laser_head(
    weights: Float64, value: Float64, cotangent: Float64, sees: np.ndarray
) -> tuple[Float64, Float64, Float64]:
    """One head: weights [T, S], value [S, D], cotangent [T, D], sees [T].

    A channel is exponentiated below its own visible maximum. Channels that span more than 600
    nats, where float64 would underflow, go through an explicit logsumexp.
    """
    valid = weights.max(0) > 0
    if not valid.any():
        return np.zeros_like(cotangent), np.zeros_like(weights), np.zeros_like(value)
    value = np.where(valid[:, None], value, 0)
    top = value[valid].max(0)
    if (top - value[valid].min(0)).max() > 600:
        return _laser_head_wide(weights, value, cotangent, sees)
    exponentials, total, output = _laser_sums(weights, value, valid, sees)
    ratio = cotangent / total
    logit_bar = weights * (ratio @ exponentials.T - cotangent.sum(-1, keepdims=True))
    return output, logit_bar, exponentials * (weights.T @ ratio)


def _laser_sums(
    weights: Float64, value: Float64, valid: np.ndarray, sees: np.ndarray
) -> tuple[Float64, Float64, Float64]:
    """Returns exp(v − its visible maximum) [S, D], its weighted sum [T, D] and the output."""
    top = value[valid].max(0)
    exponentials = np.exp(np.where(valid[:, None], value, top) - top) * valid[:, None]
    total = np.where(sees[:, None], weights @ exponentials, 1)
    return exponentials, total, np.where(sees[:, None], top + np.log(total), 0)


def _laser_output(weights: Float64, value: Float64, sees: np.ndarray) -> Float64:
    """The output of `_laser_head`."""
    valid = weights.max(0) > 0
    seen = value[valid]
    if not valid.any() or (seen.max(0) - seen.min(0)).max() > 600:
        return _laser_head(weights, value, np.zeros((len(weights), value.shape[1])), sees)[0]
    return _laser_sums(weights, value, valid, sees)[2]


# Every mixer that has a formula here: of one head, or of the branches of a pair.
_HEADS = {"standard": _standard_head, "laser": _laser_head}
_BRANCHES = {"diff": "standard", "diff_laser": "laser"}


def check(mixer: str) -> None:
    """Raises ValueError for a mixer without a formula here."""
    known = [*_HEADS, *_BRANCHES]
    if mixer not in known:
        raise ValueError(
            f"the float64 oracle has no formula of mixer {mixer!r}, so nothing says how exact it "
            f"is: write it in attention/verification/oracle.py, which has {', '.join(known)}"
        )


def _laser_head_wide(
    weights: Float64, value: Float64, cotangent: Float64, sees: np.ndarray
) -> tuple[Float64, Float64, Float64]:
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
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: jax.Array | None = None,
) -> jax.Array:
    """Returns the paper's max-trick LASER, literally, in the dtype of its inputs.

    m = max over all keys; log(attention(Q, K, exp(V − m))) + m (LASER, ICML 2025, section 4).
    Kept as the reference that shows why `attention.mixers.shift` exists: 9.0e-3 to 0.23 in
    bfloat16. Shapes [T, H, D] and [S, H, D]; mask [H or 1, T or 1, S].
    """
    top = jnp.max(value, axis=0, keepdims=True)
    return jnp.log(jax.nn.dot_product_attention(query, key, jnp.exp(value - top), mask=mask)) + top


def relative_error(measured: object, reference: Float64) -> float:
    """Returns ‖measured − reference‖ / ‖reference‖ (Frobenius), computed in float64."""
    difference = np.asarray(measured).astype(np.float64) - reference
    return float(np.linalg.norm(difference) / np.linalg.norm(reference))
