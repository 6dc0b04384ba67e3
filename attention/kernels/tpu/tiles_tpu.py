"""Tiles of the kernels for TPUs: which are computed, and what a kernel reads for one."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from attention.functions import Leaves
from attention.kernels.accelerated import LANES, Operands
from attention.kernels.tpu.plan_tpu import Plan, in_lanes
from attention.masks import seen


class Tile(NamedTuple):
    """A tile of a pair of blocks.

    rows, columns: slices of the block of queries and of the block of keys.
    first, origin: positions of the first query and of the first key.
    across: keys are along the tile's first axis (backward), not queries (forward).
    """

    plan: Plan
    rows: Any
    columns: Any
    first: Any
    origin: Any
    across: bool

    def indices(self) -> tuple[jax.Array, jax.Array]:
        """Returns the positions of queries and keys, [n, 1] and [1, m], if `across` [1, n], [m, 1].

        Rows beyond an array's end get its last position: a function may be NaN beyond it.
        """
        queries = _positions(self.first, self.rows.size, int(self.across))
        keys = _positions(self.origin, self.columns.size, int(not self.across))
        last = (self.plan.local.division or self.plan).queries - 1
        return jnp.minimum(queries, last), jnp.minimum(keys, self.plan.keys - 1)


@dataclasses.dataclass(frozen=True)
class GridStep:
    """What a kernel holds at one step of its grid.

    i, j: numbers of the blocks of queries and of keys. shift: of the block of queries, as of
    `Local`. channels: reads the channel leaves. zero: F of the value 0, or None. values: F of the
    block of keys, on the chip.
    """

    plan: Plan
    operands: Operands
    out: Any
    i: Any
    j: Any
    shift: Any
    channels: Callable[[], Leaves]
    zero: Any
    values: Any


def _positions(first: Any, count: int, axis: int) -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, (1, count) if axis else (count, 1), axis) + first


def read_channels(plan: Plan, reference: Any) -> dict[str, jax.Array]:
    """Returns the channel leaves, float32 [1, V] by name.

    reference: [c, V], in the order of their names.
    """
    names = plan.local.functions.channels
    return {name: reference[place : place + 1, :] for place, name in enumerate(names)}


def write_values(
    plan: Plan,
    operands: Operands,
    values: Any,
    j: Any,
    channels: Callable[[], Leaves],
    made: Any = None,
) -> None:
    """Writes F of block j of keys on the chip.

    made: reference [c, V] that the channel leaves are written to, if the kernel makes them.
    """
    transform = plan.local.functions.transform
    assert transform is not None
    value = zero_beyond(operands.value[...], j * plan.block_k, plan.keys, plan.block_k)
    wide = value.astype(jnp.float32)
    if made is not None:
        rows = jax.lax.broadcasted_iota(jnp.int32, (plan.block_k, 1), 0)
        inside = rows < plan.keys if plan.keys % plan.block_k else None
        assert transform.leaves is not None
        leaves = transform.leaves(wide, inside, 0, operands.start is not None)
        for number, name in enumerate(plan.local.functions.channels):
            made[number : number + 1, :] = leaves[name]
    raised = transform.value(wide, channels()).astype(values.dtype)
    values[...] = zero_beyond(raised, j * plan.block_k, plan.keys, plan.block_k)


def tile_leaves(
    plan: Plan, leaves: tuple[Any, ...], tile: Tile, head: int, number: Any
) -> list[Any]:
    """Returns the leaves of a tile, float32, in shapes that broadcast to it.

    leaves: references to head [H], row [h, T] and column [h, S]. head: the head's place in the
    block. number: its number among all.
    """
    a, b = tile.rows, tile.columns
    arrays = []
    for kind, reference in zip(plan.local.functions.kinds, leaves, strict=True):
        if kind == "head":
            scalar = reference[number]
            # As a row of the tile, so that its gradient is summed over keys alone.
            arrays.append(jnp.full((1, a.size), scalar, jnp.float32) if tile.across else scalar)
        else:
            row = reference[head : head + 1, a if kind == "row" else b].astype(jnp.float32)
            is_upright = (kind == "row") != tile.across
            leaf = as_column(row) if is_upright else row
            # The gradient of a column is summed over lanes once, after all tiles.
            wide = (b.size, a.size) if kind == "column" and tile.across else leaf.shape
            arrays.append(jnp.broadcast_to(leaf, wide))
    return arrays


def visible(plan: Plan, operands: Operands, tile: Tile, banded: bool) -> jax.Array | None:
    """Returns which pairs of a tile are visible, bool [n, m] or [m, n], None if all are.

    banded: the band, segments, lower bounds, functions or pairs hide some of them.
    """
    a, b, across = tile.rows, tile.columns, tile.across
    shape = (b.size, a.size) if across else (a.size, b.size)
    of_query, of_key = (
        jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (int(across), int(not across))
    )
    conditions = []
    if operands.keys is not None:
        row = operands.keys[:, b]
        conditions.append(jnp.broadcast_to(as_column(row) if across else row, shape) > 0)
    elif plan.keys % plan.block_k:
        conditions.append(of_key + tile.origin < plan.keys)
    if banded:
        conditions += plan.local.within_band(of_query - of_key, tile.first - tile.origin)
    if banded and operands.segments is not None:
        query_ids, key_ids = operands.segments[0][:, a], operands.segments[1][:, b]
        upright, flat = (key_ids, query_ids) if across else (query_ids, key_ids)
        conditions.append(as_column(upright) == flat)
    if banded and operands.lower is not None:
        row = operands.lower[:, a]
        conditions.append(of_key + tile.origin >= (row if across else as_column(row)))
    if banded and plan.local.pair_mask is not None:
        # Whole indices, for a row or a column of booleans is more than the compiler can broadcast.
        places = of_query + tile.first, of_key + tile.origin
        conditions.append(seen(plan.local.pair_mask.functions, *places))
    if banded and operands.pairs is not None:
        pairs = operands.pairs[a, b].astype(jnp.float32)
        conditions.append((jnp.transpose(pairs) if across else pairs) > 0)
    return functools.reduce(jnp.logical_and, conditions) if conditions else None


def lanes_of(
    plan: Plan, head: int, array: jax.Array, size: int, others: jax.Array | float = 0.0
) -> jax.Array:
    """Returns an array [n, heads·size] with the lanes of a head from `array`, the rest `others`."""
    if plan.heads == 1:
        return array
    lane = jax.lax.broadcasted_iota(jnp.int32, array.shape, 1)
    of_head = (lane >= head * size) & (lane < (head + 1) * size)
    return jnp.where(of_head, array, jnp.asarray(others, array.dtype))


def zero_beyond(array: jax.Array, first: Any, length: int, block: int) -> jax.Array:
    """Returns an array with 0 at positions from `length` on, which the last block may reach.

    first: position of the array's first row. block: rows of a block.
    """
    if length % block == 0:
        return array
    positions = jax.lax.broadcasted_iota(jnp.int32, array.shape, 0) + first
    return jnp.where(positions < length, array, jnp.zeros_like(array))


def product(left: jax.Array, right: jax.Array, transposed: bool = False) -> jax.Array:
    """Returns left·right, or left·rightᵀ, float32."""
    numbers = (((1,), (int(transposed),)), ((), ()))
    return jax.lax.dot_general(left, right, numbers, preferred_element_type=jnp.float32)


def as_row(column: jax.Array) -> jax.Array:
    """Returns [1, n] for [n, 1]."""
    return jnp.transpose(jnp.broadcast_to(column, (column.shape[0], LANES)))[:1]


def as_column(row: jax.Array) -> jax.Array:
    """Returns [n, 1] for [1, n], float32 or int32."""
    return jnp.transpose(jnp.broadcast_to(row, (LANES, row.shape[1])))[:, :1]


def walk_tiles(
    plan: Plan,
    states: Any,
    blocks: tuple[Any, Any],
    shift: Any,
    exists: Any,
    tile: Callable[..., None],
    backward: bool,
) -> None:
    """Calls tile(rows, columns, banded) for every tile of a pair of blocks that is seen.

    states: those of `accelerated.tile_states`, if tiles are listed. blocks: their numbers, i of
    queries and j of keys. shift: of the block of queries, as of `Local`. exists: whether there is
    such a pair. banded: the band hides some pairs.
    """
    if plan.listed:
        _walk_listed(plan, states, blocks, exists, tile)
    elif plan.slab:
        _walk_slabs(plan, blocks, shift, tile, backward)
    else:
        _walk_band(plan, blocks, shift, exists, tile)


def _walk_listed(
    plan: Plan, states: Any, blocks: tuple[Any, Any], exists: Any, tile: Callable[..., None]
) -> None:
    """Calls `tile` for the tiles that the list says are seen."""
    i, j = blocks
    rows, columns = plan.block_q // plan.tile, plan.block_k // plan.listed

    def visit(number: Any, _: Any) -> None:
        row, column = jax.lax.div(number, columns), jax.lax.rem(number, columns)
        state = states[i * rows + row, j * columns + column]
        # A block of one tile may have any length.
        a, b = (
            pl.ds(pl.multiple_of(part * size, size) if count > 1 else 0, size)
            for part, size, count in ((row, plan.tile, rows), (column, plan.listed, columns))
        )
        pl.when(exists & (state == 1))(functools.partial(tile, a, b, True))
        pl.when(exists & (state == 2))(functools.partial(tile, a, b, False))

    jax.lax.fori_loop(0, rows * columns, visit, None)


def _walk_slabs(
    plan: Plan, blocks: tuple[Any, Any], shift: Any, tile: Callable[..., None], backward: bool
) -> None:
    """Calls `tile` for all tiles of keys (backward) or queries, each with its slab of the rest."""
    (i, j), (low, high) = blocks, (plan.local.low, plan.local.high)
    if backward:
        for b in range(0, plan.block_k, plan.tile):
            origin = j * plan.block_k + b
            rows = _slab(plan, origin - (in_lanes(-low) + shift), plan.block_q)
            # Where devices divide the queries, other devices' see most keys.
            is_seen = isinstance(shift, int) or (
                (origin + low < shift + plan.queries) & (origin + plan.tile + high > shift)
            )
            pl.when(is_seen)(functools.partial(tile, rows, pl.ds(b, plan.tile), True))
        return
    for a in range(0, plan.block_q, plan.tile):
        end = (i * plan.block_q + a) + (in_lanes(plan.tile - low) + shift)
        tile(pl.ds(a, plan.tile), _slab(plan, end - plan.slab, plan.block_k), True)


def _walk_band(
    plan: Plan, blocks: tuple[Any, Any], shift: Any, exists: Any, tile: Callable[..., None]
) -> None:
    """Calls `tile` for tiles of queries, each with the columns that the band shows of the block."""
    i, j = blocks
    division = plan.local.division
    low, high = plan.local.low, plan.local.high

    def visit(offset: int) -> None:
        """Visits a pair whose queries begin `offset` positions after its keys."""
        for a in range(0, plan.block_q, plan.tile):
            first = offset + a
            # Whole lanes of the columns that the tile's rows see.
            c0 = max(0, (first - high) // LANES * LANES)
            c1 = min(plan.block_k, in_lanes(first + plan.tile - low))
            if c1 > c0:
                whole = first - (c1 - 1) >= low and first + plan.tile - 1 - c0 <= high
                tile(pl.ds(a, plan.tile), pl.ds(c0, c1 - c0), not whole)

    count_q, count_k = plan.blocks
    if not plan.local.is_banded or (division is None and (count_q, count_k) == (1, 1)):
        visit(0)
        return
    block = plan.block_q
    if division is not None:  # numbers among the blocks of all devices
        i, count_q = i + shift // block, -(-division.queries // block)
    wholly = []
    for d in range(1 - count_k, count_q):
        nearest, farthest = d * block - (block - 1), d * block + block - 1
        if nearest >= low and farthest <= high:
            wholly.append(d)
        elif farthest >= low and nearest <= high:
            pl.when(exists & (i - j == d))(functools.partial(visit, d * block))
    if wholly:
        # One program for all pairs inside of the band: each sees every column.
        inside = (i - j >= wholly[0]) & (i - j <= wholly[-1])
        pl.when(exists & inside)(functools.partial(visit, wholly[0] * block))


def _slab(plan: Plan, first: Any, length: int) -> Any:
    """Returns the slab that begins at `first`, moved to lie inside of `length` rows."""
    inside = jnp.clip(first, 0, length - plan.slab)
    return pl.ds(pl.multiple_of(inside, LANES), plan.slab)
