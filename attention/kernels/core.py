"""Weighted sums, computed by XLA, returned in float32: the core under every mixer.

A library kernel returns its sum in the inputs' dtype. LASER takes the logarithm of that sum, which
turns a relative rounding into an absolute error, so this core keeps the sum in float32. The
backward pass scales each row's cotangent to 1 before its product with V. Values up to e^80 then
never overflow to ∞ (times a weight of 0: NaN), whatever the size of the loss. Every product runs in
the inputs' dtype with float32 accumulation.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention import functions, masks
from attention.kernels.inputs import Problem, promoting, varying
from attention.records import Kernel

Precision = jax.lax.PrecisionLike


def _softmax_backward(
    weights: list[jax.Array], gradients: list[jax.Array], lse_bar: jax.Array | None
) -> list[jax.Array]:
    """Returns the logits' gradients from the weights' and s's, all in parts as of `_logits`."""
    # p∘(X − Σ p∘X), as p∘X − p·Σ p∘X: p∘X is bounded by the row's sum where X alone is not.
    products = [part * gradient for part, gradient in zip(weights, gradients, strict=True)]
    total: Any = sum(jnp.sum(product, axis=-1, keepdims=True) for product in products)
    total = total if lse_bar is None else total - lse_bar
    return [product - part * total for product, part in zip(products, weights, strict=True)]


def softmax_jacobian_norm(weights: jax.Array) -> jax.Array:
    """Returns the Frobenius norm of diag(a) − a·aᵀ for each row, [...] for weights [..., S].

    Its square is Σa² − 2Σa³ + (Σa²)² for Σa = 1. That form cancels if one weight is close to 1:
    float32 leaves 3e-4 of a norm of 0. So the largest weight m is taken out of the sums. With
    1 − m as the sum of the others, every term is positive:
    m²(1 − m)² + Σ a²(1 − a)² + 2m²Σa² + ((Σa²)² − Σa⁴), sums over the others.
    """
    largest = jnp.max(weights, axis=-1, keepdims=True)
    is_largest = jnp.arange(weights.shape[-1]) == jnp.argmax(weights, axis=-1)[..., None]
    others = jnp.where(is_largest, 0, weights)
    squares = jnp.square(others)
    second = jnp.sum(squares, axis=-1)
    top = jnp.square(largest[..., 0])
    pairs = jnp.maximum(jnp.square(second) - jnp.sum(jnp.square(squares), axis=-1), 0)
    total = (
        top * jnp.square(jnp.sum(others, axis=-1))
        + jnp.sum(squares * jnp.square(1 - others), axis=-1)
        + 2 * top * second
        + pairs
    )
    return jnp.sqrt(total)


SOFTMAX = functions.Weighting(
    functions.exponential,
    functions.exponential,
    same=True,
    jacobian_norm=softmax_jacobian_norm,
)


class CoreSettings(NamedTuple):
    """What is compiled in: the scale (applied to QKᵀ), the matmul precision, how logits become
    weights, the functions of the scaled logits that act before bias and mask, in that order, and
    whether the logarithm of each row's mass is asked for."""

    scale: float
    precision: Precision = None
    weighting: functions.Weighting = SOFTMAX
    score: tuple[functions.Score, ...] = ()
    with_lse: bool = False


class Sink(NamedTuple):
    """A key that all queries see, of the value 0, beside the others of a softmax.

    logits: broadcasts to [..., H, T]; value: what 0 becomes if values are transformed,
    broadcasts to [..., 1, H, Dv].
    """

    logits: jax.Array
    value: jax.Array


def sink_of(logits: jax.Array | None, value: jax.Array | None = None) -> Sink | None:
    """Returns the sink of a call, whose logits are [H] or [..., H, T]; None if it has none."""
    if logits is None:
        return None
    logits = logits[:, None] if logits.ndim == 1 else logits
    return Sink(logits, jnp.zeros((), logits.dtype) if value is None else value)


def accumulator(dtype: jnp.dtype) -> jnp.dtype:
    """Returns the dtype sums are kept in: float32, or float64 for float64 inputs."""
    return jnp.promote_types(dtype, jnp.float32)


