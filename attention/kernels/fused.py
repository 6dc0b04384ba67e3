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
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention import functions, masks
from attention.kernels import accelerated, elementwise, inputs
from attention.kernels.gpu import fused_gpu
from attention.kernels.pairs import PairMask, survey
from attention.kernels.tpu import fused_tpu
from attention.records import Kernel, Tiles


def weighted_sum(
    problem: inputs.Problem,
    value: jax.Array,
    transform: functions.Transform | None = None,
    channels: functions.Leaves | None = None,
    *,
    interpret: str = "",
    tiles: Tiles = (),
) -> Any:
    """Returns output(A·value(V)), without a transform A·V, [..., T, H, Dv] in the value's dtype.

    If `problem.with_lse`, it returns the pair of that and s [..., H, T], ∞ in rows without mass.

    value [..., S, K, Dv]. channels: the transform's leaves, [..., K, Dv], if it does not make its
    own. Rows that see nothing return 0. interpret: 'tpu' or 'gpu', the kernel that XLA runs on any
    platform, for tests. tiles: sizes by kernel, of `tpu.plan_tpu` or `gpu.plan_gpu`. Raises
    ValueError for what the kernel lacks, for functions and tiles that it cannot have, and without a
    TPU or a GPU.
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
    parts = functions.Functions(score, functions.with_factor(weighting), transform)
    arrays |= {"leaves": tuple(parts.flattened(leaves)), **masked}
    rate = 0.0
    if isinstance(problem.dropout, functions.Dropout):
        rate, arrays["seeds"] = problem.dropout
    low, high = _band(problem.mask, pair_mask)
    rows: Any = None
    may_see_none = bool(masked)
    if pair_mask is not None and {*masked} <= {"seen"} and problem.mask.hidden is None:
        # Functions alone say which queries see a key.
        rows = survey(pair_mask).rows[:, None, None]
        may_see_none = not rows.all()
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
    run = _on_one_device(problem, local, (queries, length), interpret or problem.platform)
    results = accelerated.on_devices("fused", run, problem, arrays, parts.kinds)
    return _finished(problem, local, results, rows, dtype)


def _finished(
    problem: inputs.Problem, local: accelerated.Local, results: Any, rows: Any, dtype: jnp.dtype
) -> Any:
    """Returns the kernel's results with 0, and s = ∞, for queries that see no key.

    rows: which see one, None if the mask's arrays say it. dtype: that of the output.
    """
    output, log_sums = results if problem.with_lse else (results, None)
    if local.rate:  # here and not for each weight: 2 % of the kernels' cycles
        output = (output / (1 - local.rate)).astype(dtype)
    is_zero = local.functions.transform is None and problem.mask.hidden is None
    # The kernel returns output(0) for a row that sees nothing, and ignores that a bias hides all
    # keys, since it moves all logits alike. With a sink each row sees something.
    if not is_zero and problem.sink is None and local.may_see_none:
        if rows is None:
            rows = masks.merged(problem.mask, output.shape[-3], problem.key.shape[-3]).rows
        output = jnp.where(rows, output, 0)
        if log_sums is not None:
            log_sums = jnp.where(jnp.swapaxes(rows, -3, -2)[..., 0], log_sums, jnp.inf)
    if log_sums is None:
        return output
    is_softmax, has_sink = problem.weighting.is_softmax, problem.sink is not None
    return output, problem.bias.with_idle_rows(log_sums, is_softmax, has_sink)


def _with_bias(
    problem: inputs.Problem,
) -> tuple[tuple[functions.Score, ...], tuple[functions.Leaves, ...]]:
    """Returns the problem's score functions and leaves, with those that add its bias."""
    score, leaves = problem.score, problem.leaves
    *batch, queries, heads, _ = problem.query.shape
    lengths = {"row": queries, "column": problem.key.shape[-3]}
    added = problem.bias.without_idle_rows(problem.weighting.is_softmax, problem.sink is not None)
    for name, bias in (("row", added.row), ("column", added.column)):
        if bias is not None:
            leaf = jnp.broadcast_to(bias, (*batch, heads, lengths[name])).astype(jnp.float32)
            score = (*score, functions.Score(_plus, (("name", name),), ((name, name),)))
            leaves = (*leaves, {name: leaf})
    return score, leaves


def _by_head(
    problem: inputs.Problem,
    value: jax.Array,
    channels: functions.Leaves | None,
    masked: dict[str, Any],
) -> dict[str, Any]:
    """Returns "query", "key", "value" and "channels", as `on_devices` takes them.

    There is a key head for each query head if a mask differs by head, or devices divide the query's
    heads and cannot divide the key's.
    """
    key, sharding = problem.key, problem.sharding
    is_repeated = "seen" in masked and masked["seen"].shape[-2] > 1
    if sharding is not None:
        axes = (*sharding.spec, *(None,) * 4)[problem.query.ndim - 2]
        is_repeated = is_repeated or key.shape[-2] % inputs.parts(sharding, axes) > 0
    if is_repeated:
        key, value = (inputs.per_query_head(problem.query, array) for array in (key, value))
        channels = channels and {
            name: inputs.per_query_head(problem.query, leaf) for name, leaf in channels.items()
        }
    arrays: dict[str, Any] = {"query": problem.query, "key": key, "value": value}
    if channels is not None:
        arrays["channels"] = {name: leaf[..., None, :, :] for name, leaf in channels.items()}
    return arrays


