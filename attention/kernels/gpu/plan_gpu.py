"""Plans of the kernels for GPUs: tiles, blocks, and how Triton is called."""

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from attention.kernels.accelerated import LANES, UNBOUNDED, Local, Operands, present, tile_states

try:
    from jax.experimental.pallas import triton
except ImportError:  # JAX is to remove it
    triton = None  # type: ignore[assignment]


class Geometry(NamedTuple):
    """What is compiled into the kernels.

    queries, keys: lengths of the arrays. size, wide: channels of a head in Q and K, and in V.
    heads: query heads. members: query heads of a key head.
    """

    local: Local
    queries: int
    keys: int
    size: int
    wide: int
    heads: int
    members: int


class TileSizes(NamedTuple):
    """The rows of queries and of keys of a kernel's tiles, and Triton's settings."""

    queries: int
    keys: int
    warps: int
    stages: int


# Tiles by kernel and the most bytes of a padded row of Q or V. These are the largest with which no
# register of an H100 is spilled at head sizes of 64 and 128, by ptxas (docs/kernels.md). Beyond 256
# bytes registers spill, and no measurement chose the rows. Stages are loads under way.
TILES: dict[str, dict[float, tuple[int, int, int, int]]] = {
    "forward": {
        128: (128, 64, 8, 3),
        256: (128, 64, 8, 2),
        512: (32, 32, 4, 1),
        1024: (32, 32, 8, 1),
        math.inf: (16, 16, 8, 1),
    },
    "by_key": {
        128: (32, 128, 8, 2),
        256: (32, 64, 8, 2),
        512: (32, 32, 8, 1),
        1024: (16, 32, 8, 1),
        math.inf: (16, 16, 8, 1),
    },
    "by_query": {
        128: (128, 64, 8, 2),
        256: (128, 32, 8, 2),
        512: (32, 16, 4, 1),
        1024: (16, 32, 8, 1),
        math.inf: (16, 16, 8, 1),
    },
}


# What `tiles` may give a kernel: Triton wants powers of two, and leaves are padded to whole LANES.
_ROWS = (16, 32, 64, LANES)
_LIMITS = {"queries": _ROWS, "keys": _ROWS, "warps": (1, 2, 4, 8, 16), "stages": (1, 2, 3, 4)}


def tile_sizes(geometry: Geometry, kernel: str) -> TileSizes:
    """Returns the tiles of a kernel: 'forward', 'by_key' or 'by_query'.

    Raises ValueError for sizes of `Local.tiles` that a tile cannot have.
    """
    row = geometry.local.dtype.itemsize * max(padded(geometry.size), padded(geometry.wide))
    tile = TileSizes(*next(sizes for most, sizes in TILES[kernel].items() if row <= most))
    tile = tile._replace(**geometry.local.sizes_of(kernel, TILES, _LIMITS))
    return tile._replace(
        queries=min(tile.queries, padded(geometry.queries)),
        keys=min(tile.keys, padded(geometry.keys)),
    )