def weights_of(
    settings: CoreSettings,
    query: jax.Array,
    key: jax.Array,
    bias: masks.Bias,
    visible: jax.Array | None,
    leaves: tuple[functions.Leaves, ...],
    sink: Sink | None = None,
) -> jax.Array:
    """Returns the weights of the logits scale·QKᵀ, modified, + bias, over what is visible.

    float32 [..., H, T, S], with a sink [..., H, T, S + 1], the sink's last; query [..., T, H, D],
    key [..., S, H, D]; visible broadcasts to [..., H, T, S]; leaves: of each score function. Hidden
    entries are exactly 0 in rows that see something.
    """
    logits = _logits(settings, query, key, bias, visible, leaves, sink)
    return jnp.concatenate(_weights(settings, logits)[0], axis=-1)


def _logits(
    settings: CoreSettings,
    query: jax.Array,
    key: jax.Array,
    bias: masks.Bias,
    visible: jax.Array | None,
    leaves: tuple[functions.Leaves, ...],
    sink: Sink | None,
) -> list[jax.Array]:
    """Returns the logits of the keys [..., H, T, S] and, if there is a sink, its [..., H, T, 1].

    Rows lie in these parts everywhere below: one array of both would be one more copy.
    """
    logits = _modified(settings, _scores(settings, query, key), leaves)
    bias = bias.without_idle_rows(settings.weighting.is_softmax, sink is not None)
    for part in bias.parts():
        logits = logits + part.astype(logits.dtype)
    if visible is not None:
        # The lowest number, not −∞: a row that sees nothing stays finite, and so do its gradients.
        logits = jnp.where(visible, logits, jnp.finfo(logits.dtype).min)
    if sink is None:
        return [logits]
    of_sink = sink.logits[..., None].astype(logits.dtype)
    return [logits, jnp.broadcast_to(of_sink, (*logits.shape[:-1], 1))]


def _weights(
    settings: CoreSettings, logits: list[jax.Array]
) -> tuple[list[jax.Array], jax.Array | None]:
    """Returns the weights of the logits, both in parts, and s [..., T, 1] if it is asked for.

    A row of the softmax that the mask hides is uniform, and its caller discards it. A row that a
    score function hides has weights of 0.
    """
    if settings.weighting is not SOFTMAX:
        keys = logits[0].shape[-1]
        joined = jnp.concatenate(logits, axis=-1)
        whole, log_sums = functions.rows(settings.weighting, joined, settings.with_lse)
        return [whole[..., :keys], whole[..., keys:]][: len(logits)], log_sums
    top = functools.reduce(jnp.maximum, (jnp.max(part, -1, keepdims=True) for part in logits))
    is_nothing = top <= jnp.finfo(top.dtype).min if settings.with_lse else None
    may_hide = any(score.may_hide for score in settings.score)
    if may_hide:
        top = jnp.where(top > jnp.finfo(top.dtype).min, top, 0)
    raised = [jnp.exp(part - top) for part in logits]
    total: Any = sum(jnp.sum(part, axis=-1, keepdims=True) for part in raised)
    if may_hide:
        total = jnp.where(total == 0, 1, total)
    log_sums = None if is_nothing is None else functions.log_mass(top, total, is_nothing)
    return [part / total for part in raised], log_sums


def _scores(settings: CoreSettings, query: jax.Array, key: jax.Array) -> jax.Array:
    return settings.scale * jnp.einsum(
        "...thd,...shd->...hts",
        query,
        key,
        precision=settings.precision,
        preferred_element_type=accumulator(query.dtype),
    )


