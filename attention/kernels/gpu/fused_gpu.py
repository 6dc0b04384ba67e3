"""The `fused` kernel for GPUs, compiled by Triton; the formulas are those of `fused`.

A program computes a tile of queries (forward, dQ) or of keys (dK and dV) and goes through the tiles
of the others that it sees: on a GPU programs carry nothing from one to the next. Arrays keep the
layout of the projections, [B, T, H, D]. Tiles are powers of two, as Triton wants them; beyond an
array's length or head size nothing is read, and 0 takes its place.

Every program makes F from the tile of V that it reads. That takes D exponentials a key, beside the
T of its softmax, and writes nothing to memory. G and δ are made before the backward kernels, G in
the inputs' dtype, so that both kernels read as much as those of standard attention. The dQ kernel
writes the gradients of head and row leaves for each row. The dK kernel goes through the query heads
of its key head and writes those of column leaves.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from attention.functions import HIDDEN, LOWEST, least
from attention.kernels.accelerated import (
    LANES,
    UNBOUNDED,
    ForwardResults,
    Local,
    Operands,
    RowInputs,
    differentiable,
    kept_weights,
    lists_tiles,
    moved,
    named,
    operands_of,
)
from attention.kernels.gpu.plan_gpu import (
    TILES,
    Geometry,
    TileSizes,
    launch,
    padded,
    seen_tiles,
    triton,
)
from attention.kernels.gpu.tiles_gpu import (
    Tile,
    channel_reader,
    existing,
    product,
    query_ranges,
    read,
    tile_leaves,
    values_of,
    visible,
    visible_keys,
    walk_keys,
    walk_list,
    write,
    write_row,
)


def attend(local: Local, arrays: dict[str, Any]) -> Any:
    """Returns what `accelerated.on_devices` wants of a device's arrays.

    Raises ValueError on a JAX without Pallas' Triton backend, and for tiles of other kernels.
    """
    if not hasattr(triton, "load"):
        raise ValueError(
            f"kernel='fused' needs Pallas' Triton backend on a GPU, which JAX {jax.__version__} "
            "lacks; use kernel='cudnn' or kernel='xla'"
        )
    *batch, queries, heads, size = arrays["query"].shape
    length, key_heads, wide = arrays["value"].shape[-3:]
    geometry = Geometry(local, queries, length, size, wide, heads, heads // key_heads)

    def flat(array: jax.Array, axes: int = 3) -> jax.Array:
        return array.reshape((math.prod(batch), *array.shape[-axes:]))

    operands = operands_of(local, arrays, False, flat, functools.partial(flat, axes=2))
    if lists_tiles(local, arrays):
        operands = operands._replace(
            tiles={name: seen_tiles(geometry, name, operands) for name in TILES}
        )
    if operands.pairs is not None:  # to the end of every tile
        beyond = ((0, 0), (0, 0), (0, -queries % LANES), (0, -length % LANES))
        operands = operands._replace(pairs=jnp.pad(operands.pairs, beyond))
        size = operands.pairs.size
        if not isinstance(size, int) or size >= 2**31:  # Triton counts in 32 bits
            raise ValueError(
                f"kernel='fused' takes masks of less than 2^31 pairs on a GPU, and this has "
                f"{size}: give segments, or a mask for all batch entries or heads"
            )
    output, log_sums = _attend(geometry, local.with_lse, operands)
    output = output.reshape((*batch, queries, heads, wide))
    if log_sums is None:
        return output
    return output, log_sums.reshape((*batch, heads, queries))


def forward(
    geometry: Geometry, operands: Operands, *, keep: bool, with_lse: bool
) -> ForwardResults:
    """Returns the output [B, T, H, V]; with `keep`, what the backward pass needs.

    That is R, as the output in float32, if there is a transform, and s [B, H, T], also `with_lse`,
    if weights are divided by a mass; s is ∞ in rows without any.
    """
    functions = geometry.local.functions
    batch, length, heads, _ = operands.query.shape
    shape = (batch, length, heads, geometry.wide)
    rows = (batch, heads, length)
    out = ForwardResults(
        jax.ShapeDtypeStruct(shape, geometry.local.dtype),
        # R in bfloat16 would be as large an error of δ as all others together (gradients 4.4e-3).
        jax.ShapeDtypeStruct(shape, jnp.float32) if keep and functions.transform else None,
        jax.ShapeDtypeStruct(rows, jnp.float32)
        if (keep or with_lse) and functions.weighting.mass
        else None,
    )
    written = named(launch(geometry, "forward", _forward_kernel, operands, None, out))
    return written._replace(channels=operands.channels)


def _forward_kernel(
    geometry: Geometry, sizes: TileSizes, operands: Operands, _: None, out: ForwardResults
) -> None:
    """Computes the output of a tile of queries: one program of the grid (tile, head, entry)."""
    functions, weighting = geometry.local.functions, geometry.local.functions.weighting
    first, head = pl.program_id(0) * sizes.queries, pl.program_id(1)
    rows = existing(first, sizes.queries, geometry.queries)
    shift = geometry.local.shift(first, operands.shifts)
    query = read(operands.query, 0, rows, sizes.queries, geometry.size)
    start: Any = weighting.start if operands.start is None else operands.start[head]
    channels = channel_reader(geometry, operands.channels)

    def add_tile(j: Any, carried: Any, ragged: bool) -> Any:
        before, mass, added = carried
        origin = j * sizes.keys
        columns = visible_keys(geometry, operands.keys, origin, origin, sizes.keys, ragged)
        key = read(operands.key, origin, columns, sizes.keys, geometry.size)
        values = values_of(geometry, operands.value, channels, origin, columns, sizes.keys)
        tile = Tile(sizes, first, origin, rows, columns, shift=shift)
        is_visible = visible(geometry, operands, tile, ragged)
        logits = product(query, key, transposed=True) * geometry.local.scale
        logits = functions.scored(
            logits, tile.indices(), tile_leaves(geometry, operands.leaves, tile, head)
        )
        highest: Any = None
        if weighting.mass is not None:
            shown = logits if is_visible is None else jnp.where(is_visible, logits, HIDDEN)
            highest = jnp.maximum(before, jnp.max(shown, axis=1)) if weighting.scales else before
        s = None if highest is None else highest[:, None]
        weights, masses = functions.weigh(logits, s, is_visible)
        kept = kept_weights(geometry.local, operands.seeds, head, tile.indices())
        weights = weights if kept is None else jnp.where(kept, weights, 0)
        summed = product(weights.astype(values.dtype), values)
        if masses is None:
            return before, mass, added + summed
        shrunk = jnp.exp(before - highest)
        mass = shrunk * mass + jnp.sum(masses, axis=1)
        return highest, mass, shrunk[:, None] * added + summed

    bound = least(weighting, start)
    top = jnp.full((sizes.queries,), LOWEST if bound is None else bound, jnp.float32)
    total = jnp.zeros((sizes.queries,), jnp.float32) if start is None else jnp.exp(start - top)
    sums = jnp.zeros((sizes.queries, padded(geometry.wide)), jnp.float32)
    zero = functions.of_zero(lambda: channels(sums), sums.shape)
    if zero is not None:
        sums = total[:, None] * zero
    top, total, sums = walk_keys(
        geometry, sizes, operands.tiles, moved(first, shift), add_tile, (top, total, sums)
    )
    means = sums
    if weighting.mass is not None:
        total = jnp.where(total == 0, jnp.inf, total)
        means = sums / total[:, None]
    output = means
    if functions.transform is not None:
        output = functions.transform.output(means, channels(means))
    write(out.output, output, rows, geometry.wide)
    if out.means is not None:
        write(out.means, means, rows, geometry.wide)
    if out.log_sums is not None:
        write_row(out.log_sums, None, top + jnp.log(total), rows)


def backward(
    geometry: Geometry,
    operands: Operands,
    means: jax.Array,
    log_sums: jax.Array | None,
    cotangent: jax.Array,
    lse_bar: jax.Array | None,
) -> Operands:
    """Returns the gradients of the operands, in their dtypes; None for channels and keys.

    means: R [B, T, H, V]. log_sums: s [B, H, T]. cotangent: dO, as R. lse_bar: the cotangent of s,
    which is a mass's, as −δ is. The kernels read G in the inputs' dtype.
    """
    functions, inner, of_zero = geometry.local.functions, cotangent.astype(jnp.float32), None
    batch, heads = operands.query.shape[0], geometry.heads
    if functions.transform is not None:
        # [B, 1, H, V] by name.
        channels = {
            name: jnp.repeat(operands.channels[:, number : number + 1], geometry.members, axis=2)
            for number, name in enumerate(functions.channels)
        }
        inner = functions.transform.pull_output(inner, means, channels)
        if geometry.local.may_see_none and log_sums is not None:
            # The derivative of 0 may be infinite.
            inner = jnp.where(jnp.swapaxes(log_sums < jnp.inf, 1, 2)[..., None], inner, 0)
        of_zero = functions.of_zero(lambda: channels, (batch, 1, heads, geometry.wide))
    narrow = inner.astype(operands.query.dtype)
    wide = narrow.astype(jnp.float32)
    delta: Any = None
    start_bar = None
    if log_sums is not None:
        # Of G as it is multiplied, so that the terms of a row cancel.
        delta = jnp.swapaxes(jnp.sum(means.astype(jnp.float32) * wide, axis=-1), 1, 2)
        delta = delta if lse_bar is None else delta - lse_bar
    if operands.start is not None:
        shares = jnp.exp(operands.start[:, None] - log_sums)
        loss = delta
        if of_zero is not None:
            loss = loss - jnp.swapaxes(jnp.sum(of_zero * wide, axis=-1), 1, 2)
        start_bar = -jnp.sum(shares * loss, axis=(0, 2)).astype(operands.start.dtype)
    bars = _launched(geometry, operands, RowInputs(narrow, log_sums=log_sums, delta=delta))
    leaves = tuple(
        (jnp.sum(bar, axis=(0, 2)) if kind == "head" else bar).astype(leaf.dtype)
        for kind, leaf, bar in zip(functions.kinds, operands.leaves, bars.leaves, strict=True)
    )
    return bars._replace(start=start_bar, leaves=leaves)


def _launched(geometry: Geometry, operands: Operands, kept: RowInputs) -> Operands:
    """Returns the kernels' gradients: as the operands, and of leaves [B, H, T] or [B, H, S]."""
    kinds, batch = geometry.local.functions.kinds, operands.query.shape[0]
    rows = jax.ShapeDtypeStruct((batch, geometry.heads, geometry.queries), jnp.float32)
    columns = jax.ShapeDtypeStruct((batch, geometry.heads, geometry.keys), jnp.float32)
    query, key, value = (jax.ShapeDtypeStruct(array.shape, array.dtype) for array in operands[:3])
    of_columns = tuple(columns if kind == "column" else None for kind in kinds)
    of_rows = tuple(None if kind == "column" else rows for kind in kinds)
    out = Operands(None, key, value, leaves=of_columns)
    by_key = launch(geometry, "by_key", _by_key_kernel, operands, kept, out)
    out = Operands(query, None, None, leaves=of_rows)
    by_query = launch(geometry, "by_query", _by_query_kernel, operands, kept, out)
    leaves = tuple(
        of_row if of_column is None else of_column
        for of_column, of_row in zip(by_key.leaves, by_query.leaves, strict=True)
    )
    return by_key._replace(query=by_query.query, leaves=leaves)


