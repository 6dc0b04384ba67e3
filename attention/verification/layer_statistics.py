"""Statistics of an attention layer during training, from an observed call and gradients.

LASER's argument (ICML 2025, section 3): where probabilities are tiny, so is the softmax Jacobian
diag(a) − a·aᵀ, and with it the gradient that reaches the logits, W_Q and W_K. So, per layer: how
weights are spread, the size of their Jacobian, and the gradients themselves; beside them what
LASER is sensitive to, the range of V per channel.

`measure` runs inside jit; `summary` makes the plain numbers of it. Axes: B batch entries, H heads,
T queries, S keys, D and Dv channels. An entry is a (query, key) pair of a head.
"""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention import table
from attention.kernels.inputs import per_query_head
from attention.mixers import laser_shift
from attention.probe import Layer

# log10 of the histogram's edges. Bin 0 lies below the first edge; bin k holds 10^edge[k-1] <= a <
# 10^edge[k]; the last one is open above, since a rounded softmax may exceed 1 by an ulp.
HISTOGRAM_EDGES: tuple[float, ...] = tuple(-12.0 + 0.5 * step for step in range(25))
# The last edge is 1 itself, which closes the last bin.
_LOWER = HISTOGRAM_EDGES[:-1]
BINS = len(HISTOGRAM_EDGES)
SHARES = {"share_below_1e-3": -3.0, "share_below_1e-7": -7.0}
PROJECTIONS = ("query", "key", "value")


def measure(layer: Layer) -> dict[str, jax.Array]:
    """Returns the numbers of an observed call by name; differentiate nothing through it.

    `summary` makes its record of them. at_least int32 [B, 24]: visible entries of 10^edge or more,
    for all edges but the last. entries, unknown int32 [B]: visible entries, and those among them
    that are NaN. distributions, choices, jacobians int32 []: rows that see a key and whose weights
    sum to 1, those of these that see two or more, and rows that see a key and have a Jacobian's
    norm. The rest are scalars.
    """
    visible = layer.visible()
    weights = jnp.where(visible, layer.weights(), 0)
    keys = jnp.sum(visible, axis=-1, dtype=jnp.int32)  # that a query sees
    entropy = jnp.sum(jax.scipy.special.entr(weights), axis=-1)
    norm_of = layer.weighting.jacobian_norm
    jacobian = jnp.full_like(entropy, jnp.nan) if norm_of is None else norm_of(weights)
    # Weights that do not sum to 1 are no distribution, and have no entropy.
    normalised = table.MIXERS[layer.mixer].normalised
    share = entropy / jnp.log(jnp.maximum(keys, 2).astype(entropy.dtype))
    return {
        **_counts(weights, visible),
        "distributions": jnp.sum((keys > 0) & normalised, dtype=jnp.int32),
        "choices": jnp.sum((keys > 1) & normalised, dtype=jnp.int32),
        "entropy": _mean(entropy, keys > 0),
        "entropy_share": _mean(share, keys > 1),
        "jacobians": jnp.sum(keys > 0, dtype=jnp.int32) * (norm_of is not None),
        "jacobian_mean": _mean(jacobian, keys > 0),
        "jacobian_max": jnp.max(jacobian, where=keys > 0, initial=0),
        **_value_ranges(layer),
    }


def _counts(weights: jax.Array, visible: jax.Array) -> dict[str, jax.Array]:
    """Returns at_least [B, 24], entries [B] and unknown [B]: int32 holds one batch entry's counts.

    Hidden entries are 0 here, below every edge.
    """
    inner = (-3, -2, -1)
    # In a loop: XLA on a CPU makes an array of all 24 comparisons otherwise (4 times as slow, 26
    # times the memory at [8, 4, 256, 256]).
    at_least = jax.lax.map(
        lambda edge: jnp.sum(weights >= edge, axis=inner, dtype=jnp.int32),
        jnp.asarray([10.0**edge for edge in _LOWER], weights.dtype),
    )
    return {
        "at_least": at_least.reshape(len(_LOWER), -1).T,
        "entries": jnp.sum(visible, axis=inner, dtype=jnp.int32).reshape(-1),
        "unknown": jnp.sum(jnp.isnan(weights), axis=inner, dtype=jnp.int32).reshape(-1),
    }


def _mean(values: jax.Array, where: jax.Array) -> jax.Array:
    """Returns the mean of some values, 0 of none: `summary` knows how many there were."""
    count = jnp.maximum(jnp.sum(where, dtype=jnp.int32), 1)
    return jnp.sum(jnp.where(where, values, 0)) / count.astype(values.dtype)