def check(problem: inputs.Problem, transform: functions.Transform | None) -> None:
    """Raises ValueError for functions that no kernel can have, by their names.

    So it does for functions of values beside dropout.
    """
    elementwise.check(problem.score, problem.weighting, transform)
    elementwise.check_mask(problem.mask.functions)
    if problem.dropout is not None and transform is not None:
        raise ValueError(
            "kernel='fused' has no attention dropout where values and outputs have functions; use "
            "kernel='xla'"
        )


def _on_one_device(
    problem: inputs.Problem, local: accelerated.Local, lengths: tuple[int, int], platform: str
) -> Callable[[dict[str, Any]], jax.Array]:
    """Returns what computes a device's part of the arrays; lengths: T and S of all.

    Raises ValueError for attention dropout where devices divide the queries.
    """
    attend: Any = fused_gpu.attend
    if platform == "tpu":
        attend = functools.partial(fused_tpu.attend, device_kind=problem.device.device_kind)
    if problem.context is None:
        return functools.partial(attend, local)
    if local.rate:  # the kernel's random bits are by a device's own numbers of queries
        raise ValueError(
            "kernel='fused' has no attention dropout where queries are divided over devices, here "
            f"by {problem.context!r}: set the rate to 0, or use kernel='xla'"
        )
    return functools.partial(_with_queries_divided, attend, local, problem.context, lengths)


def _with_queries_divided(
    kernel: Callable[..., Any],
    local: accelerated.Local,
    axes: Any,
    lengths: tuple[int, int],
    arrays: dict[str, Any],
) -> Any:
    """Returns the output of a device's queries, [..., T/n, H, Dv], inside of jax.shard_map.

    Each device attends its own queries to all keys. Keys and values are gathered, so their
    gradients are scattered and summed. A kernel is told where a device's queries lie by numbers
    that it reads when it runs, the operand `shifts`. Under causality late queries have more work
    than early ones. Device p of n exchanges the second half of its queries with device n − 1 − p,
    so that all devices see as many pairs.

    kernel: attend(local, arrays) of a platform. axes: of the mesh, which divide the queries among n
    devices. lengths: T and S of all. arrays: as `accelerated.on_devices` divides them.
    """
    devices, place = jax.lax.axis_size(axes), jax.lax.axis_index(axes)
    rows = arrays["query"].shape[-3]
    arrays = dict(arrays)
    for name in ("key", "value"):
        if arrays[name].shape[-3] < lengths[1]:
            axis = arrays[name].ndim - 3
            arrays[name] = jax.lax.all_gather(arrays[name], axes, axis=axis, tiled=True)
    is_causal = local.low > -accelerated.UNBOUNDED and local.high == accelerated.UNBOUNDED
    # A tile has queries of one half.
    if not is_causal or rows % (2 * accelerated.LANES):
        arrays["shifts"] = jnp.reshape(place * rows, 1).astype(jnp.int32)
        division = accelerated.Division(lengths[0], 0 if rows % accelerated.LANES else rows, (0,))
        return kernel(local._replace(division=division), arrays)
    last = devices - 1
    partners = [(number, last - number) for number in range(devices)]

    def exchanged(array: jax.Array, axis: int) -> jax.Array:
        """Returns an array with its second half from the partner, and from that the own again."""
        first, second = jnp.split(array, 2, axis)
        return jnp.concatenate([first, jax.lax.ppermute(second, axes, partners)], axis)

    of_leaves = tuple(-1 if kind == "row" else 0 for kind in local.functions.kinds)
    axes_of_queries: dict[str, Any] = {"query": -3, "pairs": -2, "lower": -1, "leaves": of_leaves}
    for name, axis in (axes_of_queries | {"segments": (-1, 0)}).items():
        if name in arrays:  # 0 stands for none
            arrays[name] = jax.tree.map(
                lambda axis, array: exchanged(array, axis) if axis else array, axis, arrays[name]
            )
    arrays["shifts"] = jnp.stack([place, last - place]).astype(jnp.int32) * rows
    local = local._replace(division=accelerated.Division(lengths[0], rows // 2, (0, last * rows)))
    return jax.tree.map(exchanged, kernel(local, arrays), (-3, -1) if local.with_lse else -3)


def _plus(
    logits: jax.Array, queries: jax.Array, keys: jax.Array, leaves: functions.Leaves, *, name: str
) -> jax.Array:
    """Returns the logits plus the bias `name`, a row or a column."""
    return logits + leaves[name]


def _band(mask: masks.Mask, pair_mask: PairMask | None = None) -> tuple[int, int]:
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


def _with_band(problem: inputs.Problem) -> tuple[inputs.Problem, PairMask | None]:
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
    band = masks.Mask(causal=low == 0, strict=low == 1, width=width)
    return problem._replace(mask=dataclasses.replace(mask, functions=()) & band), None


def _masks(problem: inputs.Problem, pair_mask: PairMask | None) -> dict[str, Any]:
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
    if mask.segments is not None:
        hiding["segments"] = tuple(
            jnp.broadcast_to(ids.astype(jnp.int32), (*batch, ids.shape[-1]))
            for ids in mask.segments
        )
    if mask.lower is not None:
        hiding["lower"] = jnp.broadcast_to(mask.lower.astype(jnp.int32), (*batch, queries))
    keys = accelerated.visible_keys(problem)
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


def _of_rank(problem: inputs.Problem, array: Any) -> jax.Array:
    """Returns an array with as many axes as the query; new ones in front have size 1."""
    return jnp.reshape(array, (1,) * (problem.query.ndim - array.ndim) + array.shape)


KERNEL = Kernel(
    weighted_sum,
    span=functions.TILE_SPAN,
    float32_sums=True,
    transforms=True,
    check=check,
    has_tiles=True,
)
