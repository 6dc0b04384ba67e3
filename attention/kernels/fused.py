"""Our own flash attention, with the functions that a mechanism gives (`fused`).

It is written in Pallas: Mosaic compiles `tpu/`, Triton compiles `gpu/`. It has NOT yet run on a TPU
or a GPU. Interpret mode holds its numbers to those of our core, the real compilers its shapes. No
study takes it by default.

Blocks of logits live on the chip, and so do the results of score, weighting, value and output
functions. A library's kernel gives softmax(QKᵀ)·E for a matrix E that must be written before; here
V is read once, in the inputs' dtype. Weights are w_ts and masses m_ts of the scored logits l:

    R = A·F,  A = w/Σ_s m,  F = value(V),  o = output(R)
    LASER       F = expm1(V − c),  o = c + log(1 + R)     (max form: F = exp, o = c + log R)

The backward pass reads s = log Σ m of each row, and R in float32 (without a transform: o). With
G = dO·∂o/∂R, in float32 up to the matrix unit, jax.vjp of a tile's own functions gives:

    dV = F'∘(AᵀG);  dl, dleaves = vjp(w, m)(G·Fᵀ, −δ),  δ = Σ_d R∘G;  dQ = scale·dl·K,  dK likewise

since w and m are proportional to e^−s. Weights are rounded to the inputs' dtype before a product,
as in our core. The scale is applied to float32 logits.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention import functions, masks
from attention.functions import Functions, Leaves, Score, Transform
from attention.kernels import accelerated, context, elementwise
from attention.kernels.gpu import fused_gpu
from attention.kernels.inputs import Problem, per_query_head
from attention.kernels.pairs import PairMask, survey
from attention.kernels.tpu import fused_tpu
from attention.masks import Mask
from attention.records import Kernel, Tiles

Array = jax.Array


def weighted_sum(problem: Problem, value: Array, *, interpret: str = "", tiles: Tiles = ()) -> Any:
    """Returns A·V for value [..., S, H, Dv], [..., T, H, Dv] in its dtype.

    If `problem.with_lse`, it returns the pair of that and s [..., H, T], ∞ in rows without mass.
    interpret: 'tpu' or 'gpu', the kernel that XLA runs on any platform, for tests. tiles: sizes by
    kernel, of `tpu.plan_tpu` or `gpu.plan_gpu`. Raises ValueError for what the kernel lacks, for
    tiles that it cannot have, and without a TPU or a GPU.
    """
    return transformed(problem, value, None, interpret=interpret, tiles=tiles)


def transformed(
    problem: Problem,
    value: Array,
    transform: Transform | None,
    channels: Leaves | None = None,
    *,
    interpret: str = "",
    tiles: Tiles = (),
) -> Any:
    """Returns output(A·value(V)) for value [..., S, K, Dv], [..., T, H, Dv] in its dtype.

    channels: the transform's leaves, [..., K, Dv], if it does not make its own. Rows that see
    nothing return 0. Raises as `weighted_sum`, and for functions that no kernel can have.
    """
    check(problem, transform)
    accelerated.refuse("fused", problem, value, interpret)
    problem, pair_mask = _with_band(problem)
    queries, length, dtype = problem.query.shape[-3], value.shape[-3], value.dtype
    score, leaves = _with_bias(problem)
    weighting, masked = problem.weighting, _masks(problem, pair_mask)
    arrays = _by_head(problem, value.astype(problem.query.dtype), channels, masked)
    if problem.sink is not None:
        weighting, arrays["start"] = dataclasses.replace(weighting, start="sink"), problem.sink
    parts = Functions(score, functions.with_factor(weighting), transform)
    arrays |= {"leaves": tuple(parts.flattened(leaves)), **masked}
    rate = 0.0
    if isinstance(problem.dropout, functions.Dropout):
        rate, arrays["seeds"] = problem.dropout
        if transform is not None:
            raise ValueError(
                "kernel='fused' has no attention dropout where values and outputs have functions; "
                "use kernel='xla'"
            )
    low, high = _band(problem.mask, pair_mask)
    rows = _known_rows(problem, pair_mask, masked)
    may_see_none = bool(masked) if rows is None else not rows.all()
    local = accelerated.Local(
        parts,
        low,
        high,
        problem.scale,
        rate,
        jnp.dtype(jnp.float32) if rate else dtype,
        bool(interpret),
        # A row sees nothing if a mask hides all keys, if strict causality hides the first key from
        # it, or if its window ends before the first key.
        may_see_none or low == 1 or (problem.mask.width is not None and queries > length),
        tiles,
        pair_mask,
        problem.with_lse,
    )
    attend: Any = fused_gpu.attend
    if (interpret or problem.platform) == "tpu":
        attend = functools.partial(fused_tpu.attend, device_kind=problem.device.device_kind)
    run = functools.partial(attend, local)
    if problem.context is not None:
        if rate or problem.mask.functions or problem.mask.lower is not None:
            raise ValueError(
                "kernel='fused' has neither attention dropout nor functions or lower bounds as "
                f"masks where queries are divided over devices, here by {problem.context!r}: use "
                "kernel='xla'"
            )
        run = functools.partial(context.attend, attend, local, problem.context, (queries, length))
    results = accelerated.on_devices("fused", run, problem, arrays, parts.kinds)
    output, log_sums = results if problem.with_lse else (results, None)
    if rate:  # here and not for each weight: 2 % of the kernels' cycles
        output = (output / (1 - rate)).astype(dtype)
    is_zero = transform is None and problem.mask.hidden is None
    if not (is_zero or problem.sink is not None or not local.may_see_none):
        # The kernel returns output(0) for a row that sees nothing, and ignores that a bias hides
        # all keys, since it moves all logits alike. With a sink each row sees something.
        sees = None if rows is None else jnp.asarray(rows)[:, None, None]
        if sees is None:
            sees = masks.merged(problem.mask, queries, length).rows
        assert sees is not None
        output = jnp.where(sees, output, 0)
        if log_sums is not None:
            log_sums = jnp.where(jnp.swapaxes(sees, -3, -2)[..., 0], log_sums, jnp.inf)
    if log_sums is None:
        return output
    row = problem.bias.idle_row(problem.weighting.is_softmax, problem.sink is not None)
    return output, log_sums if row is None else log_sums + row


def _known_rows(
    problem: Problem, pair_mask: PairMask | None, masked: dict[str, Any]
) -> np.ndarray | None:
    """Returns which queries see a key, bool [T], if functions alone say it, without arrays."""
    if pair_mask is None or {*masked} - {"seen"} or problem.mask.hidden is not None:
        return None
    return survey(pair_mask).rows


def _with_bias(problem: Problem) -> tuple[tuple[Score, ...], tuple[Leaves, ...]]:
    """Returns the problem's score functions and leaves, with those that add its bias."""
    score, leaves = problem.score, problem.leaves
    *batch, queries, heads, _ = problem.query.shape
    lengths = {"row": queries, "column": problem.key.shape[-3]}
    added = problem.bias.without_idle_rows(problem.weighting.is_softmax, problem.sink is not None)
    for name, bias in (("row", added.row), ("column", added.column)):
        if bias is not None:
            leaf = jnp.broadcast_to(bias, (*batch, heads, lengths[name])).astype(jnp.float32)
            score = (*score, Score(_plus, (("name", name),), ((name, name),)))
            leaves = (*leaves, {name: leaf})
    return score, leaves


