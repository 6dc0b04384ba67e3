"""Plans of the kernels for TPUs: blocks of queries and keys, tiles, and the chip's memory."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attention.kernels.accelerated import LANES, UNBOUNDED, Local, Operands, divided, lists_tiles

Index = Callable[..., tuple[Any, ...]]

# Queries of a tile. A wider tile multiplies more hidden pairs on the diagonal of a causal problem:
# c4_lm's backward pass takes 1.2 times as long with 512 as with 256, by the cycles of its products.
# Without a band no reason for 512 is known.
# A mask's listed tiles are _TILE × _TILE. T = 4,096, causal, forward and backward: 169,000 cycles
# with 512 keys and 177,000 with 1,024. Four documents of that length: 65,000 and 87,000.
_TILE, _BANDED_TILE = 512, 256
# Rows of a tile that takes a slab: the fewest cycles at T = 4,096 with a window of 256.
_SLAB_FORWARD, _SLAB_BACKWARD = 256, 128
# Bytes of the chip's memory: those that the compiler gives a kernel without being asked, and those
# that may be asked for on chips that have 128 MiB or 64 MiB. _REST stays for a tile and the
# compiler; no measurement gives its value.
_SCOPED_BYTES = 16 << 20
_LARGER_BYTES = {
    **dict.fromkeys(("TPU v5 lite", "TPU v5e", "TPU v6 lite", "TPU v6e"), 96 << 20),
    **dict.fromkeys(("TPU v5", "TPU v5p", "TPU7x"), 48 << 20),
}
_REST = 10 << 20


class Plan(NamedTuple):
    """What is compiled into the kernel of one pass.

    queries, keys: lengths of the arrays, divided into blocks of block_q and block_k rows.
    heads: heads that share a block's lanes.
    copies: consecutive entries of the first axis that are key heads of the same batch entry.
    members: query heads of a key head.
    size, wide: channels of a head in Q and K, and in V.
    tile: rows of a tile. slab: rows of the other side that a tile takes, 0 if a tile takes them by
    the band. listed: keys of a tile if `tile_states` lists which tiles are seen, else 0.
    scoped: bytes of the chip's memory to ask for. resident: dQ is summed on the chip.
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
        """Returns the numbers of blocks of queries and of keys."""
        return -(-self.queries // self.block_q), -(-self.keys // self.block_k)

    @property
    def suffix(self) -> str:
        """Returns the end of the kernel's name: a compiler's dump knows kernels by name alone.

        The first device's shifts are in it, for `attention.compilers.kernel_cycles`.
        """
        shifts = () if self.local.division is None else ("shifts", *self.local.division.shifts)
        return "_window" * (self.local.high < UNBOUNDED) + "".join(f"_{part}" for part in shifts)

    @property
    def tiles(self) -> tuple[int, int]:
        """Returns the numbers of listed tiles of queries and of keys."""
        count_q, count_k = self.blocks
        return count_q * self.block_q // self.tile, count_k * self.block_k // self.listed

    def is_ranged(self, shift: Any) -> bool:
        """Returns whether the band and a shift say which blocks are seen."""
        return self.local.is_banded and isinstance(shift, int) == (self.local.division is None)

    def keys_of(self, i: Any, shift: Any = 0) -> tuple[Any, Any]:
        """Returns the first and the last block of keys that block i of queries may see."""
        last = self.blocks[1] - 1
        if not self.is_ranged(shift):
            return 0, last
        high, low = self.local.high - shift, self.local.low - shift
        first = maximum(0, i * self.block_q - high) // self.block_k
        end = (i * self.block_q + self.block_q - 1 - low) // self.block_k
        return minimum(last, first), minimum(last, end)

    def queries_of(self, j: Any, shift: Any = 0) -> tuple[Any, Any]:
        """Returns the first and the last block of queries that may see block j of keys."""
        last = self.blocks[0] - 1
        if not self.is_ranged(shift) or not self.resident:  # each block writes its part of dQ
            return 0, last
        low, high = self.local.low - shift, self.local.high - shift
        first = maximum(0, j * self.block_k + low) // self.block_q
        end = (j * self.block_k + self.block_k - 1 + high) // self.block_q
        return minimum(last, first), minimum(last, end)

    def head(self, n: Any, g: Any, m: Any, head: int) -> Any:
        """Returns the number of a head on this device; n, g, m: its place in the grid."""
        return ((n % self.copies) * self.members + m + g) * self.heads + head


# The plans of the forward and of the backward pass.
Plans = tuple[Plan, Plan]


def minimum(*numbers: Any) -> Any:
    """Returns the least number, a Python int if all are."""
    are_known = all(isinstance(number, int) for number in numbers)
    return min(numbers) if are_known else jnp.minimum(*numbers)


def maximum(*numbers: Any) -> Any:
    """Returns the largest number, a Python int if all are."""
    are_known = all(isinstance(number, int) for number in numbers)
    return max(numbers) if are_known else jnp.maximum(*numbers)


def heads_together(heads: int, size: int, wide: int) -> int:
    """Returns how many heads share a block's lanes, 0 if heads are to be transposed.

    Heads of 128 channels are transposed. XLA gives and takes [B, H, T, D] at no cost if its tiles
    divide T and D, while [B, T, H·D] costs c4_lm's step 46 of 358 ms.
    """
    # Two heads of Diff's values take 256 lanes, as wide as a matrix unit with 128 lanes twice.
    fitting = [n for n in range(1, heads + 1) if heads % n == 0 and n * size <= LANES]
    whole = [n for n in fitting if n * size % LANES == n * wide % LANES == 0 or n == heads]
    shared = whole and size < LANES and whole[0] * wide <= 2 * LANES
    return whole[0] if shared else 0


# The kernels, and what `tiles` may give each: rows of blocks, and queries that are multiplied at
# once. Blocks become equal, so a number is the most that they have.
KERNELS = ("forward", "backward")
_LIMITS = {
    **dict.fromkeys(("queries", "keys"), tuple(LANES << n for n in range(6))),
    "rows": (128, 256, 512),
}


def both_plans(plan: Plan, device_kind: str, arrays: dict[str, Any]) -> Plans:
    """Returns the plans of both passes; arguments as of `planned`.

    Raises ValueError for tiles that do not fit, and for two tilings where a mask lists its tiles.
    """
    sizes = [plan.local.sizes_of(kernel, KERNELS, _LIMITS) for kernel in KERNELS]
    if lists_tiles(plan.local, arrays) and sizes[0] != sizes[1]:
        raise ValueError(
            "tiles= differs between 'forward' and 'backward', and segments, lower bounds, a "
            "function or an array as mask have one list of tiles: give both the same sizes"
        )
    forward, backward = (planned(plan, device_kind, arrays, of_pass) for of_pass in sizes)
    return (
        with_slab(forward, device_kind, False, sizes[0]),
        with_slab(backward, device_kind, True, sizes[1]),
    )


def planned(plan: Plan, device_kind: str, arrays: dict[str, Any], sizes: Mapping[str, int]) -> Plan:
    """Returns the plan with its blocks, its memory, and whether dQ stays on the chip.

    arrays: as of `accelerated.on_devices`. sizes: those that are given. Raises
    ValueError if blocks of such sizes do not fit.
    """
    size, wide = plan.heads * plan.size, plan.heads * plan.wide
    row, of_query = _row_bytes(size, wide, arrays["value"].dtype)
    longest = max(plan.queries, plan.keys)
    # Sums of the gradients of column leaves.
    row += 4 * LANES * plan.heads * plan.local.functions.kinds.count("column")
    if "pairs" in arrays:
        row += 2 * min(longest, 2048)
    need = row, plan.members * plan.queries * of_query, of_query, device_kind
    most, scoped, resident = _most_rows(longest, *need)
    # With a band both sides have equal blocks, so that its edges run through corners of blocks.
    is_listed = lists_tiles(plan.local, arrays)
    # A block of queries lies in one part, and its position is a multiple of its rows.
    part = plan.local.division.part if plan.local.division else 0
    both = longest if plan.local.is_banded else 0
    most_q, most_k = sizes.get("queries", most), sizes.get("keys", most)
    if both and most_q != most_k:
        raise ValueError(
            f"tiles= with {most_q} queries and {most_k} keys: with causality or a window blocks of "
            "both have equal lengths; give one number for both"
        )
    block_q = _block(both or plan.queries, most_q, part)
    block_k = _block(both or plan.keys, most_k, part if both else 0)
    if max(most_q, most_k) != most:
        rows = max(block_q, block_k)
        _, scoped, resident = _most_rows(rows, *need, (rows,))
    most = _BANDED_TILE if plan.local.is_banded and not is_listed else _TILE
    tile, listed = (
        next((rows for rows in (limit, 384, 256, 128) if block % rows == 0), block)
        for block, limit in ((block_q, sizes.get("rows", most)), (block_k, most))
    )
    return plan._replace(
        block_q=block_q,
        block_k=block_k,
        tile=tile,
        listed=listed if is_listed else 0,
        scoped=scoped,
        resident=resident,
    )


def _block(length: int, most: int, part: int) -> int:
    """Returns the rows of equal blocks: a multiple of 128, of 16 if one short block is enough.

    part: what the rows divide, 0 for nothing.
    """
    if part:
        return next(rows for rows in range(most, 0, -LANES) if part % rows == 0)
    if length < min(most, _TILE):
        return -(-length // 16) * 16
    return divided(length, most)[0]


def _row_bytes(size: int, wide: int, dtype: jnp.dtype) -> tuple[int, int]:
    """Returns the bytes on the chip of a row of all arrays but dQ, and of a row of dQ.

    The backward pass needs the most: Q, K, V and dO in their dtype, R and the sums of dK and dV in
    float32. Every block is there twice, since the next one is read early.
    size, wide: channels of a row of Q and of V, of all heads that share a block.
    """
    wide, narrow = in_lanes(wide), in_lanes(size)
    item = dtype.itemsize
    row = 2 * item * 2 * (narrow + wide) + 2 * 4 * wide + (4 + 2 * item) * (narrow + wide)
    return row, 8 * narrow


def _most_rows(
    length: int, row: int, whole: int, part: int, device_kind: str, needed: tuple[int, ...] = ()
) -> tuple[int, int | None, bool]:
    """Returns the most rows of a block (2048 to 256), the bytes to ask for, and if dQ stays.

    row: bytes of a row of all arrays but dQ. whole: bytes of all rows of dQ. part: bytes of a row
    of dQ. More memory is asked for if fewer blocks then hold `length`. Each block is read again,
    and its sums are carried on. c4_lm_2b's heads of 512, a layer, forward and backward: 5.3 ms in
    4 × 4 blocks, 1.7 ms in one. T = 4,096, causal, forward: 60,900 cycles in blocks of 1,024,
    49,200 in blocks of 2,048. If dQ does not fit, each block of keys writes a float32 part of it,
    and XLA sums the parts. needed: the rows that a block must have. Raises ValueError if the chip
    cannot hold them.
    """
    larger = _LARGER_BYTES.get(device_kind, _SCOPED_BYTES)

    def within(scoped: int, resident: bool) -> int:
        """Returns the most rows that fit, 0 if none do."""
        fixed, of_row = (whole, row) if resident else (0, row + part)
        sizes = (2048, 1024, 512, 256) if scoped > _SCOPED_BYTES else (1024, 512, 256)
        return next((n for n in needed or sizes if n * of_row + fixed <= scoped - _REST), 0)

    for resident in (True, False):
        unasked, most = within(_SCOPED_BYTES, resident), within(larger, resident)
        if unasked >= length:
            return unasked, None, resident
        if most:
            return most, larger if most > unasked else None, resident
    if needed:
        raise ValueError(
            f"tiles= with blocks of {length} rows take {length * (row + part) / 2**20:.0f} MiB of "
            f"{device_kind}'s memory on the chip, which has {(larger - _REST) / 2**20:.0f}: give "
            "fewer queries and keys"
        )
    return 256, None, False


def with_slab(plan: Plan, device_kind: str, backward: bool, sizes: Mapping[str, int]) -> Plan:
    """Returns the plan of a pass, with a slab if that saves work; sizes: as of `planned`.

    It does if a window is narrow and the chip holds all rows of the other side. The tiles of a
    single block are known to the compiler and take less without a slab.
    """
    is_blocked = "queries" in sizes or "keys" in sizes
    if (
        is_blocked
        or plan.listed
        or UNBOUNDED in (-plan.local.low, plan.local.high)
        or plan.blocks == (1, 1)
    ):
        return plan
    tile = sizes.get("rows", _SLAB_BACKWARD if backward else _SLAB_FORWARD)
    rows, others = (plan.block_k, plan.queries) if backward else (plan.block_q, plan.keys)
    others = in_lanes(others)
    slab = in_lanes(in_lanes(tile - plan.local.low) + plan.local.high)
    if rows % tile or slab >= others:
        return plan
    size, wide = (in_lanes(plan.heads * channels) for channels in (plan.size, plan.wide))
    item = plan.local.dtype.itemsize
    held = others * (2 * item * (size + wide) + (8 * (wide + size) if backward else item * wide))
    held += rows * 2 * item * 3 * (size + wide)
    larger = _LARGER_BYTES.get(device_kind, _SCOPED_BYTES)
    if held > larger - _REST:
        return plan
    scoped = larger if held > _SCOPED_BYTES - _REST else plan.scoped
    plan = plan._replace(tile=tile, slab=slab, scoped=scoped)
    return plan._replace(block_q=others) if backward else plan._replace(block_k=others)


def in_lanes(length: int) -> int:
    """Returns the least multiple of 128 that is not below `length`."""
    return -(-length // LANES) * LANES


def kernel_call(
    plan: Plan,
    kernel: Callable[..., None],
    name: str,
    grid: tuple[int, ...],
    specs: tuple[list[Any], Any],
    results: Any,
    scratch: list[Any],
) -> Callable[..., list[Any]]:
    """Returns what calls a kernel with `arguments` and further arrays, and gives [results].

    kernel: of (shifts, operands, further arrays, results, *scratch), shifts None for no division.
    specs: block specifications of the arrays and of the results. scratch: arrays on the chip.
    """
    is_whole = plan.local.division is None
    # The first two axes of the grid may run in any order.
    semantics: Any = ("parallel", "parallel", *["arbitrary"] * (len(grid) - 2))
    return pl.pallas_call(
        functools.partial(kernel, None) if is_whole else kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=int(not is_whole),
            grid=grid,
            in_specs=specs[0],
            out_specs=[specs[1]],
            scratch_shapes=scratch,
        ),
        out_shape=[results],
        name=f"{name}{plan.suffix}",
        interpret=plan.local.interpret,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=semantics, vmem_limit_bytes=plan.scoped
        ),
    )


def block_spec(place: Index, block: tuple[int | None, ...], index: Index, **space: Any) -> Any:
    """Returns a block specification; index: of (n, g, m, i, j), which `place` gives."""
    return pl.BlockSpec(block, lambda *grid: index(*place(*grid)), **space)


def block_specs(plan: Plan, operands: Operands, place: Index) -> dict[str, Any]:
    """Returns the block specification of each kind of array by name.

    place: gives (n, g, m, i, j) from the grid's indices: entry, group of heads, query head, block
    of queries, block of keys. Shapes: `fused_tpu.make_operands`, `forward` and `backward`.
    """

    at = functools.partial(block_spec, place)
    wide, size = plan.heads * plan.wide, plan.heads * plan.size
    channels = len(plan.local.functions.channels)
    rows, columns = (
        (None, None, None, plan.heads, length) for length in (plan.block_q, plan.block_k)
    )
    of_keys = at((None, 1, plan.block_k), lambda n, g, m, i, j: (n // plan.copies, 0, j))
    of_output = at((None, None, plan.block_q, wide), lambda n, g, m, i, j: (n, m, i, g))
    of_kind = {
        "head": pl.BlockSpec(memory_space=pltpu.SMEM),
        "row": at(rows, lambda n, g, m, i, j: (n, g, m, 0, i)),
        "column": at(columns, lambda n, g, m, i, j: (n, g, m, 0, j)),
    }
    of_tiles = () if operands.tiles is None else operands.tiles.shape[2:]
    of_heads = 1 if operands.seeds is None else operands.seeds.shape[-1]
    return {
        "query": at((None, None, plan.block_q, size), lambda n, g, m, i, j: (n, m, i, g)),
        **dict.fromkeys(("output", "means", "cotangent"), of_output),
        "key": at((None, plan.block_k, size), lambda n, g, m, i, j: (n, j, g)),
        "value": at((None, plan.block_k, wide), lambda n, g, m, i, j: (n, j, g)),
        "channels": at((None, channels, wide), lambda n, g, m, i, j: (n, 0, g)),
        "keys": of_keys,
        "segments": (
            at((None, 1, plan.block_q), lambda n, g, m, i, j: (n // plan.copies, 0, i)),
            of_keys,
        ),
        "lower": at((None, 1, plan.block_q), lambda n, g, m, i, j: (n // plan.copies, 0, i)),
        "seeds": at(
            (None, 1, of_heads),
            lambda n, g, m, i, j: (n // plan.copies, 0, 0),
            memory_space=pltpu.SMEM,
        ),
        "pairs": at(
            (None, None, plan.block_q, plan.block_k),
            lambda n, g, m, i, j: (*_mask_index(plan, operands.pairs, n, g, m), i, j),
        ),
        "tiles": at(
            (None, None, *of_tiles),
            lambda n, g, m, i, j: (*_mask_index(plan, operands.tiles, n, g, m), 0, 0),
            memory_space=pltpu.SMEM,
        ),
        "start": of_kind["head"],
        "leaves": tuple(of_kind[kind] for kind in plan.local.functions.kinds),
        **dict.fromkeys(("log_sums", "lse_bar"), of_kind["row"]),
        "column": of_kind["column"],
    }


def _mask_index(plan: Plan, mask: Any, n: Any, g: Any, m: Any) -> tuple[Any, Any]:
    """Returns the first two indices of a block of a mask [B or 1, H or 1, ...]."""
    by_entry, by_head = (mask is not None and mask.shape[axis] != 1 for axis in (0, 1))
    return n // plan.copies * by_entry, plan.head(n, g, m, 0) * by_head


def arguments(plan: Plan, operands: Operands) -> tuple[Any, ...]:
    """Returns the operands with rows, columns and keys padded to the end of the last block.

    Masks are padded with 0, leaves with their last number. Shifts stand in front of the others.
    """
    lengths = {"row": plan.blocks[0] * plan.block_q, "column": plan.blocks[1] * plan.block_k}

    def filled(array: Any, kind: str, mode: str = "constant") -> Any:
        if array is None or kind == "head":
            return array
        widths = ((0, 0),) * (array.ndim - 1) + ((0, lengths[kind] - array.shape[-1]),)
        return jnp.pad(array, widths, mode)

    pairs, segments = filled(operands.pairs, "column"), operands.segments
    if pairs is not None:
        pairs = jnp.swapaxes(filled(jnp.swapaxes(pairs, 2, 3), "row"), 2, 3)
    others = operands._replace(
        keys=filled(operands.keys, "column"),
        # A function may divide by a leaf, and 0 times an infinite derivative is NaN.
        leaves=tuple(
            filled(leaf, kind, "edge")
            for leaf, kind in zip(operands.leaves, plan.local.functions.kinds, strict=True)
        ),
        segments=segments and tuple(map(filled, segments, ("row", "column"))),
        lower=filled(operands.lower, "row"),
        pairs=pairs,
        shifts=None,
    )
    return (others,) if operands.shifts is None else (operands.shifts, others)
