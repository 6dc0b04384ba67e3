"""The backward pass of the `fused` kernel for TPUs."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attention.kernels.accelerated import LANES, Operands, RowInputs, kept_weights, moved, present
from attention.kernels.tpu.plan_tpu import (
    Index,
    Plan,
    Plans,
    arguments,
    block_spec,
    block_specs,
    kernel_call,
    maximum,
    minimum,
)
from attention.kernels.tpu.tiles_tpu import (
    GridStep,
    Tile,
    as_column,
    as_row,
    lanes_of,
    product,
    read_channels,
    tile_leaves,
    visible,
    walk_tiles,
    write_values,
    zero_beyond,
)


def backward(
    plans: Plans,
    operands: Operands,
    means: jax.Array,
    log_sums: jax.Array | None,
    cotangent: jax.Array,
    lse_bar: jax.Array | None,
) -> Operands:
    """Returns the gradients of the operands, in their dtypes; None for channels and keys.

    operands: as `fused_tpu.make_operands` returns them. means, log_sums: R and s of `forward`.
    cotangent: dO, [N, M, T, G·V]. lse_bar: the cotangent of s, which is a mass's, as −δ is.
    """
    _, plan = plans
    steps = max(last - first + 1 for first, last in map(plan.queries_of, range(plan.blocks[1])))
    entries, members, _, channels = operands.query.shape
    groups = channels // (plan.heads * plan.size)
    grid = (entries, groups, plan.blocks[1], members, steps)

    def place(n: Any, g: Any, j: Any, m: Any, step: Any, shifts: Any = None) -> tuple[Any, ...]:
        first, last = plan.queries_of(j, plan.local.shift(step * plan.block_q, shifts))
        if shifts is not None:  # a block that is not seen is not read where the next one is
            return n, g, m, maximum(0, minimum(maximum(first, step), last)), j
        clamped = plan.local.is_banded and plan.resident
        return n, g, m, minimum(first + step, last) if clamped else step, j

    blocks = block_specs(plan, operands, place)
    shapes, specs = _gradients(plan, operands, place, blocks)
    rows = log_sums
    if log_sums is not None:
        # The weights of a row beyond the end are e^−∞, whatever its logits.
        beyond = ((0, 0),) * 4 + ((0, plan.blocks[0] * plan.block_q - plan.queries),)
        rows = jnp.pad(log_sums, beyond, constant_values=jnp.inf)
        lse_bar = None if lse_bar is None else jnp.pad(lse_bar, beyond)
    kept = RowInputs(means=means, log_sums=rows, cotangent=cotangent, lse_bar=lse_bar)
    *shifts, padded = arguments(plan, operands)
    read = [present(padded, blocks), present(kept, blocks)]
    [bars] = kernel_call(
        plan,
        functools.partial(_backward_kernel, plan, steps),
        "fused_backward",
        grid,
        (read, specs),
        shapes,
        _scratch(plan, members),
    )(*shifts, padded, kept)
    if not plan.resident:
        bars = bars._replace(query=jnp.sum(bars.query, axis=0).astype(operands.query.dtype))
    if operands.start is not None and log_sums is not None:
        bars = bars._replace(start=_start_bar(plan, operands.start, log_sums, bars.start))
    kinds = plan.local.functions.kinds
    leaves = tuple(
        _of_heads(plan, bar, leaf)
        if kind == "head"
        else bar[..., : leaf.shape[-1]].astype(leaf.dtype)
        for kind, leaf, bar in zip(kinds, operands.leaves, bars.leaves, strict=True)
    )
    return bars._replace(leaves=leaves)


def _start_bar(plan: Plan, start: jax.Array, log_sums: jax.Array, sums: jax.Array) -> jax.Array:
    """Returns the gradient of `start`, the logit of a key of value 0 that no kernel sees.

    sums: what the kernel returns for it, of each row.
    """
    shape = _heads_first(plan, log_sums.shape)
    logits = jnp.broadcast_to(start[:, None], shape).reshape(log_sums.shape)
    shares = jnp.exp(logits - log_sums)
    return _of_heads(plan, shares * sums[..., : plan.queries], start)


def _gradients(
    plan: Plan, operands: Operands, place: Index, blocks: dict[str, Any]
) -> tuple[Operands, Operands]:
    """Returns shapes and dtypes of the kernel's gradients, and their block specifications.

    dQ [N, M, T, G·C], or its parts [blocks of keys, N, M, T, G·C]; dK and dV as K and V; of the
    start a row; of leaves: head [N, G, M, h, 128], row [N, G, M, h, T], column [N, G, M, h, S],
    float32, T and S to the end of the last block. What is no block of `blocks` is summed over steps
    of the grid. place: as for `block_specs`, which makes `blocks`.
    """
    entries, members, _, channels = operands.query.shape
    size, rows = plan.heads * plan.size, plan.blocks[0] * plan.block_q
    per_head = (entries, channels // size, members, plan.heads)
    at = functools.partial(block_spec, place)

    def summed(length: int) -> tuple[Any, Any]:
        block = at(
            (None, None, plan.members, plan.heads, length), lambda n, g, m, i, j: (n, g, 0, 0, 0)
        )
        return jax.ShapeDtypeStruct((*per_head, length), jnp.float32), block

    columns = (*per_head, plan.blocks[1] * plan.block_k)
    of_kind = {
        "head": summed(LANES),
        "row": summed(rows),
        "column": (jax.ShapeDtypeStruct(columns, jnp.float32), blocks["column"]),
    }
    query, key, value = (jax.ShapeDtypeStruct(array.shape, array.dtype) for array in operands[:3])
    block = at((None, plan.members, rows, size), lambda n, g, m, i, j: (n, 0, 0, g))
    if not plan.resident:
        query = jax.ShapeDtypeStruct((plan.blocks[1], *query.shape), jnp.float32)
        block = at((None, None, None, plan.block_q, size), lambda n, g, m, i, j: (j, n, m, i, g))
    start = (None, None) if operands.start is None else of_kind["row"]
    leaves = [of_kind[kind] for kind in plan.local.functions.kinds]
    return (
        Operands(query, key, value, start=start[0], leaves=tuple(shape for shape, _ in leaves)),
        Operands(
            block,
            blocks["key"],
            blocks["value"],
            start=start[1],
            leaves=tuple(spec for _, spec in leaves),
        ),
    )


def _scratch(plan: Plan, members: int) -> list[Any]:
    """Returns the shapes of `_Gradients`' arrays on the chip."""
    size, wide = plan.heads * plan.size, plan.heads * plan.wide
    whole = (members, plan.blocks[0] * plan.block_q, size)
    column = (plan.heads, plan.block_k, LANES)
    shapes: list[tuple[int, ...]] = [
        whole if plan.resident else (1, plan.block_q, size),
        (plan.block_k, size),
        (plan.block_k, wide),
        *[column] * plan.local.functions.kinds.count("column"),
        (plan.block_k, wide),
    ]
    return [pltpu.VMEM(shape, jnp.float32) for shape in shapes]