def _by_head(
    problem: Problem, value: Array, channels: Leaves | None, masked: dict[str, Any]
) -> dict[str, Any]:
    """Returns "query", "key", "value" and "channels", as `on_devices` takes them.

    There is a key head for each query head if a mask differs by head, or devices divide the query's
    heads and cannot divide the key's.
    """
    key = problem.key
    differs = "seen" in masked and masked["seen"].shape[-2] > 1
    if differs or not accelerated.divides_heads(problem, key.shape[-2]):
        key, value = (per_query_head(problem.query, array) for array in (key, value))
        channels = channels and {
            name: per_query_head(problem.query, leaf) for name, leaf in channels.items()
        }
    arrays: dict[str, Any] = {"query": problem.query, "key": key, "value": value}
    if channels is not None:
        arrays["channels"] = {name: leaf[..., None, :, :] for name, leaf in channels.items()}
    return arrays


def check(problem: Problem, transform: Transform | None) -> None:
    """Raises ValueError for functions that no kernel can have, by their names."""
    elementwise.check(problem.score, problem.weighting, transform)
    elementwise.check_mask(problem.mask.functions)


def _plus(logits: Array, queries: Array, keys: Array, leaves: Leaves, *, name: str) -> Array:
    """Returns the logits plus the bias `name`, a row or a column."""
    return logits + leaves[name]


