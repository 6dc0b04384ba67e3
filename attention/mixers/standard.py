"""Standard attention: softmax(QKᵀ/√D)·V (arXiv:1706.03762, eq. 1)."""

from collections.abc import Callable
from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np

from attention.kernels.core import SOFTMAX
from attention.kernels.inputs import Settings, through_kernel
from attention.kernels.masks import Masks
from attention.records import Exact, Mixer

Array = jax.Array


def attend(query: Array, key: Array, value: Array, **settings: Unpack[Settings]) -> Array:
    """Returns the softmax-weighted mean of the values, [..., T, H, Dv] in the inputs' dtype.

    query [..., T, H, D], key [..., S, H, D], value [..., S, H, Dv]; settings, all optional, are
    `attention.kernels.inputs.Settings`. The softmax runs in float32. A query that sees no key
    returns 0 and passes no gradient.

    Raises ValueError for shapes that do not fit and for what `kernel` cannot do.
    """
    output = through_kernel(weighted_mean, SOFTMAX, query, key, value, **settings)
    return output.astype(jnp.result_type(query, key, value))


def weighted_mean(
    weighted_sum: Callable[[Array], Array],
    value: Array,
    masks: Masks,
    *,
    dtype: jnp.dtype,
    span: float,
    sums_to_one: bool = True,
) -> Array:
    """Returns A·V, [..., T, H, Dv], from any `weighted_sum` that maps V to A·V, in its dtype.

    value [..., S, H, Dv]; rows that see nothing are 0. `dtype`, `span` and `sums_to_one` are what
    `laser.log_mean_exp` needs, and are not used.
    """
    del dtype, span, sums_to_one
    output = weighted_sum(value)
    return output if masks.rows is None else jnp.where(masks.rows, output, 0)


def host_mean(
    weighted_sum: Callable[[Array], Array], value: Array, *_: object, **__: object
) -> Array:
    """Returns the host's weighted mean as the host left it, rows that see nothing included."""
    return weighted_sum(value)


def exact_softmax(logits: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns the rows' softmax over what the mask shows, float64; 0 where nothing is seen."""
    logits = np.where(mask, logits, -np.inf)
    top = logits.max(-1, keepdims=True)
    exponentials = np.exp(logits - np.where(np.isfinite(top), top, 0))
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / np.where(total > 0, total, 1)


def formula(
    logits: np.ndarray, mask: np.ndarray, value: np.ndarray, cotangent: np.ndarray | None
) -> Exact:
    """Returns A·V; ∂/∂v_kj = Σ_i a_ik·g_ij, ∂/∂(logit)_ik = Σ_j a_ik·(v_kj − o_ij)·g_ij."""
    weights = exact_softmax(logits, mask)
    output = np.einsum("hts,shd->thd", weights, value, optimize=True)
    if cotangent is None:
        return Exact(output, logits, value)
    delta = np.einsum("thd,thd->ht", cotangent, output)[..., None]
    products = np.einsum("thd,shd->hts", cotangent, value, optimize=True)
    value_bar = np.einsum("hts,thd->shd", weights, cotangent, optimize=True)
    return Exact(output, weights * (products - delta), value_bar)


MIXER = Mixer(attend, formula, weighting=SOFTMAX, host_mean=host_mean)