def seen_tiles(geometry: Geometry, kernel: str, operands: Operands) -> jax.Array:
    """Returns, int32 [B or 1, H or 1, programs, 1 + tiles], the tiles that each program sees.

    A row holds their number, then the numbers of all tiles, those that are seen first.
    """
    tile = tile_sizes(geometry, kernel)
    count = -(-geometry.queries // tile.queries), -(-geometry.keys // tile.keys)
    states = tile_states(geometry.local, operands, (tile.queries, tile.keys), count)
    hidden = (jnp.swapaxes(states, 2, 3) if kernel == "by_key" else states) == 0
    order = jnp.argsort(hidden, axis=-1, stable=True).astype(jnp.int32)
    visited = jnp.sum(~hidden, axis=-1, keepdims=True, dtype=jnp.int32)
    return jnp.concatenate([visited, order], axis=-1)


def padded(length: int) -> int:
    """Returns the least power of two from `length` on, at least 16, as matrix products need it."""
    return max(16, 1 << (length - 1).bit_length())


def launch(
    geometry: Geometry,
    name: str,
    kernel: Callable[..., None],
    operands: Operands,
    kept: Any,
    out: Any,
) -> Any:
    """Returns what a kernel writes: `out`, a NamedTuple of shapes with dtypes, as arrays.

    name: 'forward', 'by_key' or 'by_query'. operands: as `fused_gpu.attend` makes them. kept: what
    the kernel reads beside them, a NamedTuple or None.
    """
    tile, by_key = tile_sizes(geometry, name), name == "by_key"
    kinds = geometry.local.functions.kinds
    lengths = {"row": geometry.queries, "column": geometry.keys}
    if operands.tiles is not None:
        operands = operands._replace(tiles=operands.tiles[name])
    operands = operands._replace(
        leaves=tuple(  # to the end of every tile
            leaf
            if kind == "head"
            else jnp.pad(leaf, ((0, 0), (0, 0), (0, -lengths[kind] % LANES)), "edge")
            for leaf, kind in zip(operands.leaves, kinds, strict=True)
        )
    )
    blocks = _blocks(geometry, tile, by_key, operands)
    leaves = tuple(blocks[kind] for kind in kinds)
    gradients = (blocks["column" if by_key else "row"],) * len(kinds)
    program, length = (tile.keys, geometry.keys) if by_key else (tile.queries, geometry.queries)
    heads = geometry.heads // (geometry.members if by_key else 1)
    is_causal = geometry.local.low == 0 and geometry.local.high == UNBOUNDED
    kernel_call = pl.pallas_call(
        functools.partial(kernel, geometry, tile),
        grid=(-(-length // program), heads, operands.query.shape[0]),
        in_specs=[
            present(operands, {**blocks, "leaves": leaves}),
            None if kept is None else present(kept, blocks),
        ],
        out_specs=[present(out, {**blocks, "leaves": gradients})],
        out_shape=[out],
        name=f"fused_{name}{'_causal' * is_causal}",
        interpret=geometry.local.interpret,
        compiler_params=triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
    )
    # JAX warns wherever the kernel is lowered, in a program of which we see no more than this.
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
    # Within jit, since JAX 0.10 keeps kernels whose results nobody reads.
    [written] = jax.jit(kernel_call)(operands, kept)
    return written


def _blocks(
    geometry: Geometry, tile: TileSizes, by_key: bool, operands: Operands
) -> dict[str, Any]:
    """Returns the block specification of each kind of array by name.

    A program has its own rows, of keys if `by_key`, else of queries, and all rows of the others.
    Grid: (i, h, b), the program's rows, its head (with `by_key` of keys) and its batch entry.
    """
    all_rows = -(-geometry.queries // tile.queries) * tile.queries
    all_columns = -(-geometry.keys // tile.keys) * tile.keys
    rows, columns = (all_rows, tile.keys) if by_key else (tile.queries, all_columns)
    # A program of `by_key` is of a key head and its query heads, the others of one query head.
    members = geometry.members if by_key and geometry.members > 1 else None
    of_key = 1 if by_key else geometry.members

    def places(i: Any) -> tuple[Any, Any]:
        """Returns the blocks of queries and of keys."""
        return (0, i) if by_key else (i, 0)

    def of_queries(size: int) -> Any:
        shape = (None, rows, members, padded(size))
        return pl.BlockSpec(shape, lambda i, h, b: (b, places(i)[0], h, 0))

    def of_keys(size: int) -> Any:
        shape = (None, columns, None, padded(size))
        return pl.BlockSpec(shape, lambda i, h, b: (b, places(i)[1], h // of_key, 0))

    channels = (None, len(geometry.local.functions.channels), None, padded(geometry.wide))
    of_heads = pl.BlockSpec((geometry.heads,), lambda i, h, b: (0,))
    of_row = pl.BlockSpec((None, members, rows), lambda i, h, b: (b, h, places(i)[0]))
    of_rows = pl.BlockSpec((None, None, rows), lambda i, h, b: (b, 0, places(i)[0]))
    of_columns = pl.BlockSpec((None, None, columns), lambda i, h, b: (b, 0, places(i)[1]))
    listed = 1 + (rows if by_key else columns)
    parts = None if operands.shifts is None else operands.shifts.shape
    return {
        "query": of_queries(geometry.size),
        "key": of_keys(geometry.size),
        "value": of_keys(geometry.wide),
        "channels": pl.BlockSpec(channels, lambda i, h, b: (b, 0, h // of_key, 0)),
        "keys": of_columns,
        "head": of_heads,
        "start": of_heads,
        "shifts": pl.BlockSpec(parts, lambda i, h, b: (0,)),
        "row": of_row,
        **dict.fromkeys(("log_sums", "delta"), of_row),
        **dict.fromkeys(("output", "means", "inner"), of_queries(geometry.wide)),
        "column": pl.BlockSpec((None, members, columns), lambda i, h, b: (b, h, places(i)[1])),
        "seeds": pl.BlockSpec((None, 1, geometry.heads), lambda i, h, b: (b, 0, 0)),
        "segments": (
            of_rows,
            of_columns,
        ),
        "lower": of_rows,
        "pairs": _mask_spec(operands.pairs, places, rows, columns),
        "tiles": _mask_spec(operands.tiles, lambda i: (i, 0), None, listed),
    }


def _mask_spec(
    mask: Any, index: Callable[..., tuple[Any, ...]], *block: int | None
) -> pl.BlockSpec:
    """Returns the block specification of a mask [B or 1, H or 1, ...]; index: of the rest."""
    by_entry, by_head = (mask is not None and mask.shape[axis] != 1 for axis in (0, 1))
    return pl.BlockSpec(
        (None, None, *block), lambda i, h, b: (b * by_entry, h * by_head, *index(i))
    )
