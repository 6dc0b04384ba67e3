"""LASER attention: log(softmax(QKᵀ/√D)·exp(V)), element-wise (LASER, ICML 2025, eq. 6).

The arithmetic is that of `attention.mixers.laser_shift`; see there for why the paper's own max
trick is not enough, and what it loses.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.call import Call
from attention.kernels import core, inputs
from attention.masks import Masks
from attention.mixers import laser_shift
from attention.mixers.standard import reference_softmax
from attention.records import Leaves, Mixer


def attend(query: jax.Array, key: jax.Array, value: jax.Array, **settings: Any) -> jax.Array:
    """Returns log Σ_s a_ts·exp(v_s) per channel, [..., T, H, Dv] in the inputs' dtype.

    Arguments as in `attention.mixers.standard.attend`. A query that sees no key, or whose weights
    dropout removed altogether, returns 0 and passes no gradient. Exact to rounding while a
    channel's valid values span at most 75 nats; beyond that, values more than 75 nats below the
    maximum may count as 75 below.

    Raises ValueError for float16 (its window of 16 nats gives NaN at values of size 4), for
    shapes that do not fit, and for what `kernel` cannot do.
    """
    return inputs.attend(MIXER, query, key, value, **settings)


def log_mean_exp(
    weighted_sum: Callable[..., jax.Array],
    value: jax.Array,
    masks: Masks,
    *,
    dtype: jnp.dtype,
    span: float,
    sums_to_one: bool = True,
) -> jax.Array:
    """Returns log(A·exp(V)) for any `weighted_sum` that maps V to A·V and is linear in V.

    value [..., S, H, D] in `dtype`, the dtype of the inputs, or wider; the result is [..., T, H, D]
    in float32 (float64 for float64), for the caller to round. So is what `weighted_sum` receives,
    with one more channel (of ones, to learn Σ a) unless `sums_to_one`; it rounds to `dtype`. Beside
    a sink it also gets what the sink's value 0 becomes, [..., 1, H, D].
    `span` is the backend's (`records.Kernel`).

    Raises ValueError for float16.
    """
    if dtype == jnp.float16:
        raise ValueError(
            "LASER in float16 gives NaN: exp() leaves a window of 10 to 16 nats, which values of "
            "standard deviation 4 exceed. Use bfloat16 (same width) or float32"
        )
    wide = value.astype(core.accumulator(dtype))
    precise = dtype == wide.dtype
    has_sink = masks.sink is not None
    shifted = laser_shift.choose(wide, masks.keys, span, with_zero=has_sink)
    terms = [laser_shift.exponentiate(wide, masks.keys, shifted, precise=precise)]
    if has_sink:
        zero = jnp.zeros_like(shifted.constant)
        terms.append(laser_shift.exponentiate(zero, None, shifted, precise=precise))
    if sums_to_one:
        total, mass = weighted_sum(*terms).astype(wide.dtype), None
    else:
        counted = [jnp.concatenate([term, jnp.ones_like(term[..., :1])], axis=-1) for term in terms]
        both = weighted_sum(*counted).astype(wide.dtype)
        total, mass = both[..., :-1], both[..., -1:]
    output = laser_shift.logarithm(total, mass, shifted, precise=precise)
    if masks.rows is not None:
        output = jnp.where(masks.rows, output, 0)
    if mass is not None:
        output = jnp.where(mass <= 0, 0, output)  # a mass of NaN stays visible
    return output


# Beyond this span of a channel, in nats, sums of exponentials below its maximum reach the smallest
# normal float64, e^−708.
_FACTORED = 600.0


def branch(logits: jax.Array, mask: jax.Array, value: jax.Array) -> jax.Array:
    """Returns log Σ_s a_ts·exp(v_sd) in float64, [T, H, Dv] from logits [H, T, S].

    A channel is exponentiated below its visible maximum, so that weights and values stay factors;
    if a channel spans more than that form holds, every row has a logsumexp of its own.
    """
    weights = reference_softmax(logits, mask)
    is_valid = jnp.any(weights > 0, axis=1).T[..., None]
    top = jnp.max(value, axis=0, where=is_valid, initial=-jnp.inf)
    low = jnp.min(value, axis=0, where=is_valid, initial=jnp.inf)
    top, low = (jax.lax.stop_gradient(jnp.where(jnp.isfinite(a), a, 0)) for a in (top, low))
    terms = jnp.where(is_valid, value - top, 0)
    means = jax.lax.cond(
        jnp.max(top - low) <= _FACTORED, _factored, jax.checkpoint(_by_row), weights, terms
    )
    return jnp.where(jnp.any(weights > 0, axis=-1).T[..., None], top + means, 0)


def _factored(weights: jax.Array, terms: jax.Array) -> jax.Array:
    sees = jnp.any(weights > 0, axis=-1).T[..., None]
    sums = jnp.einsum("hts,shd->thd", weights, jnp.exp(terms))
    return jnp.log(jnp.where(sees, sums, 1))


def _by_row(weights: jax.Array, terms: jax.Array) -> jax.Array:
    def of_row(row: jax.Array) -> jax.Array:
        positive = (row > 0).T[..., None]
        log = jnp.log(jnp.where(positive, row.T[..., None], 1))
        return jax.nn.logsumexp(jnp.where(positive, log + terms, -1e300), axis=0)

    return jax.lax.map(of_row, jnp.swapaxes(weights, 0, 1))


def formula(call: Call, leaves: Leaves, logits: Callable[[Any, Any], jax.Array]) -> jax.Array:
    """Returns logsumexp_k(log a_ik + v_kj)."""
    return branch(logits(call.query, call.key), call.mask, call.value)


def paper_equation(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Returns log(attention(Q, K, exp(V))) [T, H, D] in the dtype of its inputs: the paper's
    equation without a maximum (LASER, ICML 2025). Shapes [T, H, D] and [S, H, D]."""
    return jnp.log(jax.nn.dot_product_attention(query, key, jnp.exp(value)))


def paper_snippet(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Returns the paper's max-trick LASER, literally, in the dtype of its inputs.

    m = max over all keys; log(attention(Q, K, exp(V − m))) + m (LASER, ICML 2025, section 4).
    Kept as the reference that shows why `attention.mixers.laser_shift` exists: 9.0e-3 to 0.23 in
    bfloat16. Shapes [T, H, D] and [S, H, D].
    """
    top = jnp.max(value, axis=0, keepdims=True)
    return paper_equation(query, key, value - top) + top


MIXER = Mixer(
    formula,
    log_mean_exp,
    core.SOFTMAX,
    transform=laser_shift.transform,
    paper={"printed": paper_equation, "snippet": paper_snippet},
)
