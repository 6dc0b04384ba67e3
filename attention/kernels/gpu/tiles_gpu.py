"""Tiles of the kernels for GPUs: which are computed, and what a program reads and writes."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from attention.functions import Leaves
from attention.kernels.accelerated import UNBOUNDED, Operands, moved
from attention.kernels.gpu.plan_gpu import Geometry, TileSizes, triton
from attention.masks import seen


class Tile(NamedTuple):
    """A tile of a program.

    first: number of its first query on the device. shift: of that query's position, as of `Local`.
    origin: position of its first key.
    rows, columns: bool [n] and [m], which rows exist and which keys are seen; None if all.
    across: keys are along its first axis, and the program goes through the queries of `member`;
    else queries are, and the program goes through keys.
    """

    sizes: TileSizes
    first: Any
    origin: Any
    rows: jax.Array | None
    columns: jax.Array | None
    across: bool = False
    member: Any = None
    shift: Any = 0

    def indices(self) -> tuple[jax.Array, jax.Array]:
        """Returns the positions of queries and keys, in shapes that broadcast to the tile.

        Rows that do not exist get the first position: a function may be NaN at others.
        """
        return (
            self._positions(
                moved(self.first, self.shift), self.sizes.queries, self.rows, not self.across
            ),
            self._positions(self.origin, self.sizes.keys, self.columns, self.across),
        )

    def _positions(
        self, first: Any, count: int, inside: jax.Array | None, is_column: bool
    ) -> jax.Array:
        positions = first + jnp.arange(count, dtype=jnp.int32)
        return self.along(
            positions if inside is None else jnp.where(inside, positions, first), is_column
        )

    def of_rows(self, ref: Any) -> jax.Array:
        """Returns the tile's part of a row, [n, 1] or [1, n]."""
        return self._part(ref, self.first, self.sizes.queries, self.rows, not self.across)

    def of_columns(self, ref: Any) -> jax.Array:
        """Returns the tile's part of a column, [m, 1] or [1, m]."""
        return self._part(ref, self.origin, self.sizes.keys, self.columns, self.across)

    def _part(
        self, ref: Any, first: Any, count: int, inside: jax.Array | None, is_column: bool
    ) -> jax.Array:
        # A program has its own rows alone, which stand along the first axis, and all of the others.
        begin = 0 if is_column else first
        part = _load(ref.at[_at(self.member, pl.ds(begin, count))], inside)
        return self.along(part, is_column)

    def of_pairs(self, ref: Any) -> jax.Array:
        """Returns the tile's part of a mask [T, S], int32."""
        first, origin = (self.first, 0) if self.across else (0, self.origin)
        at = pl.ds(first, self.sizes.queries), pl.ds(origin, self.sizes.keys)
        part = triton.load(ref.at[at]).astype(jnp.int32)
        return part.T if self.across else part

    def along(self, array: jax.Array, is_column: bool) -> jax.Array:
        """Returns [n] as a column [n, 1] or a row [1, n]."""
        return array[:, None] if is_column else array[None, :]


def tile_leaves(
    geometry: Geometry, leaves: tuple[Any, ...], tile: Tile, head: Any
) -> list[jax.Array]:
    """Returns the leaves of a tile in shapes that broadcast to it; head: its number."""
    # Hidden numbers are read, too: a function may be NaN at 0.
    every = tile._replace(rows=None, columns=None)
    queries = (tile.sizes.queries,)
    readers = {
        # A number for each query, so that its gradient is summed over keys alone.
        "head": lambda ref: tile.along(jnp.full(queries, ref[head], jnp.float32), not tile.across),
        "row": every.of_rows,
        "column": every.of_columns,
    }
    kinds = geometry.local.functions.kinds
    return [readers[kind](ref) for kind, ref in zip(kinds, leaves, strict=True)]


