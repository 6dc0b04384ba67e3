"""The `fused` kernel for TPUs, compiled by Mosaic; the formulas are those of `fused`.

Kept for the backward pass: s of each row, and R in float32 (without a transform: the output).
Channel leaves that depend on the values are made by a pass over V outside, or inside, where a block
holds all keys (of c4_lm's step that pass is 3 %).

Blocks of queries by blocks of keys, 256 or 512 queries at a time; of blocks that a band
(causality, a window) hides, and of what it hides of tiles on its edge, nothing is computed or read.
Where a window is narrow all keys of a head lie on the chip (backward: all queries), and a tile
takes those that it may see by one slice, the slab: T = 4,096 with a window of 256 takes 0.23 of the
causal problem. Of documents and other masks a loop goes through a block's tiles and computes those
that are seen. dQ is summed on the chip where it fits there. A last block reaches beyond the
arrays: what it reads there is set to 0, and what it writes is dropped.

Arrays are [B, H, T, D], but heads that 128 lanes hold several of stay as the host's projections
leave them, [B, T, H·D]: a block has 128/D side by side, each seen by setting the others' lanes to
0, which a matrix unit 128 wide computes in the same time. (ViT-S: transpositions and padding around
this kernel took 39 of 118 ms; what is left of copies takes 8 of 70.)

Operands, where N are batch entries (by key heads where heads are transposed), M query heads for
each key head, G groups of h heads that share a block, C and V channels of a group: query
[N, M, T, G·C], key [N, S, G·C], value [N, S, G·V], channels [N, c, G·V] float32, keys [B, 1, S],
1 where visible, start [H], leaves: head [H], row [N, G, M, h, T], column [N, G, M, h, S]; seeds
[B, 1, H], segments [B, 1, T] and [B, 1, S], pairs [B or 1, H or 1, T, S], tiles: their states, of
`accelerated.tile_states`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attention.functions import HIDDEN, LOWEST, least
from attention.kernels import accelerated
from attention.kernels.accelerated import LANES, UNBOUNDED, Local, Operands
from attention.kernels.inputs import promoting

Array = jax.Array

# Queries at a time. On a causal problem's diagonal a wider tile multiplies more that is hidden: at
# 512 instead of 256 c4_lm's backward pass takes 1.2 times as long, by its products. Slabs by the
# compiler's cycles (T = 4,096, window 256).
_TILE, _BANDED_TILE, _SLAB_FORWARD, _SLAB_BACKWARD = 512, 256, 256, 128
# Where a mask says which tiles are seen they are _TILE × _TILE. By 1,024 keys T = 4,096 takes
# 177,000 cycles, causal, forward and backward, for 169,000; four documents of it 87,000 for 65,000.
# What the compiler gives a kernel of the chip's memory unasked, and what may be asked for where JAX
# knows a chip to have more of it (128 MiB, or 64). Of either, a tile and the compiler take _REST.
_SCOPED_BYTES = 16 << 20
_LARGER_BYTES = {
    **dict.fromkeys(("TPU v5 lite", "TPU v5e", "TPU v6 lite", "TPU v6e"), 96 << 20),
    **dict.fromkeys(("TPU v5", "TPU v5p", "TPU7x"), 48 << 20),
}
_REST = 10 << 20


class _Form(NamedTuple):
    """What is compiled in.

    heads: how many share a block's lanes; copies: key heads of a batch entry that follow one
    another; members: query heads for each. queries, keys: the arrays' lengths, in blocks of so many
    rows. slab: rows that a tile of `tile` rows takes of the other side, 0 where blocks are
    multiplied whole. listed: keys of a tile, where `tile_states` says which tiles are seen.
    size, wide: a head's channels in Q and K, and in V. resident: dQ is summed on the chip.
    """

    local: Local
    heads: int
    copies: int
    members: int
    queries: int
    keys: int
    size: int
    wide: int
    block_q: int = 0
    block_k: int = 0
    tile: int = 0
    slab: int = 0
    listed: int = 0
    scoped: int | None = None
    resident: bool = True

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks of queries, and of keys."""
        return -(-self.queries // self.block_q), -(-self.keys // self.block_k)

    @property
    def suffix(self) -> str:
        """Of the kernel's name: a model may have both, and the compiler's dump names them alone."""
        return "_window" if self.local.high < UNBOUNDED else ""

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of queries, and of keys, where they are listed."""
        of_queries, of_keys = self.blocks
        return of_queries * self.block_q // self.tile, of_keys * self.block_k // self.listed

    def keys_of(self, i: Any) -> tuple[Any, Any]:
        """Returns the first and the last block of keys that block i of queries may see."""
        last = self.blocks[1] - 1
        if not self.local.is_banded:
            return 0, last
        first = _most(0, i * self.block_q - self.local.high) // self.block_k
        end = (i * self.block_q + self.block_q - 1 - self.local.low) // self.block_k
        return _least(last, first), _least(last, end)

    def queries_of(self, j: Any) -> tuple[Any, Any]:
        """Returns the first and the last block of queries that may see block j of keys."""
        last = self.blocks[0] - 1
        if not self.local.is_banded or not self.resident:  # every part of dQ is written
            return 0, last
        first = _most(0, j * self.block_k + self.local.low) // self.block_q
        end = (j * self.block_k + self.block_k - 1 + self.local.high) // self.block_q
        return _least(last, first), _least(last, end)

    def compiler_params(self, grid: tuple[int, ...]) -> pltpu.CompilerParams:
        semantics: Any = ("parallel", "parallel", *["arbitrary"] * (len(grid) - 2))
        return pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=self.scoped)


def _least(*numbers: Any) -> Any:
    return (
        min(numbers)
        if all(isinstance(number, int) for number in numbers)
        else jnp.minimum(*numbers)
    )


def _most(*numbers: Any) -> Any:
    return (
        max(numbers)
        if all(isinstance(number, int) for number in numbers)
        else jnp.maximum(*numbers)
    )


def attend(local: Local, device_kind: str, arrays: dict[str, Any]) -> Array:
    """Returns the output [..., T, H, Dv] of arrays as `accelerated.on_devices` hands them."""
    *batch, queries, heads, size = arrays["query"].shape
    length, of_keys, wide = arrays["value"].shape[-3:]
    entries, members = math.prod(batch), heads // of_keys
    masked = accelerated.flat_masks(arrays)  # segments as [B, 1, rows]
    by_head = "pairs" in masked and masked["pairs"].shape[1] > 1
    together = 0 if members > 1 or by_head else _heads_together(heads, size, wide)
    side_by_side = max(1, together)
    copies = 1 if together else of_keys
    form = _Form(local, side_by_side, copies, members, queries, length, size, wide)
    form = _planned(form, arrays["value"].dtype, device_kind, masked)

    def flat(array: Array) -> Array:
        """[N, rows, channels] of [..., rows, heads, channels]."""
        array = array.reshape((entries, *array.shape[-3:]))
        if not together:
            array = jnp.swapaxes(array, 1, 2).reshape((-1, array.shape[1], 1, array.shape[-1]))
        return array.reshape((*array.shape[:2], -1))

    def by_group(leaf: Array) -> Array:
        """[N, G, M, h, rows] of [..., H, rows]."""
        return leaf.reshape((entries * copies, -1, members, side_by_side, leaf.shape[-1]))

    forms = _Forms(*(_of_slab(form, device_kind, backward) for backward in (False, True)))
    # Where a block holds all keys, and no mask, the kernel sees what they are made of.
    alone = "seen" not in arrays and forms.forward.blocks[1] == 1
    value, made = accelerated.prepared(local, arrays, alone)
    channels = None
    if made is not None:  # [N, c, G·V]
        channels = jnp.concatenate([flat(made[name]) for name in sorted(made)], axis=1)
    keys, seeds = arrays.get("keys"), arrays.get("seeds")
    if keys is not None:
        keys = keys.reshape((entries, 1, length)).astype(jnp.float32)
    query = flat(arrays["query"])
    operands = Operands(
        query.reshape((-1, members, *query.shape[1:])),
        flat(arrays["key"]),
        flat(value),
        channels,
        keys,
        arrays.get("start"),
        tuple(
            leaf if kind == "head" else by_group(leaf)
            for kind, leaf in zip(form.local.functions.kinds, arrays["leaves"], strict=True)
        ),
        None if seeds is None else seeds.reshape(-1, 1, heads),
        **masked,
    )
    if form.listed:
        states = accelerated.tile_states(local, masked, (form.tile, form.listed), form.tiles)
        operands = operands._replace(tiles=states)
    output = _attend(forms, operands)
    if not together:
        output = output.reshape((entries, heads, queries, wide))
        output = jnp.swapaxes(output, 1, 2)
    return output.reshape((*batch, queries, heads, wide))


def _heads_together(heads: int, size: int, wide: int) -> int:
    """Returns how many heads share a block's lanes, 0 where heads are to be transposed.

    Whole heads of 128 are: XLA gives and takes [B, H, T, D] for nothing where T and D divide into
    its tiles, while [B, T, H·D] cost c4_lm's step 46 of 358 ms.
    """
    # Two of Diff's values are 256 lanes, as wide as a matrix unit that has 128 twice.
    fitting = [n for n in range(1, heads + 1) if heads % n == 0 and n * size <= LANES]
    whole = [n for n in fitting if n * size % LANES == n * wide % LANES == 0 or n == heads]
    shared = whole and size < LANES and whole[0] * wide <= 2 * LANES
    return whole[0] if shared else 0


def _planned(form: _Form, dtype: jnp.dtype, device_kind: str, masked: dict[str, Any]) -> _Form:
    """Returns the form with its blocks, and whether dQ stays on the chip."""
    size, wide = form.heads * form.size, form.heads * form.wide
    row, of_query = _row_bytes(size, wide, dtype)
    longest = max(form.queries, form.keys)
    row += 4 * LANES * form.heads * form.local.functions.kinds.count("column")  # their sums
    if "pairs" in masked:
        row += 2 * min(longest, 2048)
    most, scoped, resident = _most_rows(
        longest, row, form.members * form.queries * of_query, of_query, device_kind
    )
    # Where there is a band blocks of both begin together, and its edges run through their corners.
    both = longest if form.local.is_banded else 0
    block_q, block_k = (_block(both or n, most) for n in (form.queries, form.keys))
    most = _BANDED_TILE if form.local.is_banded and not masked else _TILE
    tile, listed = (
        next((rows for rows in (most, 384, 256, 128) if block % rows == 0), block)
        for block in (block_q, block_k)
    )
    return form._replace(
        block_q=block_q,
        block_k=block_k,
        tile=tile,
        listed=listed if masked else 0,
        scoped=scoped,
        resident=resident,
    )


def _block(length: int, most: int) -> int:
    """Returns the rows of a block: equal multiples of 128, or one of 16s where that is short."""
    if length < min(most, _TILE):
        return -(-length // 16) * 16
    return accelerated.divided(length, most)[0]


def _row_bytes(size: int, wide: int, dtype: jnp.dtype) -> tuple[int, int]:
    """Returns what a row of all blocks takes on the chip, arrays twice each, in the backward pass,
    without dQ and its sums, and what those take.

    Q, K, V, dO in their dtype, R and the sums of dK and dV in float32. size, wide: of a row of Q
    and of V.
    """
    wide, narrow = _in_lanes(wide), _in_lanes(size)
    item = dtype.itemsize
    row = 2 * item * 2 * (narrow + wide) + 2 * 4 * wide + (4 + 2 * item) * (narrow + wide)
    return row, 8 * narrow


def _most_rows(
    length: int, row: int, whole: int, part: int, device_kind: str
) -> tuple[int, int | None, bool]:
    """Returns the most rows of a block, 2048 to 256, the bytes to ask for, if any, and whether dQ
    stays on the chip.

    row: bytes of a row of the other arrays; of dQ: `whole` in all, or `part` a row of a block.
    More is asked for where fewer blocks then hold `length`: blocks are read again, and their sums
    are carried on (c4_lm_2b's heads of 512, a layer, forward and backward: 5.3 ms of 4 × 4 blocks,
    1.7 of one; T = 4,096, causal, forward: 60,900 cycles by blocks of 1,024, 49,200 by 2,048).
    Where dQ does not fit, blocks of keys write parts of it in float32, to be summed.
    """
    larger = _LARGER_BYTES.get(device_kind, _SCOPED_BYTES)

    def within(scoped: int, resident: bool) -> int:
        """0 where not even 256 rows fit."""
        fixed, of_row = (whole, row) if resident else (0, row + part)
        sizes = (2048, 1024, 512, 256) if scoped > _SCOPED_BYTES else (1024, 512, 256)
        return next((n for n in sizes if n * of_row + fixed <= scoped - _REST), 0)

    for resident in (True, False):
        unasked, most = within(_SCOPED_BYTES, resident), within(larger, resident)
        if unasked >= length:
            return unasked, None, resident
        if most:
            return most, larger if most > unasked else None, resident
    return 256, None, False


def _of_slab(form: _Form, device_kind: str, backward: bool) -> _Form:
    """Returns the form of a pass, with a slab where a window is narrow and the chip holds all rows
    of the other side."""
    # One block's tiles are known when it is compiled, and take less.
    if form.listed or UNBOUNDED in (-form.local.low, form.local.high) or form.blocks == (1, 1):
        return form
    tile = _SLAB_BACKWARD if backward else _SLAB_FORWARD
    rows, others = (form.block_k, form.queries) if backward else (form.block_q, form.keys)
    others = _in_lanes(others)
    slab = _in_lanes(_in_lanes(tile - form.local.low) + form.local.high)
    if rows % tile or slab >= others:
        return form
    size, wide = (_in_lanes(form.heads * channels) for channels in (form.size, form.wide))
    item = form.local.dtype.itemsize
    held = others * (2 * item * (size + wide) + (8 * (wide + size) if backward else item * wide))
    held += rows * 2 * item * 3 * (size + wide)
    larger = _LARGER_BYTES.get(device_kind, _SCOPED_BYTES)
    if held > larger - _REST:
        return form
    scoped = larger if held > _SCOPED_BYTES - _REST else form.scoped
    form = form._replace(tile=tile, slab=slab, scoped=scoped)
    return form._replace(block_q=others) if backward else form._replace(block_k=others)


def _in_lanes(length: int) -> int:
    return -(-length // LANES) * LANES


class _Forms(NamedTuple):
    """What is compiled in of the two passes."""

    forward: _Form
    backward: _Form


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(forms: _Forms, operands: Operands) -> Array:
    return _forward(forms.forward, operands, keep=False).output


def _attend_forward(forms: _Forms, operands: Operands) -> tuple[Array, Any]:
    written = _forward(forms.forward, operands, keep=True)
    means = written.output if written.means is None else written.means
    return written.output, (operands._replace(channels=written.channels), means, written.log_sums)


@promoting
def _attend_backward(forms: _Forms, kept: Any, cotangent: Array) -> tuple[Operands]:
    operands, means, log_sums = kept
    return (_backward(forms.backward, operands, means, log_sums, cotangent),)


_attend.defvjp(_attend_forward, _attend_backward)


class _Found(NamedTuple):
    """What the forward pass writes: the output [N, M, T, G·V], R as that in float32, s as
    [N, G, M, h, T], the channel leaves; None where that is not asked for."""

    output: Any
    means: Any = None
    log_sums: Any = None
    channels: Any = None


def _blocks(
    form: _Form, operands: Operands, place: Callable[..., tuple[Any, ...]]
) -> dict[str, Any]:
    """Returns the block specification of each kind of array.

    place: (n, g, m, i, j) from the grid's indices. "output" is the query's with the channels of V.
    """

    def at(
        block: tuple[int | None, ...], index: Callable[..., tuple[Any, ...]], **space: Any
    ) -> Any:
        return pl.BlockSpec(block, lambda *grid: index(*place(*grid)), **space)

    def of_mask(
        array: Any, index: Callable[..., tuple[Any, ...]], *block: int, **space: Any
    ) -> Any:
        """Of [B or 1, H or 1, ...]."""
        by_entry, by_head = (array is not None and array.shape[axis] > 1 for axis in (0, 1))
        return at(
            (None, None, *block),
            lambda n, g, m, i, j: (
                n // form.copies * by_entry,
                _head(form, n, g, m, 0) * by_head,
                *index(i, j),
            ),
            **space,
        )

    wide, size = form.heads * form.wide, form.heads * form.size
    channels = len(form.local.functions.channels)
    rows, columns = (
        (None, None, None, form.heads, length) for length in (form.block_q, form.block_k)
    )
    padded = form.blocks[0] * form.block_q
    of_keys = at((None, 1, form.block_k), lambda n, g, m, i, j: (n // form.copies, 0, j))
    of_tiles = () if operands.tiles is None else operands.tiles.shape[2:]
    of_heads = 1 if operands.seeds is None else operands.seeds.shape[-1]
    return {
        "query": at((None, None, form.block_q, size), lambda n, g, m, i, j: (n, m, i, g)),
        "output": at((None, None, form.block_q, wide), lambda n, g, m, i, j: (n, m, i, g)),
        "key": at((None, form.block_k, size), lambda n, g, m, i, j: (n, j, g)),
        "value": at((None, form.block_k, wide), lambda n, g, m, i, j: (n, j, g)),
        "channels": at((None, channels, wide), lambda n, g, m, i, j: (n, 0, g)),
        "keys": of_keys,
        "segments": (
            at((None, 1, form.block_q), lambda n, g, m, i, j: (n // form.copies, 0, i)),
            of_keys,
        ),
        "seeds": at(
            (None, 1, of_heads),
            lambda n, g, m, i, j: (n // form.copies, 0, 0),
            memory_space=pltpu.SMEM,
        ),
        "pairs": of_mask(operands.pairs, lambda i, j: (i, j), form.block_q, form.block_k),
        "tiles": of_mask(operands.tiles, lambda i, j: (0, 0), *of_tiles, memory_space=pltpu.SMEM),
        "head": pl.BlockSpec(memory_space=pltpu.SMEM),
        "row": at(rows, lambda n, g, m, i, j: (n, g, m, 0, i)),
        "column": at(columns, lambda n, g, m, i, j: (n, g, m, 0, j)),
        # Of all members and queries: what is summed over a grid's steps.
        "all queries": at((None, form.members, padded, size), lambda n, g, m, i, j: (n, 0, 0, g)),
        "all rows": at(
            (None, None, form.members, form.heads, padded),
            lambda n, g, m, i, j: (n, g, 0, 0, 0),
        ),
        "all heads": at(
            (None, None, form.members, form.heads, LANES), lambda n, g, m, i, j: (n, g, 0, 0, 0)
        ),
        "part of dQ": at(
            (None, None, None, form.block_q, size), lambda n, g, m, i, j: (j, n, m, i, g)
        ),
    }


def _specs(form: _Form, operands: Operands, blocks: dict[str, Any]) -> Operands:
    """Returns the block specifications of the operands."""
    return operands.present(
        Operands(
            **{name: blocks[name] for name in Operands._fields if name in blocks},
            start=blocks["head"],
            leaves=tuple(blocks[kind] for kind in form.local.functions.kinds),
        )
    )


def _padded(form: _Form, operands: Operands) -> Operands:
    """Returns the operands with rows, columns and keys to the end of the last block, 0 there, of
    leaves the last number."""
    to = {"row": form.blocks[0] * form.block_q, "column": form.blocks[1] * form.block_k}

    def filled(array: Any, kind: str, mode: str = "constant") -> Any:
        if array is None or kind == "head":
            return array
        widths = ((0, 0),) * (array.ndim - 1) + ((0, to[kind] - array.shape[-1]),)
        return jnp.pad(array, widths, mode)

    pairs, segments = filled(operands.pairs, "column"), operands.segments
    if pairs is not None:
        pairs = jnp.swapaxes(filled(jnp.swapaxes(pairs, 2, 3), "row"), 2, 3)
    return operands._replace(
        keys=filled(operands.keys, "column"),
        # 0 may be no number to divide by, and its derivative times 0 would be NaN.
        leaves=tuple(
            filled(leaf, kind, "edge")
            for leaf, kind in zip(operands.leaves, form.local.functions.kinds, strict=True)
        ),
        segments=segments and tuple(map(filled, segments, ("row", "column"))),
        pairs=pairs,
    )


def _forward(form: _Form, operands: Operands, *, keep: bool) -> _Found:
    parts = form.local.functions
    makes_channels = parts.channels != () and operands.channels is None
    entries, members, _, channels = operands.query.shape
    groups = channels // (form.heads * form.size)
    blocks_q = form.blocks[0]
    steps = max(last - first + 1 for first, last in map(form.keys_of, range(blocks_q)))
    grid = (entries, groups, members, blocks_q, steps)

    def place(n: Any, g: Any, m: Any, i: Any, step: Any) -> tuple[Any, ...]:
        first, last = form.keys_of(i)
        return n, g, m, i, _least(first + step, last) if form.local.is_banded else step

    blocks = _blocks(form, operands, place)
    wide = form.heads * form.wide
    shape = (entries, members, form.queries, groups * wide)
    rows = (entries, groups, members, form.heads, blocks_q * form.block_q)
    chosen = (entries, len(parts.channels), groups * wide)
    outputs = {
        "output": (jax.ShapeDtypeStruct(shape, form.local.dtype), blocks["output"]),
        "means": (jax.ShapeDtypeStruct(shape, jnp.float32), blocks["output"]),
        "log_sums": (jax.ShapeDtypeStruct(rows, jnp.float32), blocks["row"]),
        "channels": (jax.ShapeDtypeStruct(chosen, jnp.float32), blocks["channels"]),
    }
    wanted = {
        "output": True,
        "means": keep and parts.transform is not None,
        "log_sums": keep and parts.weighting.mass is not None,
        "channels": makes_channels,
    }
    names = [name for name in outputs if wanted[name]]
    kernel_call = pl.pallas_call(
        functools.partial(_forward_kernel, form, steps, names),
        grid=grid,
        in_specs=[_specs(form, operands, blocks)],
        out_specs=[outputs[name][1] for name in names],
        out_shape=[outputs[name][0] for name in names],
        scratch_shapes=[
            pltpu.VMEM((form.heads, form.block_q, LANES), jnp.float32),
            pltpu.VMEM((form.heads, form.block_q, LANES), jnp.float32),
            pltpu.VMEM((form.block_q, wide), jnp.float32),
            pltpu.VMEM((form.block_k, wide), operands.value.dtype),
        ],
        name=f"fused_forward{form.suffix}",
        interpret=form.local.interpret,
        compiler_params=form.compiler_params(grid),
    )
    # Within jit, since JAX 0.10 keeps kernels whose results nobody reads.
    arrays = jax.jit(kernel_call)(_padded(form, operands))
    by_name = accelerated.named(dict(zip(names, arrays, strict=True)))
    if "log_sums" in by_name:
        by_name["log_sums"] = by_name["log_sums"][..., : form.queries]
    return _Found(**{"channels": operands.channels, **by_name})


def _forward_kernel(
    form: _Form, steps: int, names: list[str], operands: Operands, *references: Any
) -> None:
    *outputs, top, total, sums, values = references
    out: dict[str, Any] = dict(zip(names, outputs, strict=True))
    parts, weighting = form.local.functions, form.local.functions.weighting
    n, g, m, i, step = (pl.program_id(axis) for axis in range(5))
    first, last = form.keys_of(i)
    # All keys in one block: each row's maximum is known at once, nothing is carried on.
    alone = steps == 1 and not form.listed
    j = first + step if form.blocks[1] > 1 else 0
    channels = _channels(form, out.get("channels", operands.channels))

    transform = parts.transform
    if transform is not None:  # of one block of keys, once for all blocks of queries

        @pl.when((m == 0) & (i == 0) | (form.blocks[1] > 1))
        def prepare() -> None:
            there = _there_alone(operands.value[...], j * form.block_k, form.keys, form.block_k)
            wide = there.astype(jnp.float32)
            if "channels" in out:
                rows = jax.lax.broadcasted_iota(jnp.int32, (form.block_k, 1), 0)
                inside = rows < form.keys if form.keys % form.block_k else None
                assert transform.leaves is not None
                made = transform.leaves(wide, inside, 0, operands.start is not None)
                for place, name in enumerate(parts.channels):
                    out["channels"][place : place + 1, :] = made[name]
            raised = transform.value(wide, channels()).astype(values.dtype)
            values[...] = _there_alone(raised, j * form.block_k, form.keys, form.block_k)

    heads = [_head(form, n, g, m, head) for head in range(form.heads)]
    starts: list[Any] = [weighting.start] * form.heads
    if operands.start is not None:
        starts = [operands.start[head] for head in heads]
    bounds = [least(weighting, start) for start in starts]
    # What a row's sums begin with, where a key of value 0 is there from the start.
    zero = parts.of_zero(channels, (1, sums.shape[1]))

    if not alone or form.heads > 1 or form.local.may_see_none:

        @pl.when(step == 0)
        def _() -> None:
            begun = jnp.zeros_like(sums)
            for head, start in enumerate(starts):
                before = LOWEST if bounds[head] is None else bounds[head]
                mass = jnp.float32(0) if start is None else jnp.exp(start - before)
                top[head] = jnp.full(top.shape[1:], before, jnp.float32)
                total[head] = jnp.full(total.shape[1:], mass, jnp.float32)
                if zero is not None and not alone:
                    added = jnp.broadcast_to(mass * zero, begun.shape)
                    begun = _lanes_of(form, head, added, form.wide, begun)
            sums[...] = begun

    def tile(a: Any, b: Any, banded: bool) -> None:
        origin = j * form.block_k + b.start
        taken = values[b, :]
        if parts.transform is None:
            taken = _there_alone(operands.value[b, :], origin, form.keys, form.block_k)
        keys = operands.key[b, :]
        queries = operands.query[a, :]
        place = _Place(form, a, b, i * form.block_q + a.start, origin, False)
        seen = _seen(form, operands, place, banded)
        for head in range(form.heads):
            of_head = _lanes_of(form, head, queries, form.size)
            logits = _product(of_head, keys, transposed=True) * form.local.scale
            leaves = _leaves(form, operands.leaves, place, head, heads[head])
            logits = parts.scored(logits, place.indices(), leaves)
            highest: Any = None
            before: Any = LOWEST if form.local.may_have_no_mass and alone else None
            if weighting.mass is not None:
                shown = logits if seen is None else jnp.where(seen, logits, HIDDEN)
                highest = jnp.max(shown, axis=1, keepdims=True)
                if not alone:
                    before = top[head, a, :1]
                elif bounds[head] is not None:
                    before = bounds[head]
                if before is not None:
                    highest = jnp.maximum(before, highest)
                if not weighting.scales:
                    highest = jnp.zeros_like(highest)
            weights, masses = parts.weigh(logits, highest, seen)
            kept = accelerated.kept(form.local, operands.seeds, heads[head], place.indices())
            weights = weights if kept is None else jnp.where(kept, weights, 0)
            summed = _product(weights.astype(taken.dtype), taken)
            if weighting.mass is None:
                summed = summed if alone else sums[a, :] + summed
                sums[a, :] = _lanes_of(form, head, summed, form.wide, sums[a, :])
                continue
            assert masses is not None
            whole = jnp.sum(masses, axis=1, keepdims=True)
            if not alone:
                shrunk = jnp.exp(before - highest)
                whole = shrunk * total[head, a, :1] + whole
                summed = shrunk * sums[a, :] + summed
                total[head, a, :] = jnp.broadcast_to(whole, (whole.shape[0], LANES))
            else:
                if starts[head] is not None:
                    mass = jnp.exp(starts[head] - highest)
                    whole = whole + mass
                    summed = summed if zero is None else summed + mass * zero
                elif form.local.may_have_no_mass:
                    whole = jnp.where(whole == 0, jnp.inf, whole)
                summed, highest = summed / whole, highest + jnp.log(whole)
            if "log_sums" in out or not alone:
                top[head, a, :] = jnp.broadcast_to(highest, (highest.shape[0], LANES))
            sums[a, :] = _lanes_of(form, head, summed, form.wide, sums[a, :])

    _tiles(form, operands.tiles, (i, j), j <= last, tile, backward=False)

    @pl.when(step == steps - 1)
    def _() -> None:
        means = sums[...]
        for head in range(form.heads if weighting.mass is not None else 0):
            log_sum = top[head, :, :1]
            if not alone:
                whole = total[head, :, :1]
                whole = jnp.where(whole == 0, jnp.inf, whole)
                log_sum = log_sum + jnp.log(whole)
                means = _lanes_of(form, head, sums[...] / whole, form.wide, means)
            if "log_sums" in out:
                out["log_sums"][head : head + 1, :] = _as_row(log_sum)
        result = means
        if parts.transform is not None:
            result = parts.transform.output(means, channels())
            if "means" in out:
                out["means"][...] = means
        out["output"][...] = result.astype(form.local.dtype)


def _backward(
    form: _Form, operands: Operands, means: Array, log_sums: Array | None, cotangent: Array
) -> Operands:
    """Returns the gradients of the operands, in their dtypes; None for channels and keys."""
    parts = form.local.functions
    query, key, value = operands.query, operands.key, operands.value
    entries, members, _, channels = query.shape
    size, wide = form.heads * form.size, form.heads * form.wide
    groups = channels // size
    blocks_q, blocks_k = form.blocks
    steps = max(last - first + 1 for first, last in map(form.queries_of, range(blocks_k)))
    grid = (entries, groups, blocks_k, members, steps)

    def place(n: Any, g: Any, j: Any, m: Any, step: Any) -> tuple[Any, ...]:
        first, last = form.queries_of(j)
        clamped = form.local.is_banded and form.resident
        return n, g, m, _least(first + step, last) if clamped else step, j

    blocks = _blocks(form, operands, place)
    per_head = (entries, groups, members, form.heads)
    padded_q, padded_k = blocks_q * form.block_q, blocks_k * form.block_k

    def wide_of(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    # Each of these: the result, its block, and the shape of its sums on the chip.
    parts_of_query = (
        wide_of(blocks_k, *query.shape),
        blocks["part of dQ"],
        (1, form.block_q, size),
    )
    whole_query = (
        jax.ShapeDtypeStruct(query.shape, query.dtype),
        blocks["all queries"],
        (members, padded_q, size),
    )
    of_kind = {
        "head": (wide_of(*per_head, LANES), blocks["all heads"], None),
        "row": (wide_of(*per_head, padded_q), blocks["all rows"], None),
        "column": (
            wide_of(*per_head, padded_k),
            blocks["column"],
            (form.heads, form.block_k, LANES),
        ),
    }
    results: list[tuple[Any, Any, tuple[int, ...] | None]] = [
        whole_query if form.resident else parts_of_query,
        (jax.ShapeDtypeStruct(key.shape, key.dtype), blocks["key"], (form.block_k, size)),
        (jax.ShapeDtypeStruct(value.shape, value.dtype), blocks["value"], (form.block_k, wide)),
        *([of_kind["row"]] if operands.start is not None else []),
        *(of_kind[kind] for kind in parts.kinds),
    ]
    on_chip = [pltpu.VMEM(shape, jnp.float32) for *_, shape in results if shape is not None]
    on_chip.append(pltpu.VMEM((form.block_k, wide), jnp.float32))
    rows = log_sums
    if log_sums is not None:
        # The weights of a row that is not there are e^−∞, whatever its logits.
        beyond = ((0, 0),) * 4 + ((0, padded_q - form.queries),)
        rows = jnp.pad(log_sums, beyond, constant_values=jnp.inf)
    kept = _Kept(means, rows, cotangent)
    of_rows = None if log_sums is None else blocks["row"]
    gradients = pl.pallas_call(
        functools.partial(_backward_kernel, form, steps),
        grid=grid,
        in_specs=[
            _specs(form, operands, blocks),
            _Kept(blocks["output"], of_rows, blocks["output"]),
        ],
        out_specs=[spec for _, spec, _ in results],
        out_shape=[shape for shape, *_ in results],
        scratch_shapes=on_chip,
        name=f"fused_backward{form.suffix}",
        interpret=form.local.interpret,
        compiler_params=form.compiler_params(grid),
    )(_padded(form, operands), kept)
    query_bar, key_bar, value_bar, *rest = gradients
    if not form.resident:
        query_bar = jnp.sum(query_bar, axis=0).astype(query.dtype)
    start_bar = None
    if operands.start is not None and log_sums is not None:
        # The gradient of a key of value 0: no kernel sees it.
        shares = jnp.exp(_by_head(form, operands.start, log_sums) - log_sums)
        start_bar = _of_heads(form, shares * rest.pop(0)[..., : form.queries], operands.start)
    leaves = []
    for kind, leaf, bar in zip(parts.kinds, operands.leaves, rest, strict=True):
        bar = _of_heads(form, bar, leaf) if kind == "head" else bar[..., : leaf.shape[-1]]
        leaves.append(bar.astype(leaf.dtype))
    return Operands(query_bar, key_bar, value_bar, None, None, start_bar, tuple(leaves))


class _Kept(NamedTuple):
    """What the backward pass reads beside `Operands`: R, s and the output's cotangent."""

    means: Any
    log_sums: Any
    cotangent: Any


def _heads_first(form: _Form, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape (entries, heads, rest) of an array [N, G, M, h, rest]."""
    entries = shape[0] // form.copies
    return entries, math.prod(shape[:4]) // entries, shape[4]


def _of_heads(form: _Form, array: Array, like: Array) -> Array:
    """Returns [H] of [N, G, M, h, rest], summed."""
    shape = _heads_first(form, array.shape)
    return jnp.sum(array.reshape(shape), axis=(0, 2)).astype(like.dtype)


def _by_head(form: _Form, leaf: Array, like: Array) -> Array:
    """Returns a head leaf [H] in the shape of an array [N, G, M, h, rest]."""
    entries, heads, rest = _heads_first(form, like.shape)
    return jnp.broadcast_to(leaf[:, None], (entries, heads, rest)).reshape(like.shape)


def _backward_kernel(
    form: _Form, steps: int, operands: Operands, kept: _Kept, *references: Any
) -> None:
    parts, weighting = form.local.functions, form.local.functions.weighting
    rest = list(references)
    query_out, key_out, value_out = (rest.pop(0) for _ in range(3))
    start_out: Any = rest.pop(0) if operands.start is not None else None
    leaf_outs = [rest.pop(0) for _ in parts.kinds]
    by_query, by_key, by_value, *by_column, values = rest
    columns = iter(by_column)
    column_sums: list[Any] = [next(columns) if kind == "column" else None for kind in parts.kinds]
    n, g, j, m, step = (pl.program_id(axis) for axis in range(5))
    first, last = form.queries_of(j)
    i = first + step if form.blocks[0] > 1 else 0
    channels = _channels(form, operands.channels)
    zero = parts.of_zero(channels, (1, by_value.shape[1]))
    is_divided = weighting.mass is not None

    @pl.when((m == 0) & (step == 0))
    def _() -> None:
        by_key[...] = jnp.zeros_like(by_key)
        by_value[...] = jnp.zeros_like(by_value)
        if parts.transform is not None:
            there = _there_alone(operands.value[...], j * form.block_k, form.keys, form.block_k)
            raised = parts.transform.value(there.astype(jnp.float32), channels())
            values[...] = _there_alone(raised, j * form.block_k, form.keys, form.block_k)

    @pl.when((j == 0) & (m == 0) & (step == 0))
    def _() -> None:
        for kind, out in zip(parts.kinds, leaf_outs, strict=True):
            if kind != "column":
                out[...] = jnp.zeros_like(out)
        if start_out is not None:
            start_out[...] = jnp.zeros_like(start_out)
        if form.resident:
            by_query[...] = jnp.zeros_like(by_query)

    if by_column:

        @pl.when(step == 0)
        def _() -> None:
            for sums in by_column:
                sums[...] = jnp.zeros_like(sums)

    if not form.resident:
        by_query[...] = jnp.zeros_like(by_query)

    def tile(a: Any, b: Any, banded: bool) -> None:
        first, origin = i * form.block_q + a.start, j * form.block_k + b.start
        place = _Place(form, a, b, first, origin, True)

        def rows(array: Any) -> Array:
            return _there_alone(array[a, :], place.first, form.queries, form.block_q)

        def keys(array: Any) -> Array:
            return _there_alone(array[b, :], place.origin, form.keys, form.block_k)

        queries, their_keys = rows(operands.query), keys(operands.key)
        means = rows(kept.means).astype(jnp.float32)
        inner = rows(kept.cotangent).astype(jnp.float32)
        taken = keys(operands.value)
        if parts.transform is not None:
            taken = values[b, :].astype(operands.value.dtype)
            pulled = parts.transform.pull_output(inner, means, channels())
            # The derivative of 0 may be infinite, where a row is not there or sees nothing.
            inner = _there_alone(pulled, place.first, form.queries, form.block_q)
            for head in range(form.heads if form.local.may_see_none and is_divided else 0):
                sees = _as_column(kept.log_sums[head : head + 1, a]) < jnp.inf
                shown = jnp.where(jnp.broadcast_to(sees, inner.shape), inner, 0)
                inner = _lanes_of(form, head, shown, form.wide, inner)
        narrow = inner.astype(queries.dtype)
        # Of G as it is multiplied, so that the terms of a row cancel.
        products = means * narrow.astype(jnp.float32)
        seen = _seen(form, operands, place, banded)
        # Of all rows.
        whole = a
        if form.blocks[0] > 1:
            whole = pl.ds(pl.multiple_of(place.first, LANES), a.size)
        for head in range(form.heads):
            of_head, own_narrow = (
                _lanes_of(form, head, array, width)
                for array, width in ((queries, form.size), (narrow, form.wide))
            )
            number = _head(form, n, g, m, head)
            raw = _product(their_keys, of_head, transposed=True) * form.local.scale
            s: Any = None
            delta: Any = None
            if is_divided:
                s = kept.log_sums[head : head + 1, a]
                own_products = _lanes_of(form, head, products, form.wide)
                delta = _as_row(jnp.sum(own_products, axis=1, keepdims=True))
            if start_out is not None:
                lost = delta
                if zero is not None:
                    of_zero = own_narrow.astype(jnp.float32) * zero
                    lost = delta - _as_row(jnp.sum(of_zero, axis=1, keepdims=True))
                start_out[m, head : head + 1, whole] = -lost
            weights, raw_bar, leaf_bars = parts.pulled(
                raw,
                place.indices(),
                _leaves(form, operands.leaves, place, head, number),
                seen,
                s,
                _product(taken, own_narrow, transposed=True),
                delta,
                kept=accelerated.kept(form.local, operands.seeds, number, place.indices()),
            )
            by_value[b, :] += _product(weights.astype(queries.dtype), own_narrow)
            raw_bar = (raw_bar * form.local.scale).astype(queries.dtype)
            by_key[b, :] += _product(raw_bar, of_head)
            product = _product(jnp.transpose(raw_bar), their_keys)
            product = _lanes_of(form, head, product, form.size)
            if form.resident:
                by_query[m, whole, :] += product
            else:
                by_query[0, a, :] += product
            for kind, out, summed, bar in zip(
                parts.kinds, leaf_outs, column_sums, leaf_bars, strict=True
            ):
                if kind == "head":
                    for lane in range(0, a.size, LANES):
                        part = bar[:, lane : lane + LANES]
                        out[m, head : head + 1, : part.shape[1]] += part
                elif kind == "row":
                    out[m, head : head + 1, whole] += bar
                else:
                    for lane in range(0, a.size, LANES):
                        part = bar[:, lane : lane + LANES]
                        summed[head, b, : part.shape[1]] += part

    _tiles(form, operands.tiles, (i, j), i <= last, tile, backward=True)

    @pl.when((m == form.members - 1) & (step == steps - 1))
    def _() -> None:
        key_out[...] = by_key[...].astype(key_out.dtype)
        gradient = by_value[...]
        if parts.transform is not None:
            value = operands.value[...].astype(jnp.float32)
            gradient = parts.transform.pull_value(gradient, value, values[...], channels())
        value_out[...] = gradient.astype(value_out.dtype)

    @pl.when(step == steps - 1)
    def _() -> None:
        for out, sums in zip(leaf_outs, column_sums, strict=True):
            for head in range(form.heads if sums is not None else 0):
                out[head : head + 1, :] = _as_row(jnp.sum(sums[head], axis=1, keepdims=True))

    if form.resident:

        @pl.when((j == form.blocks[1] - 1) & (m == form.members - 1) & (step == steps - 1))
        def _() -> None:
            query_out[...] = by_query[...].astype(query_out.dtype)

    else:
        query_out[...] = by_query[0]


class _Place(NamedTuple):
    """A tile: its rows of queries and of keys in their blocks, the positions of the first of each,
    and whether keys are along its first axis."""

    form: _Form
    rows: Any
    columns: Any
    first: Any
    origin: Any
    across: bool

    def indices(self) -> tuple[Array, Array]:
        """Returns the positions of queries and keys, [n, 1] and [1, m], or the other way round.

        Those that are not there have the last one's: of others a function may be no number.
        """
        queries = _positions(self.first, self.rows.size, int(self.across))
        keys = _positions(self.origin, self.columns.size, int(not self.across))
        return jnp.minimum(queries, self.form.queries - 1), jnp.minimum(keys, self.form.keys - 1)


def _positions(first: Any, count: int, axis: int) -> Array:
    shape = (1, count) if axis else (count, 1)
    return jax.lax.broadcasted_iota(jnp.int32, shape, axis) + first


def _channels(form: _Form, reference: Any) -> Callable[[], dict[str, Array]]:
    """Returns a function that reads the channel leaves, [1, V] by name."""

    def read() -> dict[str, Array]:
        names = form.local.functions.channels
        return {name: reference[place : place + 1, :] for place, name in enumerate(names)}

    return read


def _head(form: _Form, n: Any, g: Any, m: Any, head: int) -> Any:
    """Returns a head's number on this device."""
    return ((n % form.copies) * form.members + m + g) * form.heads + head


def _leaves(
    form: _Form, leaves: tuple[Any, ...], place: _Place, head: int, number: Any
) -> list[Any]:
    """Returns the leaves of a tile in shapes that broadcast to it; number: the head's, of all."""
    a, b = place.rows, place.columns
    taken = []
    for kind, reference in zip(form.local.functions.kinds, leaves, strict=True):
        if kind == "head":
            number_of_head = reference[number]
            # Of a tile of its own, so that its gradient is summed over keys alone.
            taken.append(
                jnp.full((1, a.size), number_of_head, jnp.float32)
                if place.across
                else number_of_head
            )
        else:
            row = reference[head : head + 1, a if kind == "row" else b].astype(jnp.float32)
            upright = (kind == "row") != place.across
            leaf = _as_column(row) if upright else row
            # So that a column's gradient is summed over lanes once for all tiles.
            wide = (b.size, a.size) if kind == "column" and place.across else leaf.shape
            taken.append(jnp.broadcast_to(leaf, wide))
    return taken


def _seen(form: _Form, operands: Operands, place: _Place, banded: bool) -> Array | None:
    """Returns which keys a tile's queries see, None where they see all.

    banded: the band, segments or pairs hide some of them.
    """
    a, b, across = place.rows, place.columns, place.across
    shape = (b.size, a.size) if across else (a.size, b.size)
    of_query, of_key = (
        jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (int(across), int(not across))
    )
    parts = []
    if operands.keys is not None:
        row = operands.keys[:, b]
        parts.append(jnp.broadcast_to(_as_column(row) if across else row, shape) > 0)
    elif form.keys % form.block_k:
        parts.append(of_key + place.origin < form.keys)
    if banded:
        parts += form.local.within_band(of_query - of_key, place.first - place.origin)
    if banded and operands.segments is not None:
        of_rows, of_columns = operands.segments[0][:, a], operands.segments[1][:, b]
        upright, flat = (of_columns, of_rows) if across else (of_rows, of_columns)
        parts.append(_as_column(upright) == flat)
    if banded and operands.pairs is not None:
        pairs = operands.pairs[a, b].astype(jnp.float32)
        parts.append((jnp.transpose(pairs) if across else pairs) > 0)
    return functools.reduce(jnp.logical_and, parts) if parts else None


def _lanes_of(
    form: _Form, head: int, array: Array, size: int, others: Array | float = 0.0
) -> Array:
    """Returns [n, form.heads·size] with the head's lanes of `array`, and others'."""
    if form.heads == 1:
        return array
    lane = jax.lax.broadcasted_iota(jnp.int32, array.shape, 1)
    of_head = (lane >= head * size) & (lane < (head + 1) * size)
    return jnp.where(of_head, array, jnp.asarray(others, array.dtype))


def _there_alone(array: Array, first: Any, length: int, block: int, axis: int = 0) -> Array:
    """Returns an array with 0 from `length` on, `first` being where it begins: the last block of
    `block` may pass it."""
    if length % block == 0:
        return array
    place = jax.lax.broadcasted_iota(jnp.int32, array.shape, axis) + first
    return jnp.where(place < length, array, jnp.zeros_like(array))


def _product(left: Array, right: Array, transposed: bool = False) -> Array:
    """Returns left·right, or left·rightᵀ, float32."""
    numbers = (((1,), (int(transposed),)), ((), ()))
    product: Array = jax.lax.dot_general(left, right, numbers, preferred_element_type=jnp.float32)
    return product


def _as_row(column: Array) -> Array:
    """Returns [1, n] for [n, 1]."""
    return jnp.transpose(jnp.broadcast_to(column, (column.shape[0], LANES)))[:1]


def _as_column(row: Array) -> Array:
    """Returns [n, 1] for [1, n], float32 or int32."""
    return jnp.transpose(jnp.broadcast_to(row, (LANES, row.shape[1])))[:, :1]


def _tiles(
    form: _Form,
    states: Any,
    place: tuple[Any, Any],
    there: Any,
    tile: Callable[..., None],
    backward: bool,
) -> None:
    """Calls tile(rows, columns, banded) for all of a pair of blocks that is seen.

    place: the blocks' numbers, i of queries and j of keys, where they are `there`; banded: the band
    hides some of the tile.
    """
    i, j = place
    if form.listed:
        rows, columns = form.block_q // form.tile, form.block_k // form.listed

        def of_number(number: Any, _: Any) -> None:
            row, column = jax.lax.div(number, columns), jax.lax.rem(number, columns)
            state = states[i * rows + row, j * columns + column]
            # One tile may have any length.
            a, b = (
                pl.ds(pl.multiple_of(part * size, size) if count > 1 else 0, size)
                for part, size, count in ((row, form.tile, rows), (column, form.listed, columns))
            )
            pl.when(there & (state == 1))(functools.partial(tile, a, b, True))
            pl.when(there & (state == 2))(functools.partial(tile, a, b, False))

        jax.lax.fori_loop(0, rows * columns, of_number, None)
        return
    if form.slab and backward:
        for b in range(0, form.block_k, form.tile):
            origin = j * form.block_k + b
            first = origin - _in_lanes(-form.local.low)
            rows = _slab(form, first, form.block_q)
            tile(rows, pl.ds(b, form.tile), True)
        return
    if form.slab:
        for a in range(0, form.block_q, form.tile):
            first = i * form.block_q + a
            end = first + _in_lanes(form.tile - form.local.low)
            tile(pl.ds(a, form.tile), _slab(form, end - form.slab, form.block_k), True)
        return
    low, high = form.local.low, form.local.high

    def some(offset: int) -> None:
        """Of a block of queries that begins `offset` positions after that of keys."""
        for a in range(0, form.block_q, form.tile):
            first = offset + a
            # The columns that the tile's rows see, by whole lanes.
            c0 = max(0, (first - high) // LANES * LANES)
            c1 = min(form.block_k, _in_lanes(first + form.tile - low))
            if c1 > c0:
                whole = first - (c1 - 1) >= low and first + form.tile - 1 - c0 <= high
                tile(pl.ds(a, form.tile), pl.ds(c0, c1 - c0), not whole)

    count_q, count_k = form.blocks
    if not form.local.is_banded or (count_q, count_k) == (1, 1):
        some(0)
        return
    block = form.block_q
    wholly = []
    for d in range(1 - count_k, count_q):
        nearest, farthest = d * block - (block - 1), d * block + block - 1
        if nearest >= low and farthest <= high:
            wholly.append(d)
        elif farthest >= low and nearest <= high:
            pl.when(there & (i - j == d))(functools.partial(some, d * block))
    if wholly:
        # Of whichever of them: far enough from the band's edges.
        inside = (i - j >= wholly[0]) & (i - j <= wholly[-1])
        pl.when(there & inside)(functools.partial(some, wholly[0] * block))


def _slab(form: _Form, first: Any, length: int) -> Any:
    """Returns the slab of `length` rows that begins at `first`, or where they do."""
    inside = jnp.clip(first, 0, length - form.slab)
    return pl.ds(pl.multiple_of(inside, LANES), form.slab)