def _band(mask: Mask, pair_mask: PairMask | None = None) -> tuple[int, int]:
    """Returns the bounds on a query's position minus a key's; pair_mask: functions of the mask.

    Blocks beyond the farthest pairs that functions show are passed over.
    """
    width = accelerated.UNBOUNDED if mask.width is None else mask.width - 1
    low, high = 1 if mask.strict else 0 if mask.causal else -width, width
    if pair_mask is None:
        return low, high
    surveyed = survey(pair_mask)
    if surveyed.low > 1 - pair_mask.keys:
        low = max(low, min(surveyed.low, 0))
    if surveyed.high < pair_mask.queries - 1:
        high = min(high, max(surveyed.high, 0))
    return low, high


def _with_band(problem: Problem) -> tuple[Problem, PairMask | None]:
    """Returns the problem, and the functions of its mask.

    Functions that show exactly what causality or a window does become these, which kernels have
    better programs for.
    """
    mask = problem.mask
    queries, length = problem.query.shape[-3], problem.key.shape[-3]
    if not mask.functions:
        return problem, None
    pair_mask = PairMask(mask.functions, *_band(mask), queries, length)
    surveyed = survey(pair_mask)
    low, high = surveyed.low, surveyed.high
    if not surveyed.is_band or low not in (0, 1, -high):
        return problem, pair_mask
    width = None if low >= 0 and high >= queries - 1 else high + 1
    band = Mask(causal=low == 0, strict=low == 1, width=width)
    return problem._replace(mask=dataclasses.replace(mask, functions=()) & band), None


def _masks(problem: Problem, pair_mask: PairMask | None) -> dict[str, Any]:
    """Returns those of "keys", "segments", "lower", "pairs" and "seen" that hide something.

    Their shapes are those of `accelerated.on_devices`.
    """
    mask, batch = problem.mask, problem.query.shape[:-3]
    queries, length = problem.query.shape[-3], problem.key.shape[-3]
    hiding: dict[str, Any] = {}
    if "mask_by_query" in problem.needs:
        pairs = _of_rank(problem, jnp.asarray(mask.dense).astype(bool))
        of_batch = batch if math.prod(pairs.shape[:-3]) != 1 else pairs.shape[:-3]
        hiding["pairs"] = jnp.broadcast_to(pairs, (*of_batch, pairs.shape[-3], queries, length))
        mask = dataclasses.replace(mask, dense=None)
    if mask.segments is not None:
        hiding["segments"] = tuple(
            jnp.broadcast_to(ids, (*batch, ids.shape[-1])) for ids in mask.segments
        )
    if mask.lower is not None:
        hiding["lower"] = jnp.broadcast_to(mask.lower, (*batch, queries))
    keys = accelerated.visible_keys(problem._replace(mask=mask))
    end = queries - _band(mask, pair_mask)[0]
    if end < length:  # no query sees a later key
        earlier = jnp.broadcast_to(jnp.arange(length) < end, (*batch, length))
        keys = earlier if keys is None else keys & earlier
    if hiding or mask.hidden is not None:
        hiding["seen"] = _of_rank(problem, masks.merged(problem.mask, queries, length).keys)
    else:
        of_some = keys
        if pair_mask is not None and not survey(pair_mask).columns.all():
            columns = jnp.broadcast_to(survey(pair_mask).columns, (*batch, length))
            of_some = columns if keys is None else keys & columns
        if of_some is not None:
            hiding["seen"] = of_some[..., None, None]
    return hiding if keys is None else {**hiding, "keys": keys}


def _of_rank(problem: Problem, array: Any) -> Array:
    """Returns an array with as many axes as the query; new ones in front have size 1."""
    return jnp.reshape(array, (1,) * (problem.query.ndim - array.ndim) + array.shape)


KERNEL = Kernel(
    weighted_sum,
    span=functions.TILE_SPAN,
    float32_sums=True,
    transformed=transformed,
    check=check,
    has_tiles=True,
)
