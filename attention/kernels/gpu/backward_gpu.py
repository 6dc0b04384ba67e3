"""The backward pass of the `fused` kernel for GPUs: a kernel for dK and dV, and one for dQ."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from attention.kernels import accelerated
from attention.kernels.accelerated import UNBOUNDED, Operands, RowInputs, moved
from attention.kernels.gpu.plan_gpu import Geometry, TileSizes, launch, padded
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
        accelerated.kept(geometry.local, operands.seeds, head, tile.indices()),
    )