def _by_key_kernel(
    geometry: Geometry, sizes: TileSizes, operands: Operands, kept: RowInputs, out: Operands
) -> None:
    """Computes dK and dV of a tile of keys: one program of the grid (tile, key head, entry)."""
    transform = geometry.local.functions.transform
    origin = pl.program_id(0) * sizes.keys
    key_head = pl.program_id(1)
    columns = visible_keys(geometry, operands.keys, 0, origin, sizes.keys, True)
    inside = existing(origin, sizes.keys, geometry.keys)
    key = read(operands.key, 0, columns, sizes.keys, geometry.size)
    channels = channel_reader(geometry, operands.channels)
    values = values_of(geometry, operands.value, channels, 0, columns, sizes.keys)
    ranges = query_ranges(geometry, sizes, origin, operands.shifts)

    def add_tile(member: Any, i: Any, carried: Any, ragged: bool) -> Any:
        by_key, by_value, *sums = carried
        first = i * sizes.queries
        rows = existing(first, sizes.queries, geometry.queries)
        query = read(operands.query, first, rows, sizes.queries, geometry.size, member)
        inner = read(kept.inner, first, rows, sizes.queries, geometry.wide, member)
        shift = geometry.local.shift(first, operands.shifts)
        tile = Tile(sizes, first, origin, rows, columns, True, member, shift)
        head = key_head * geometry.members + (0 if member is None else member)
        factors = key, query, values, inner
        weights, raw_bar, bars = _pulled(
            geometry, operands, kept, tile, head, factors, ragged, ("column",)
        )
        by_value += product(weights.astype(query.dtype), inner)
        by_key += product((raw_bar * geometry.local.scale).astype(query.dtype), query)
        summed = [total + jnp.sum(bar, axis=1) for total, bar in zip(sums, bars, strict=True)]
        return by_key, by_value, *summed

    def of_member(member: Any, carried: Any) -> Any:
        visit = functools.partial(add_tile, member)
        by_key, by_value, *sums = _through_queries(
            geometry, sizes, operands.tiles, ranges, visit, carried
        )
        totals = iter(sums)
        for bar in out.leaves:
            if bar is not None:
                write_row(bar, member, next(totals), inside)
        return by_key, by_value

    carried: Any = (
        jnp.zeros((sizes.keys, padded(geometry.size)), jnp.float32),
        jnp.zeros((sizes.keys, padded(geometry.wide)), jnp.float32),
    )
    if geometry.members == 1:
        by_key, by_value = of_member(None, carried)
    else:
        by_key, by_value = jax.lax.fori_loop(0, geometry.members, of_member, carried)
    if transform is not None:
        value = read(operands.value, 0, columns, sizes.keys, geometry.wide).astype(jnp.float32)
        c = channels(value)
        raised = transform.value(value, c)
        by_value = transform.pull_value(by_value, value, raised, c)
    if columns is not None:  # 0 times the derivative of a hidden key may be NaN
        by_value = jnp.where(columns[:, None], by_value, 0)
    write(out.key, by_key, inside, geometry.size)
    write(out.value, by_value, inside, geometry.wide)


