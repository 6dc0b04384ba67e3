"""The `fused` kernel for TPUs, compiled by Mosaic; the formulas are those of `fused`.

The backward pass needs s of each row and R in float32 (without a transform: the output). LASER's
channel leaves depend on the values. A pass over V makes them, 3 % of c4_lm's step. If one block
holds all keys, the kernel makes them instead.

A grid step multiplies a block of queries by a block of keys, 256 or 512 queries at a time. Nothing
is read or computed for blocks that a band (causality, a window) hides, nor for the columns that it
hides from a whole tile. If a window is narrow, all keys of a head lie on the chip (backward: all
queries), and a tile takes one slice of them, the slab. T = 4,096 with a window of 256 then takes
0.23 of the causal problem. Of documents and other masks a loop visits only the tiles that are seen.
The last block may reach beyond the arrays: reads there give 0, and writes are dropped.

Arrays are [B, H, T, D]. Heads smaller than 128 keep the layout of the projections, [B, T, H·D];
128/D of them share a block. A head's product sets the lanes of the others to 0, which takes the
same time in a matrix unit 128 wide. In ViT-S transpositions and padding took 39 of 118 ms; the
copies that remain take 8 of 70 ms.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attention.functions import HIDDEN, LOWEST, least
from attention.kernels.accelerated import (
    LANES,
    ForwardResults,
    Local,
    Operands,
    differentiable,
    kept_weights,
    moved,
    named,
    operands_of,
    present,
    tile_states,
)
from attention.kernels.tpu.backward_tpu import backward
from attention.kernels.tpu.plan_tpu import (
    Plan,
    Plans,
    arguments,
    block_specs,
    both_plans,
    heads_together,
    kernel_call,
    minimum,
)
from attention.kernels.tpu.tiles_tpu import (
    GridStep,
    Tile,
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


def attend(local: Local, arrays: dict[str, Any], *, device_kind: str) -> Any:
    """Returns what `accelerated.on_devices` wants of a device's arrays.

    Raises ValueError for tiles that the kernels cannot have.
    """
    *batch, queries, heads, size = arrays["query"].shape
    length, key_heads, wide = arrays["value"].shape[-3:]
    members = heads // key_heads
    by_head = "pairs" in arrays and arrays["pairs"].shape[-3] > 1
    together = 0 if members > 1 or by_head else heads_together(heads, size, wide)
    plan = Plan(
        local, max(1, together), 1 if together else key_heads, members, queries, length, size, wide
    )
    plans = both_plans(plan, device_kind, arrays)
    plan = plans[0]
    operands = make_operands(plan, arrays, bool(together))
    if plan.listed:
        states = tile_states(local, operands, (plan.tile, plan.listed), plan.tiles)
        operands = operands._replace(tiles=states)
    output, log_sums = _attend(plans, local.with_lse, operands)
    if not together:
        output = output.reshape((math.prod(batch), heads, queries, wide))
        output = jnp.swapaxes(output, 1, 2)
    output = output.reshape((*batch, queries, heads, wide))
    if log_sums is None:
        return output
    return output, log_sums.reshape((*batch, heads, queries))


def make_operands(plan: Plan, arrays: dict[str, Any], together: bool) -> Operands:
    """Returns the operands of the kernels, without the states of tiles.

    N: batch entries, times key heads unless several heads share a block (`together`). M: query
    heads of a key head. G: groups of h heads that share a block, with C and V channels.

    query [N, M, T, G·C], key [N, S, G·C], value [N, S, G·V], channels [N, c, G·V] float32,
    start [H], leaves: head [H], row [N, G, M, h, T], column [N, G, M, h, S]; others as of
    `accelerated.operands_of`.
    """
    entries = math.prod(arrays["query"].shape[:-3])

    def flat(array: jax.Array) -> jax.Array:
        """Returns [N, rows, channels] of [..., rows, heads, channels]."""
        array = array.reshape((entries, *array.shape[-3:]))
        if not together:
            array = jnp.swapaxes(array, 1, 2).reshape((-1, array.shape[1], 1, array.shape[-1]))
        return array.reshape((*array.shape[:2], -1))

    def by_group(leaf: jax.Array) -> jax.Array:
        """Returns [N, G, M, h, rows] of [..., H, rows]."""
        return leaf.reshape((entries * plan.copies, -1, plan.members, plan.heads, leaf.shape[-1]))

    # A block with all keys and no mask has what the channel leaves are made of.
    in_kernel = "seen" not in arrays and plan.blocks[1] == 1
    made = operands_of(plan.local, arrays, in_kernel, flat, by_group)
    return made._replace(query=made.query.reshape((-1, plan.members, *made.query.shape[1:])))


def forward(plans: Plans, operands: Operands, *, keep: bool, with_lse: bool) -> ForwardResults:
    """Returns the output [N, M, T, G·V], the channel leaves, and with `keep` R and s.

    R, as the output in float32, is kept if there is a transform; s [N, G, M, h, T], also
    `with_lse`, if weights are divided by a mass. operands: as `make_operands` returns them.
    """
    plan, _ = plans
    functions = plan.local.functions
    entries, members, _, channels = operands.query.shape
    groups = channels // (plan.heads * plan.size)
    blocks_q = plan.blocks[0]
    steps = max(last - first + 1 for first, last in map(plan.keys_of, range(blocks_q)))
    grid = (entries, groups, members, blocks_q, steps)

    def place(n: Any, g: Any, m: Any, i: Any, step: Any, shifts: Any = None) -> tuple[Any, ...]:
        first, last = plan.keys_of(i, plan.local.shift(i * plan.block_q, shifts))
        return n, g, m, i, minimum(first + step, last) if plan.local.is_banded else step

    blocks = block_specs(plan, operands, place)
    wide = plan.heads * plan.wide
    shape = (entries, members, plan.queries, groups * wide)
    rows = (entries, groups, members, plan.heads, blocks_q * plan.block_q)
    results = ForwardResults(
        jax.ShapeDtypeStruct(shape, plan.local.dtype),
        jax.ShapeDtypeStruct(shape, jnp.float32) if keep and functions.transform else None,
        jax.ShapeDtypeStruct(rows, jnp.float32)
        if (keep or with_lse) and functions.weighting.mass
        else None,
        jax.ShapeDtypeStruct((entries, len(functions.channels), groups * wide), jnp.float32)
        if functions.channels and operands.channels is None
        else None,
    )
    *shifts, padded = arguments(plan, operands)
    call = kernel_call(
        plan,
        functools.partial(_forward_kernel, plan, steps),
        "fused_forward",
        grid,
        ([present(padded, blocks)], present(results, blocks)),
        results,
        [
            pltpu.VMEM((plan.heads, plan.block_q, LANES), jnp.float32),
            pltpu.VMEM((plan.heads, plan.block_q, LANES), jnp.float32),
            pltpu.VMEM((plan.block_q, wide), jnp.float32),
            pltpu.VMEM((plan.block_k, wide), operands.value.dtype),
        ],
    )
    # Within jit, since JAX 0.10 keeps kernels whose results nobody reads.
    [results] = jax.jit(call)(*shifts, padded)
    written = named(results)
    if written.log_sums is not None:
        written = written._replace(log_sums=written.log_sums[..., : plan.queries])
    if written.channels is None:
        written = written._replace(channels=operands.channels)
    return written


def _forward_kernel(
    plan: Plan, steps: int, shifts: Any, operands: Operands, out: ForwardResults, *scratch: Any
) -> None:
    """Adds a block of keys to a block of queries: one step of the grid (n, g, m, i, step)."""
    functions = plan.local.functions
    top, total, row_sums, values = scratch
    n, g, m, i, step = (pl.program_id(axis) for axis in range(5))
    shift = plan.local.shift(i * plan.block_q, shifts)
    first, last = plan.keys_of(i, shift)
    j = first + step if plan.blocks[1] > 1 else 0
    made = operands.channels if out.channels is None else out.channels
    channels = functools.partial(read_channels, plan, made)
    if functions.transform is not None:
        # A single block of keys is transformed once for all blocks of queries.
        pl.when((m == 0) & (i == 0) | (plan.blocks[1] > 1))(
            functools.partial(write_values, plan, operands, values, j, channels, out.channels)
        )
    heads = [plan.head(n, g, m, head) for head in range(plan.heads)]
    starts: list[Any] = [functions.weighting.start] * plan.heads
    if operands.start is not None:
        starts = [operands.start[head] for head in heads]
    bounds = [least(functions.weighting, start) for start in starts]
    zero = functions.of_zero(channels, (1, row_sums.shape[1]))
    # With all keys in one block each row's maximum is known at once, and nothing is carried on.
    alone = steps == 1 and not plan.listed
    sums = _RowSums(
        plan=plan,
        operands=operands,
        out=out,
        i=i,
        j=j,
        shift=shift,
        channels=channels,
        zero=zero,
        values=values,
        heads=heads,
        alone=alone,
        starts=starts,
        bounds=bounds,
        top=top,
        total=total,
        sums=row_sums,
    )
    if not alone or plan.heads > 1 or plan.local.may_see_none:
        pl.when(step == 0)(sums.begin)
    walk_tiles(plan, operands.tiles, (i, j), shift, j <= last, sums.add_tile, backward=False)
    pl.when(step == steps - 1)(sums.finish)


@dataclasses.dataclass(frozen=True)
class _RowSums(GridStep):
    """The running sums of a block of queries over blocks of keys.

    heads: numbers of the block's heads. alone: there is one block of keys. starts: by head, the
    logit of a key of value 0 that each row begins with, or None. bounds: by head, the least maximum
    that follows from it.

    On the chip, float32: top and total, each row's maximum (in the end s) and mass so far,
    [h, block_q, 128]; sums, Σ w·F [block_q, h·V]. `values`: [block_k, h·V] in the dtype of V.
    """

    heads: list[Any]
    alone: bool
    starts: list[Any]
    bounds: list[Any]
    top: Any
    total: Any
    sums: Any

    def begin(self) -> None:
        """Writes the sums before the first key."""
        begun = jnp.zeros_like(self.sums)
        for head, start in enumerate(self.starts):
            before = LOWEST if self.bounds[head] is None else self.bounds[head]
            mass = jnp.float32(0) if start is None else jnp.exp(start - before)
            self.top[head] = jnp.full(self.top.shape[1:], before, jnp.float32)
            self.total[head] = jnp.full(self.total.shape[1:], mass, jnp.float32)
            if self.zero is not None and not self.alone:
                added = jnp.broadcast_to(mass * self.zero, begun.shape)
                begun = lanes_of(self.plan, head, added, self.plan.wide, begun)
        self.sums[...] = begun

    def add_tile(self, a: Any, b: Any, banded: bool) -> None:
        """Adds the keys b of the block to the queries a; banded: some pairs are hidden."""
        plan, operands = self.plan, self.operands
        origin = self.j * plan.block_k + b.start
        values = self.values[b, :]
        if plan.local.functions.transform is None:
            values = zero_beyond(operands.value[b, :], origin, plan.keys, plan.block_k)
        keys = operands.key[b, :]
        queries = operands.query[a, :]
        first = moved(self.i * plan.block_q + a.start, self.shift)
        tile = Tile(plan, a, b, first, origin, False)
        is_visible = visible(plan, operands, tile, banded)
        for head, number in enumerate(self.heads):
            of_head = lanes_of(plan, head, queries, plan.size)
            logits = product(of_head, keys, transposed=True) * plan.local.scale
            leaves = tile_leaves(plan, operands.leaves, tile, head, number)
            logits = plan.local.functions.scored(logits, tile.indices(), leaves)
            before, highest = self._maxima(head, a, logits, is_visible)
            weights, masses = plan.local.functions.weigh(logits, highest, is_visible)
            kept = kept_weights(plan.local, operands.seeds, number, tile.indices())
            weights = weights if kept is None else jnp.where(kept, weights, 0)
            summed = product(weights.astype(values.dtype), values)
            if masses is not None:
                summed = self._with_masses(head, a, before, highest, masses, summed)
            elif not self.alone:
                summed = self.sums[a, :] + summed
            self.sums[a, :] = lanes_of(plan, head, summed, plan.wide, self.sums[a, :])

    def _maxima(
        self, head: int, a: Any, logits: jax.Array, is_visible: jax.Array | None
    ) -> tuple[Any, Any]:
        """Returns the maximum of each row [n, 1] before a tile and with it; None if not needed."""
        local, alone = self.plan.local, self.alone
        weighting = local.functions.weighting
        if weighting.mass is None:
            return None, None
        before: Any = LOWEST if local.may_have_no_mass and alone else None
        shown = logits if is_visible is None else jnp.where(is_visible, logits, HIDDEN)
        highest = jnp.max(shown, axis=1, keepdims=True)
        if not alone:
            before = self.top[head, a, :1]
        elif self.bounds[head] is not None:
            before = self.bounds[head]
        if before is not None:
            highest = jnp.maximum(before, highest)
        return before, highest if weighting.scales else jnp.zeros_like(highest)

    def _with_masses(
        self,
        head: int,
        a: Any,
        before: Any,
        highest: jax.Array,
        masses: jax.Array,
        summed: jax.Array,
    ) -> jax.Array:
        """Returns the sums of a tile's rows after it, divided by their mass if `alone`."""
        whole = jnp.sum(masses, axis=1, keepdims=True)
        if not self.alone:
            shrunk = jnp.exp(before - highest)
            whole = shrunk * self.total[head, a, :1] + whole
            summed = shrunk * self.sums[a, :] + summed
            self.total[head, a, :] = jnp.broadcast_to(whole, (whole.shape[0], LANES))
        else:
            if self.starts[head] is not None:
                mass = jnp.exp(self.starts[head] - highest)
                whole = whole + mass
                summed = summed if self.zero is None else summed + mass * self.zero
            elif self.plan.local.may_have_no_mass:
                whole = jnp.where(whole == 0, jnp.inf, whole)
            summed, highest = summed / whole, highest + jnp.log(whole)
        if self.out.log_sums is not None or not self.alone:
            self.top[head, a, :] = jnp.broadcast_to(highest, (highest.shape[0], LANES))
        return summed

    def finish(self) -> None:
        """Writes the results of a block of queries after its last key."""
        plan, out = self.plan, self.out
        transform = plan.local.functions.transform
        means = self.sums[...]
        for head in range(plan.heads if plan.local.functions.weighting.mass is not None else 0):
            log_sum = self.top[head, :, :1]
            if not self.alone:
                whole = self.total[head, :, :1]
                whole = jnp.where(whole == 0, jnp.inf, whole)
                log_sum = log_sum + jnp.log(whole)
                means = lanes_of(plan, head, self.sums[...] / whole, plan.wide, means)
            if out.log_sums is not None:
                out.log_sums[head : head + 1, :] = as_row(log_sum)
        result = means
        if transform is not None:
            result = transform.output(means, self.channels())
            if out.means is not None:
                out.means[...] = means
        out.output[...] = result.astype(plan.local.dtype)


_attend = differentiable(forward, backward)