def _modified(
    settings: CoreSettings, scores: jax.Array, leaves: tuple[functions.Leaves, ...]
) -> jax.Array:
    queries = jnp.arange(scores.shape[-2])[:, None]
    keys = jnp.arange(scores.shape[-1])[None]
    axes = {"head": (-2, -1), "row": (-1,), "column": (-2,)}

    for score, named in zip(settings.score, leaves, strict=True):
        of_tile = {name: jnp.expand_dims(named[name], axes[kind]) for name, kind in score.kinds}
        scores = score(scores, queries, keys, of_tile)
    return scores


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def weighted_sum(
    settings: CoreSettings,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: masks.Bias,
    visible: jax.Array | None,
    multiplier: jax.Array | None,
    leaves: tuple[functions.Leaves, ...] = (),
    sink: Sink | None = None,
) -> Any:
    """Returns Σ_s m_ts·p_ts·v_s with p = `weights_of`, float32, shape [..., T, H, D].

    With settings.with_lse it returns the pair of it and s [..., H, T], as of `Problem`.

    value [..., S, H, Dv]; `multiplier` m (attention dropout) broadcasts to the weights. A value
    in float32 beside bfloat16 queries is rounded here, and its gradient is not: the sum of a
    pair's two gradients, or LASER's chain rule, goes on from there (dV of `diff_laser` 6.5e-3
    otherwise).
    Gradients flow to query, key, value, bias, leaves and sink; every product runs in the inputs'
    dtype with float32 accumulation, as a bfloat16 matrix unit wants it. No forward-mode derivative.
    """
    return _forward(settings, query, key, value, bias, visible, multiplier, leaves, sink)[0]


def _forward(settings, query, key, value, bias, visible, multiplier, leaves, sink):  # type: ignore[no-untyped-def]
    weights, log_sums = _weights(
        settings, _logits(settings, query, key, bias, visible, leaves, sink)
    )
    dropped, *of_sink = _dropped(weights, multiplier)
    rounded = value.astype(query.dtype)
    total = jnp.einsum(
        "...hts,...shd->...thd",
        dropped.astype(rounded.dtype),
        rounded,
        precision=settings.precision,
        preferred_element_type=accumulator(rounded.dtype),
    )
    if sink is not None:
        total = total + jnp.swapaxes(of_sink[0], -3, -2) * sink.value
    # Weights stay float32: rounded to bfloat16 they took dQ from 3.4e-3 to 4.2e-3.
    # An empty array carries the dtype of the value's gradient.
    like = jnp.empty(0, value.dtype)
    residuals = (query, key, rounded, like, bias, visible, multiplier, weights, leaves, sink)
    if log_sums is None:
        return total, residuals
    is_softmax = settings.weighting.is_softmax
    log_sums = bias.with_idle_rows(log_sums[..., 0], is_softmax, sink is not None)
    return (total, log_sums), residuals


def _dropped(parts: list[jax.Array], multiplier: jax.Array | None) -> list[jax.Array]:
    """Returns weights, or their gradients, of keys and a sink times the dropout's multiplier."""
    if multiplier is None:
        return parts
    of_parts = (multiplier[..., : parts[0].shape[-1]], multiplier[..., -1:])
    return [part * factor for part, factor in zip(parts, of_parts, strict=False)]


