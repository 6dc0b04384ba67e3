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
from attention.kernels import accelerated
from attention.kernels.accelerated import LANES, ForwardResults, Local, Operands, moved
from attention.kernels.gpu.backward_gpu import backward
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
    read,
    tile_leaves,
    values_of,
    visible,
    visible_keys,
    walk_keys,
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

    operands = accelerated.operands_of(local, arrays, False, flat, functools.partial(flat, axes=2))
    if accelerated.lists_tiles(local, arrays):
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
    written = accelerated.named(launch(geometry, "forward", _forward_kernel, operands, None, out))
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
        kept = accelerated.kept(geometry.local, operands.seeds, head, tile.indices())
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


_attend = accelerated.differentiable(forward, backward)