def _heads_first(plan: Plan, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape (entries, heads, rest) of an array [N, G, M, h, rest]."""
    entries = shape[0] // plan.copies
    return entries, math.prod(shape[:4]) // entries, shape[4]


def _of_heads(plan: Plan, array: jax.Array, like: jax.Array) -> jax.Array:
    """Returns [H], the sums of [N, G, M, h, rest], in the dtype of `like`."""
    return jnp.sum(array.reshape(_heads_first(plan, array.shape)), axis=(0, 2)).astype(like.dtype)


def _backward_kernel(
    plan: Plan,
    steps: int,
    shifts: Any,
    operands: Operands,
    kept: RowInputs,
    out: Operands,
    *scratch: Any,
) -> None:
    """Adds a block of queries to the gradients: one step of the grid (n, g, j, m, step)."""
    by_query, by_key, by_value, *by_column, values = scratch
    columns = iter(by_column)
    column_sums = [
        next(columns) if kind == "column" else None for kind in plan.local.functions.kinds
    ]
    n, g, j, m, step = (pl.program_id(axis) for axis in range(5))
    first, last = plan.queries_of(j)
    i = first + step if plan.blocks[0] > 1 else 0
    shift = plan.local.shift(i * plan.block_q, shifts)
    channels = functools.partial(read_channels, plan, operands.channels)
    zero = plan.local.functions.of_zero(channels, (1, by_value.shape[1]))
    sums = _Gradients(
        plan=plan,
        operands=operands,
        out=out,
        i=i,
        j=j,
        shift=shift,
        channels=channels,
        zero=zero,
        values=values,
        kept=kept,
        grid=(n, g, m),
        by_query=by_query,
        by_key=by_key,
        by_value=by_value,
        by_column=column_sums,
    )
    pl.when((m == 0) & (step == 0))(sums.begin_keys)
    pl.when((j == 0) & (m == 0) & (step == 0))(sums.begin_rows)
    if by_column:
        pl.when(step == 0)(sums.begin_columns)
    if not plan.resident:
        by_query[...] = jnp.zeros_like(by_query)
    walk_tiles(plan, operands.tiles, (i, j), shift, i <= last, sums.add_tile, backward=True)
    pl.when((m == plan.members - 1) & (step == steps - 1))(sums.finish_keys)
    pl.when(step == steps - 1)(sums.finish_columns)
    if plan.resident:
        is_last = (j == plan.blocks[1] - 1) & (m == plan.members - 1) & (step == steps - 1)
        pl.when(is_last)(sums.finish_queries)
    else:
        out.query[...] = by_query[0]


@dataclasses.dataclass(frozen=True)
class _Gradients(GridStep):
    """The gradients' sums over pairs of blocks.

    grid: entry, group of heads and query head.

    On the chip, float32: by_query, dQ [M, T, h·C] of all rows, or [1, block_q, h·C]; by_key and
    by_value, dK and dV of a block; by_column, of each column leaf [h, block_k, 128], None for other
    leaves.
    """

    kept: RowInputs
    grid: tuple[Any, Any, Any]
    by_query: Any
    by_key: Any
    by_value: Any
    by_column: list[Any]

    def begin_keys(self) -> None:
        """Sets dK and dV to 0 and writes F of the block of keys."""
        self.by_key[...] = jnp.zeros_like(self.by_key)
        self.by_value[...] = jnp.zeros_like(self.by_value)
        if self.plan.local.functions.transform is not None:
            write_values(self.plan, self.operands, self.values, self.j, self.channels)

    def begin_rows(self) -> None:
        """Sets to 0 what is summed over all blocks."""
        for kind, out in zip(self.plan.local.functions.kinds, self.out.leaves, strict=True):
            if kind != "column":
                out[...] = jnp.zeros_like(out)
        if self.out.start is not None:
            self.out.start[...] = jnp.zeros_like(self.out.start)
        if self.plan.resident:
            self.by_query[...] = jnp.zeros_like(self.by_query)

    def begin_columns(self) -> None:
        """Sets the sums of column leaves to 0."""
        for sums in self.by_column:
            if sums is not None:
                sums[...] = jnp.zeros_like(sums)

    def add_tile(self, a: Any, b: Any, banded: bool) -> None:
        """Adds queries a of the block and its keys b; banded: some pairs are hidden."""
        plan, operands = self.plan, self.operands
        first, origin = self.i * plan.block_q + a.start, self.j * plan.block_k + b.start
        tile = Tile(plan, a, b, moved(first, self.shift), origin, True)

        def rows(array: Any) -> jax.Array:
            return zero_beyond(array[a, :], first, plan.queries, plan.block_q)

        def keys(array: Any) -> jax.Array:
            return zero_beyond(array[b, :], origin, plan.keys, plan.block_k)

        queries, tile_keys = rows(operands.query), keys(operands.key)
        means = rows(self.kept.means).astype(jnp.float32)
        inner = rows(self.kept.cotangent).astype(jnp.float32)
        values = keys(operands.value)
        if plan.local.functions.transform is not None:
            values = self.values[b, :].astype(operands.value.dtype)
            inner = self._inner(a, first, inner, means)
        narrow = inner.astype(queries.dtype)
        # Of G as it is multiplied, so that the terms of a row cancel.
        products = means * narrow.astype(jnp.float32)
        is_visible = visible(plan, operands, tile, banded)
        whole = a  # the tile's rows among all rows
        if plan.blocks[0] > 1:
            whole = pl.ds(pl.multiple_of(first, LANES), a.size)
        for head in range(plan.heads):
            self._add_head(
                tile,
                whole,
                head,
                is_visible,
                lanes_of(plan, head, queries, plan.size),
                tile_keys,
                values,
                lanes_of(plan, head, narrow, plan.wide),
                products,
            )

    def _inner(self, a: Any, first: Any, cotangent: jax.Array, means: jax.Array) -> jax.Array:
        """Returns G = dO·∂o/∂R [n, h·V] of a tile's rows, 0 for rows that see nothing.

        The derivative at 0 may be infinite.
        """
        plan, transform = self.plan, self.plan.local.functions.transform
        assert transform is not None
        pulled = transform.pull_output(cotangent, means, self.channels())
        inner = zero_beyond(pulled, first, plan.queries, plan.block_q)
        is_divided = plan.local.functions.weighting.mass is not None
        for head in range(plan.heads if plan.local.may_see_none and is_divided else 0):
            sees = as_column(self.kept.log_sums[head : head + 1, a]) < jnp.inf
            shown = jnp.where(jnp.broadcast_to(sees, inner.shape), inner, 0)
            inner = lanes_of(plan, head, shown, plan.wide, inner)
        return inner

    def _add_head(
        self,
        tile: Tile,
        whole: Any,
        head: int,
        is_visible: jax.Array | None,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        inner: jax.Array,
        products: jax.Array,
    ) -> None:
        """Adds a head's part of a tile to all gradients.

        whole: the tile's rows among all rows. queries, keys: [n, h·C] and [m, h·C]. values, inner:
        F [m, h·V] and G [n, h·V]. products: R·G [n, h·V]. The head's lanes alone are not 0 in
        queries and inner.
        """
        plan, operands, m = self.plan, self.operands, self.grid[2]
        functions, a, b = plan.local.functions, tile.rows, tile.columns
        number = plan.head(*self.grid, head)
        raw = product(keys, queries, transposed=True) * plan.local.scale
        s: Any = None
        delta: Any = None
        if functions.weighting.mass is not None:
            s = self.kept.log_sums[head : head + 1, a]
            head_products = lanes_of(plan, head, products, plan.wide)
            delta = as_row(jnp.sum(head_products, axis=1, keepdims=True))
            if self.kept.lse_bar is not None:
                delta = delta - self.kept.lse_bar[head : head + 1, a]
        if self.out.start is not None:
            lost = delta
            if self.zero is not None:
                of_zero = inner.astype(jnp.float32) * self.zero
                lost = delta - as_row(jnp.sum(of_zero, axis=1, keepdims=True))
            self.out.start[m, head : head + 1, whole] = -lost
        weights, raw_bar, leaf_bars = functions.pulled(
            raw,
            tile.indices(),
            tile_leaves(plan, operands.leaves, tile, head, number),
            is_visible,
            s,
            product(values, inner, transposed=True),
            delta,
            kept=kept_weights(plan.local, operands.seeds, number, tile.indices()),
        )
        self.by_value[b, :] += product(weights.astype(queries.dtype), inner)
        raw_bar = (raw_bar * plan.local.scale).astype(queries.dtype)
        self.by_key[b, :] += product(raw_bar, queries)
        of_queries = lanes_of(plan, head, product(jnp.transpose(raw_bar), keys), plan.size)
        if plan.resident:
            self.by_query[m, whole, :] += of_queries
        else:
            self.by_query[0, a, :] += of_queries
        self._add_leaves(tile, whole, head, leaf_bars)

    def _add_leaves(self, tile: Tile, whole: Any, head: int, bars: list[jax.Array]) -> None:
        """Adds a tile's gradients of leaves, [1, n] or for columns [m, n]."""
        a, b, m = tile.rows, tile.columns, self.grid[2]
        for kind, out, sums, bar in zip(
            self.plan.local.functions.kinds,
            self.out.leaves,
            self.by_column,
            bars,
            strict=True,
        ):
            if kind == "row":
                out[m, head : head + 1, whole] += bar
                continue
            for lane in range(0, a.size, LANES):
                part = bar[:, lane : lane + LANES]
                if kind == "head":
                    out[m, head : head + 1, : part.shape[1]] += part
                else:
                    sums[head, b, : part.shape[1]] += part

    def finish_keys(self) -> None:
        """Writes dK and dV of the block of keys."""
        key, value, transform = self.out.key, self.out.value, self.plan.local.functions.transform
        key[...] = self.by_key[...].astype(key.dtype)
        gradient = self.by_value[...]
        if transform is not None:
            wide = self.operands.value[...].astype(jnp.float32)
            gradient = transform.pull_value(gradient, wide, self.values[...], self.channels())
        value[...] = gradient.astype(value.dtype)

    def finish_columns(self) -> None:
        """Writes the gradients of column leaves."""
        for out, sums in zip(self.out.leaves, self.by_column, strict=True):
            for head in range(self.plan.heads if sums is not None else 0):
                out[head : head + 1, :] = as_row(jnp.sum(sums[head], axis=1, keepdims=True))

    def finish_queries(self) -> None:
        """Writes dQ of all queries."""
        self.out.query[...] = self.by_query[...].astype(self.out.query.dtype)