def visible(geometry: Geometry, operands: Operands, tile: Tile, ragged: bool) -> jax.Array | None:
    """Returns which pairs of a tile are visible, bool [n, m] or [m, n], None if all are.

    ragged: the band hides some pairs of the tile.
    """
    of_query, of_key = tile.indices()
    conditions = geometry.local.within_band(of_query - of_key) if ragged else []
    alone = tile._replace(member=None)
    if operands.segments is not None:
        query_ids, key_ids = operands.segments
        conditions.append(alone.of_rows(query_ids) == alone.of_columns(key_ids))
    if operands.lower is not None:
        conditions.append(of_key >= alone.of_rows(operands.lower))
    if geometry.local.pair_mask is not None:
        # Triton cannot broadcast every row of booleans: the indices are whole.
        shape = jnp.broadcast_shapes(of_query.shape, of_key.shape)
        places = (jnp.broadcast_to(place, shape) for place in (of_query, of_key))
        conditions.append(seen(geometry.local.pair_mask.functions, *places))
    if operands.pairs is not None:
        conditions.append(alone.of_pairs(operands.pairs) > 0)
    if tile.columns is not None:
        conditions = [tile.along(tile.columns, tile.across), *conditions]
    return functools.reduce(jnp.logical_and, conditions) if conditions else None


def existing(first: Any, count: int, length: int) -> jax.Array | None:
    """Returns which of `count` rows from `first` on exist, None if tiles divide the length."""
    return None if length % count == 0 else first + jnp.arange(count) < length


def visible_keys(
    geometry: Geometry, keys: Any, place: Any, origin: Any, count: int, ragged: bool
) -> jax.Array | None:
    """Returns which keys exist and are seen, bool [count], None if all.

    keys: reference to a mask [S]. place: where the tile begins in it. origin: position of the first
    key. ragged: the tile may reach beyond the last key.
    """
    inside = existing(origin, count, geometry.keys) if ragged else None
    if keys is None:
        return inside
    is_visible = _load(keys.at[pl.ds(place, count)], inside) > 0
    return is_visible if inside is None else is_visible & inside


def read(
    ref: Any, first: Any, rows: jax.Array | None, count: int, size: int, member: Any = None
) -> jax.Array:
    """Returns rows [count, padded size] of a block from `first` on, 0 beyond its end."""
    at = (pl.ds(first, count), *(() if member is None else (member,)), slice(None))
    return _load(ref.at[at], _inside(ref.shape[-1], rows, count, size))


def _load(ref: Any, mask: jax.Array | None) -> jax.Array:
    """Returns what a reference holds, 0 outside of the mask."""
    return triton.load(ref) if mask is None else triton.load(ref, mask=mask, other=0)


def write(ref: Any, array: jax.Array, rows: jax.Array | None, size: int) -> None:
    """Writes rows [count, padded size] that exist; rows: which of them do, None if all."""
    count, width = array.shape
    triton.store(ref.at[:, :], array.astype(ref.dtype), mask=_inside(width, rows, count, size))


def write_row(ref: Any, member: Any, array: jax.Array, rows: jax.Array | None) -> None:
    """Writes [count] numbers; rows: which of them exist, None if all."""
    triton.store(ref.at[_at(member, pl.ds(0, array.shape[0]))], array, mask=rows)


def _at(member: Any, place: Any) -> tuple[Any, ...]:
    """Returns the index of a slice of a member's row, or of the only row."""
    return (place,) if member is None else (member, place)


def _inside(width: int, rows: jax.Array | None, count: int, size: int) -> jax.Array | None:
    """Returns which places of a tile [count, width] exist, None if all do."""
    mask = None if rows is None else jnp.broadcast_to(rows[:, None], (count, width))
    if width > size:
        inside = jnp.broadcast_to((jnp.arange(width) < size)[None, :], (count, width))
        mask = inside if mask is None else mask & inside
    return mask


def channel_reader(geometry: Geometry, channels: Any) -> Callable[[jax.Array], Leaves]:
    """Returns a function that gives the channel leaves by name for an array [n, padded V].

    channels: reference to [c, V]. Leaves are 0 beyond the last channel.
    """
    names = geometry.local.functions.channels
    leaves = [read(channels, place, None, 1, geometry.wide) for place in range(len(names))]

    def of_array(array: jax.Array) -> Leaves:
        # Triton cannot change the layout of a row of booleans in a tile of fewer than 64 rows, so
        # leaves are made per element. The added zeros keep Triton from computing them per row.
        return {name: leaf + 0.0 * array for name, leaf in zip(names, leaves, strict=True)}

    return of_array


def values_of(
    geometry: Geometry,
    v: Any,
    channels: Callable[[jax.Array], Leaves],
    first: Any,
    columns: jax.Array | None,
    count: int,
) -> jax.Array:
    """Returns F of `count` keys from `first` on (without a transform: V), in the dtype of V.

    v: reference to [S, V]. columns: which keys are seen, None if all; others are 0.
    """
    value = read(v, first, columns, count, geometry.wide)
    if geometry.local.functions.transform is None:
        return value
    wide = value.astype(jnp.float32)
    raised = geometry.local.functions.transform.value(wide, channels(wide))
    if columns is not None:
        raised = jnp.where(columns[:, None], raised, 0)
    return raised.astype(value.dtype)