def _through_queries(
    geometry: Geometry,
    sizes: TileSizes,
    listed: Any,
    ranges: list[tuple[Any, Any, Any]],
    visit: Any,
    carried: Any,
) -> Any:
    """Returns what visit(i, carried, ragged) carries, and the sums of column leaves.

    listed: reference to the program's list of tiles, or None. ranges: those of `query_ranges`.
    """
    local = geometry.local
    carried += (jnp.zeros((sizes.keys,), jnp.float32),) * local.functions.kinds.count("column")
    if listed is not None:
        return walk_list(listed, visit, carried)
    for begin, free, end in ranges:
        if local.is_banded:
            carried = jax.lax.fori_loop(begin, free, functools.partial(visit, ragged=True), carried)
        inner_tiles = functools.partial(visit, ragged=local.high < UNBOUNDED)
        carried = jax.lax.fori_loop(free, end, inner_tiles, carried)
    return carried


def _by_query_kernel(
    geometry: Geometry, sizes: TileSizes, operands: Operands, kept: RowInputs, out: Operands
) -> None:
    """Computes dQ of a tile of queries: one program of the grid (tile, head, entry)."""
    first, head = pl.program_id(0) * sizes.queries, pl.program_id(1)
    rows = existing(first, sizes.queries, geometry.queries)
    shift = geometry.local.shift(first, operands.shifts)
    query = read(operands.query, 0, rows, sizes.queries, geometry.size)
    inner = read(kept.inner, 0, rows, sizes.queries, geometry.wide)
    channels = channel_reader(geometry, operands.channels)
    leaves = [bar for bar in out.leaves if bar is not None]

    def add_tile(j: Any, carried: Any, ragged: bool) -> Any:
        by_query, *sums = carried
        origin = j * sizes.keys
        columns = visible_keys(geometry, operands.keys, origin, origin, sizes.keys, ragged)
        key = read(operands.key, origin, columns, sizes.keys, geometry.size)
        values = values_of(geometry, operands.value, channels, origin, columns, sizes.keys)
        _, raw_bar, bars = _pulled(
            geometry,
            operands,
            kept,
            Tile(sizes, first, origin, rows, columns, shift=shift),
            head,
            (query, key, inner, values),
            ragged,
            ("head", "row"),
        )
        by_query += product((raw_bar * geometry.local.scale).astype(key.dtype), key)
        return by_query, *(
            total + jnp.sum(bar, axis=1) for total, bar in zip(sums, bars, strict=True)
        )

    carried = (
        jnp.zeros((sizes.queries, padded(geometry.size)), jnp.float32),
        *[jnp.zeros((sizes.queries,), jnp.float32)] * len(leaves),
    )
    by_query, *sums = walk_keys(
        geometry, sizes, operands.tiles, moved(first, shift), add_tile, carried
    )
    write(out.query, by_query, rows, geometry.size)
    for bar, total in zip(leaves, sums, strict=True):
        write_row(bar, None, total, rows)


def _pulled(
    geometry: Geometry,
    operands: Operands,
    kept: RowInputs,
    tile: Tile,
    head: Any,
    factors: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
    ragged: bool,
    wanted: tuple[str, ...],
) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
    """Returns a tile's weights, the gradient of its scaled logits, and those of `wanted` leaves.

    factors: the two of the logits, and the two of the gradient of the weights.
    head: number of the query head. ragged: the band hides some pairs.
    """
    left, right, left_bar, right_bar = factors
    s: Any = None
    delta: Any = None
    if geometry.local.functions.weighting.mass is not None:
        s, delta = (tile.of_rows(ref) for ref in (kept.log_sums, kept.delta))
        if tile.rows is not None:  # the weights of other rows are e^−∞
            s = jnp.where(tile.along(tile.rows, not tile.across), s, jnp.inf)
    return geometry.local.functions.pulled(
        product(left, right, transposed=True) * geometry.local.scale,
        tile.indices(),
        tile_leaves(geometry, operands.leaves, tile, head),
        visible(geometry, operands, tile, ragged),
        s,
        product(left_bar, right_bar, transposed=True),
        delta,
        wanted,
        kept_weights(geometry.local, operands.seeds, head, tile.indices()),
    )


_attend = differentiable(forward, backward)