@promoting
def _backward(settings, residuals, cotangent):  # type: ignore[no-untyped-def]
    query, key, value, like, bias, visible, multiplier, weights, leaves, sink = residuals
    cotangent, lse_bar = cotangent if settings.with_lse else (cotangent, None)
    wide, narrow = accumulator(value.dtype), value.dtype
    einsum = functools.partial(
        jnp.einsum, precision=settings.precision, preferred_element_type=wide
    )
    dropped, *of_sink = _dropped(weights, multiplier)
    value_bar = einsum("...hts,...thd->...shd", dropped.astype(narrow), cotangent.astype(narrow))

    size = jnp.max(jnp.abs(cotangent), axis=-1, keepdims=True, initial=0)
    if lse_bar is not None:
        size = jnp.maximum(size, jnp.abs(jnp.swapaxes(lse_bar, -2, -1)[..., None]))
    # The power of two at or above a row's size, so that dividing by it rounds nothing.
    row = jnp.ldexp(jnp.ones_like(size), jnp.frexp(size)[1])
    weight_bars = [einsum("...thd,...shd->...hts", (cotangent / row).astype(narrow), value)]
    if sink is not None:
        along = jnp.sum(cotangent / row * sink.value, axis=-1, keepdims=True)
        weight_bars.append(jnp.swapaxes(along, -3, -2))
        of_value = _unbroadcast(cotangent * jnp.swapaxes(of_sink[0], -3, -2), sink.value)
    weight_bars = _dropped(weight_bars, multiplier)
    lse_bar = None if lse_bar is None else lse_bar[..., None] / jnp.swapaxes(row, -3, -2)
    # The scores once more rather than kept: they are as large as the weights.
    if settings.weighting is SOFTMAX:
        bars = _softmax_backward(weights, weight_bars, lse_bar)
    else:
        logits = _logits(settings, query, key, bias, visible, leaves, sink)
        pull = jax.vjp(functools.partial(_weights, settings), logits)[1]
        (bars,) = pull((weight_bars, lse_bar))
    logit_bar, *of_logits = [bar * jnp.swapaxes(row, -3, -2) for bar in bars]

    score_bar, leaves_bar = logit_bar, leaves
    if settings.score:
        scores = _scores(settings, query, key)
        modified = functools.partial(_modified, settings)
        score_bar, leaves_bar = jax.vjp(modified, scores, leaves)[1](logit_bar)
    # Made once: without the barrier XLA:TPU computes it again inside both products, from two
    # float32 arrays as large as the weights (301 M decoder on v5e: 569.9 ms a step for 665.5).
    narrow_bar = jax.lax.optimization_barrier((settings.scale * score_bar).astype(query.dtype))
    query_bar = einsum("...hts,...shd->...thd", narrow_bar, key)
    key_bar = einsum("...hts,...thd->...shd", narrow_bar, query)
    bias_bar = masks.Bias(
        None if bias.dense is None else _unbroadcast(logit_bar, bias.dense),
        None if bias.row is None else _unbroadcast(jnp.sum(logit_bar, axis=-1), bias.row),
        None if bias.column is None else _unbroadcast(jnp.sum(logit_bar, axis=-2), bias.column),
    )
    return (
        query_bar.astype(query.dtype),
        key_bar.astype(key.dtype),
        value_bar.astype(like.dtype),
        bias_bar,
        None,
        None,
        leaves_bar,
        None if sink is None else Sink(_unbroadcast(of_logits[0][..., 0], sink.logits), of_value),
    )


weighted_sum.defvjp(_forward, _backward)


def _unbroadcast(gradient: jax.Array, like: jax.Array) -> jax.Array:
    """Returns `gradient` summed over the axes along which `like` was broadcast."""
    summed = jnp.sum(gradient, axis=tuple(range(gradient.ndim - like.ndim)))
    axes = tuple(
        axis
        for axis, (size, whole) in enumerate(zip(like.shape, summed.shape, strict=True))
        if size == 1 and whole != 1
    )
    summed = jnp.sum(summed, axis=axes, keepdims=True).astype(like.dtype)
    return masks.lying(summed, tuple(jax.typeof(like).sharding.spec))


def _call(problem: Problem, value: jax.Array) -> Any:
    arrays: Any = (
        problem.query,
        problem.key,
        value,
        problem.bias,
        problem.masks.pairs,
        problem.dropout,
        problem.leaves,
        sink_of(problem.sink, problem.of_zero),
    )
    # A function with a backward pass of its own must return gradients that vary over the axes of a
    # shard_map as its inputs do. The gradient of a shared bias or key would vary over those of a
    # sharded query, so all arrays are made to vary over the same axes.
    axes = frozenset[str]().union(*map(varying, jax.tree.leaves(arrays)))
    arrays = jax.tree.map(lambda array: _made_varying(array, axes - varying(array)), arrays)
    settings = CoreSettings(
        problem.scale, problem.precision, problem.weighting, problem.score, problem.with_lse
    )
    return weighted_sum(settings, *arrays)


def _made_varying(array: jax.Array, axes: frozenset[str]) -> jax.Array:
    if not axes:
        return array
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, tuple(axes), to="varying")
    pvary = getattr(jax.lax, "pvary")  # noqa: B009  (gone from JAX 0.10)
    return pvary(array, tuple(axes))


# exp(80)·D·16 < 3.4e38 for every D in use: the backward pass divides a row's cotangent by its size.
KERNEL = Kernel(_call, span=80.0, float32_sums=True)