def product(left: jax.Array, right: jax.Array, transposed: bool = False) -> jax.Array:
    """Returns left·right, or left·rightᵀ, float32."""
    return jnp.dot(left, right.T if transposed else right, preferred_element_type=jnp.float32)


def walk_keys(
    geometry: Geometry, sizes: TileSizes, tiles: Any, first: Any, visit: Any, carried: Any
) -> Any:
    """Returns what visit(j, carried, ragged) carries through the tiles of keys that are seen.

    tiles: reference to the program's list of tiles, or None. first: position of its first query.
    ragged: some keys of the tile are hidden from some rows or do not exist.
    """
    if tiles is not None:
        return walk_list(tiles, visit, carried)
    begin: Any = 0
    whole: Any = geometry.keys // sizes.keys
    count: Any = -(-geometry.keys // sizes.keys)
    if geometry.local.low > -UNBOUNDED:
        last = first + sizes.queries - 1 - geometry.local.low
        count = jnp.minimum(_quotient(last + sizes.keys, sizes.keys), count)
        before = jnp.maximum(first + 1 - geometry.local.low, 0)
        whole = jnp.minimum(_quotient(before, sizes.keys), whole)
    if geometry.local.high < UNBOUNDED:  # a window is narrow: its tiles are all ragged
        begin = whole = _quotient(jnp.maximum(first - geometry.local.high, 0), sizes.keys)
    carried = jax.lax.fori_loop(begin, whole, functools.partial(visit, ragged=False), carried)
    if geometry.local.is_banded or geometry.keys % sizes.keys:
        carried = jax.lax.fori_loop(whole, count, functools.partial(visit, ragged=True), carried)
    return carried


def walk_list(tiles: Any, visit: Any, carried: Any) -> Any:
    """Returns what visit(number, carried, ragged) carries through a program's list of tiles.

    tiles: reference to their count, followed by their numbers.
    """
    # Not all tiles with a condition each: LASER's by_key kernel then spills 256 bytes at D = 128.
    return jax.lax.fori_loop(
        0, tiles[0], lambda place, carried: visit(tiles[place + 1], carried, True), carried
    )


def _quotient(number: Any, count: int) -> Any:
    """Returns number // count for number ≥ 0, in 32 bits even with jax_enable_x64."""
    return jax.lax.div(number, jnp.int32(count))


def query_ranges(
    geometry: Geometry, sizes: TileSizes, origin: Any, shifts: Any
) -> list[tuple[Any, Any, Any]]:
    """Returns which tiles of each part of the queries see keys from `origin` on.

    By (begin, free, end); begin: the first that sees some of the keys. free: the first that sees
    all. end: after the last. shifts: the operand, if devices divide the queries.
    """
    count, division = -(-geometry.queries // sizes.queries), geometry.local.division
    if division is None:
        return [_query_range(geometry, sizes, origin, count)]
    parts = len(division.shifts)
    ranges = (_query_range(geometry, sizes, origin - shifts[part], count) for part in range(parts))
    limits = [count * part // parts for part in range(parts + 1)]
    return [
        (jnp.clip(begin, *within), jnp.clip(free, *within), jnp.clip(end, *within))
        for (begin, free, end), within in zip(ranges, itertools.pairwise(limits), strict=True)
    ]


def _query_range(
    geometry: Geometry, sizes: TileSizes, origin: Any, count: int
) -> tuple[Any, Any, Any]:
    """Returns (begin, free, end) of one part, see `query_ranges`."""
    begin: Any = 0
    free: Any = 0
    end: Any = count
    if geometry.local.low > -UNBOUNDED:
        begin = _quotient(jnp.maximum(origin + geometry.local.low, 0), sizes.queries)
        last = jnp.maximum(origin + sizes.keys - 1 + geometry.local.low, 0)
        free = jnp.minimum(_quotient(last + sizes.queries - 1, sizes.queries), count)
    if geometry.local.high < UNBOUNDED:
        past = origin + sizes.keys - 1 + geometry.local.high
        end = jnp.minimum(_quotient(past, sizes.queries) + 1, count)
        free = jnp.minimum(free, end)
    return begin, free, end