def _value_ranges(layer: Layer) -> dict[str, jax.Array]:
    """Returns max − min of V over valid keys: its least, median and greatest, in nats for LASER.

    A channel is one of a batch entry and head, as for LASER's shift: B·H·Dv of them, those without
    a valid key left out. The floored branch is `mixers.laser_shift`'s max form, asked of every
    mixer.
    """
    value = per_query_head(layer.query, layer.value)
    value = value.astype(jnp.promote_types(value.dtype, jnp.float32))
    has_sink = layer.masks.sink is not None
    keys = jnp.ones((), bool) if layer.masks.keys is None else layer.masks.keys
    keys = jnp.broadcast_to(keys, value.shape)
    is_seen = jnp.any(keys, axis=-3) | has_sink
    least = 0.0 if has_sink else jnp.inf  # a sink is one more key, of value 0
    high = jnp.max(value, axis=-3, where=keys, initial=-least)
    low = jnp.min(value, axis=-3, where=keys, initial=least)
    shift = laser_shift.choose(value, layer.masks.keys, layer.span, with_zero=has_sink)
    ranges = jnp.where(is_seen, high - low, 0)
    return {
        "value_range_min": jnp.min(ranges, where=is_seen, initial=jnp.inf),
        "value_range_median": _median(ranges, is_seen),
        "value_range_max": jnp.max(ranges, where=is_seen, initial=-jnp.inf),
        "channels": jnp.sum(is_seen, dtype=jnp.int32),
        "floored_channels": jnp.sum(shift.is_max[..., 0, :, :] & is_seen, dtype=jnp.int32),
    }


def _median(values: jax.Array, where: jax.Array) -> jax.Array:
    """Returns the median of some values; NaN if one of them is."""
    ordered = jnp.sort(jnp.where(where, values, jnp.inf).reshape(-1))
    count = jnp.sum(where, dtype=jnp.int32)
    low, high = jnp.maximum(count - 1, 0) // 2, count // 2
    middle = 0.5 * (ordered[low] + ordered[jnp.minimum(high, ordered.size - 1)])
    return jnp.where(jnp.any(jnp.isnan(values) & where), jnp.nan, middle)


def norm(array: jax.Array) -> jax.Array:
    """Returns the Euclidean norm of all elements, in float32 or wider."""
    wide = array.astype(jnp.promote_types(array.dtype, jnp.float32))
    # Scaled by the largest: a gradient of 1e-23 squared is 0 in float32.
    size = jnp.max(jnp.abs(wide))
    safe = jnp.where(size > 0, size, 1)
    return size * jnp.sqrt(jnp.sum(jnp.square(wide / safe)))


def kernel_norms(gradients: Any, path: str) -> dict[str, jax.Array]:
    """Returns the norms of the gradients on W_Q, W_K, W_V: those there are, by PROJECTIONS' names.

    `gradients` is a tree like the parameters; the kernels lie at `path`/query/kernel and so on, as
    in flax's MultiHeadDotProductAttention.
    """
    node = gradients
    for name in filter(None, path.split("/")):
        node = node.get(name, {})
    kernels = {name: node.get(name, {}).get("kernel") for name in PROJECTIONS}
    return {name: norm(kernel) for name, kernel in kernels.items() if kernel is not None}


def summary(measured: dict[str, Any], gradients: dict[str, Any]) -> dict[str, Any]:
    """Returns a layer's record of plain numbers, in the order in which it is written.

    `share_below_1e-3`, `share_below_1e-7`: of the visible entries, the fraction below; `histogram`:
    counts of visible entries in the BINS bins of HISTOGRAM_EDGES; `entropy`: mean over rows that
    see a key, nats; `entropy_share`: mean over rows that see two or more of entropy / ln(visible
    keys), both None for weights that do not sum to 1; `jacobian_mean`, `jacobian_max`: of the
    Frobenius norm of the weights' Jacobian (`Weighting.jacobian_norm`) over rows that see a key,
    None if the mixer gives none;
    `logit_grad_norm`, `query_grad_norm` ...: `gradients` by the names logit, query, key, value;
    `value_range_...` in units of V, over `channels`, of which `floored_channels` need LASER's
    floored form. None stands for what does not exist and for what is not finite; the latter are
    named in `nonfinite`, there only if it is not empty.
    """
    numbers = {name: np.asarray(array) for name, array in measured.items()}
    entries = int(numbers["entries"].sum(dtype=np.int64))
    known = bool(entries) and not numbers["unknown"].any()
    record: dict[str, Any] = dict.fromkeys([*SHARES, "histogram"])
    if known:
        above = [entries, *map(int, numbers["at_least"].sum(axis=0, dtype=np.int64)), 0]
        histogram = [more - less for more, less in itertools.pairwise(above)]  # underflow first
        record["histogram"] = histogram
        for name, edge in SHARES.items():
            record[name] = sum(histogram[: HISTOGRAM_EDGES.index(edge) + 1]) / entries

    def number(name: str, count: str) -> float | None:
        return float(numbers[name]) if numbers[count] else None

    record |= {
        "entropy": number("entropy", "distributions"),
        "entropy_share": number("entropy_share", "choices"),
        "jacobian_mean": number("jacobian_mean", "jacobians"),
        "jacobian_max": number("jacobian_max", "jacobians"),
        **{
            f"{name}_grad_norm": float(gradients[name]) if name in gradients else None
            for name in ("logit", *PROJECTIONS)
        },
        "value_range_min": number("value_range_min", "channels"),
        "value_range_median": number("value_range_median", "channels"),
        "value_range_max": number("value_range_max", "channels"),
        "channels": int(numbers["channels"]),
        "floored_channels": int(numbers["floored_channels"]),
    }
    bad = [
        name for name, value in record.items() if type(value) is float and not math.isfinite(value)
    ]
    if entries and not known:
        bad = [*SHARES, "histogram", *bad]
    record |= dict.fromkeys(bad)
    return record | ({"nonfinite": bad} if bad else {})
