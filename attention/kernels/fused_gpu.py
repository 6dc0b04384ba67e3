"""The `fused` kernel for GPUs, compiled by Triton; the formulas are those of `fused`.

One program for a tile of queries (forward, dQ) or of keys (dK and dV), which goes through the tiles
of the others that it sees: on a GPU nothing is carried from one program to the next. Arrays stay as
the host's projections leave them, [B, T, H, D]. Tiles are powers of two, as Triton wants them: what
lies beyond a length or a head size is not read, and 0 takes its place.

F is made anew by every program from the tile of V that it reads: D exponentials a key beside the
T of its softmax, and nothing written to memory. G and δ are made before the backward pass, G in the
inputs' dtype, so that both of its kernels read what those of standard attention do. Gradients of
head and row leaves come from the kernel of dQ, for each row, those of column leaves from that of
dK, which goes through the query heads of its key head.

Operands: query [B, T, H, D], key [B, S, K, D], value [B, S, K, V], channels [B, c, K, V], keys
[B, S] int32, start [H], leaves: head [H], row [B, H, T], column [B, H, S], segments [B, 1, T] and
[B, 1, S], pairs [B or 1, H or 1, T, S], tiles: by kernel, of each program how many tiles of the
others it sees, and their numbers.
"""

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from attention.functions import HIDDEN, LOWEST, Leaves, least
from attention.kernels import accelerated
from attention.kernels.accelerated import LANES, UNBOUNDED, Local, Operands
from attention.kernels.inputs import promoting

try:
    from jax.experimental.pallas import triton
except ImportError:  # JAX is to remove it
    triton = None  # type: ignore[assignment]

Array = jax.Array


class _Kept(NamedTuple):
    """What backward kernels read beside the operands: G [B, T, H, V] in the inputs' dtype, and s
    and δ [B, H, T], None where weights are not divided."""

    inner: Any
    log_sums: Any
    delta: Any


class _Form(NamedTuple):
    """What is compiled in. queries, keys: the arrays' lengths; size, wide: channels of Q and K, and
    of V; heads: of queries; members: of them for each of keys."""

    local: Local
    queries: int
    keys: int
    size: int
    wide: int
    heads: int
    members: int


class _Tile(NamedTuple):
    """A kernel's tiles, in rows of queries and of keys, and what Triton is told."""

    queries: int
    keys: int
    warps: int
    stages: int


def attend(local: Local, arrays: dict[str, Any]) -> Array:
    """Returns the output [..., T, H, Dv] of arrays as `accelerated.on_devices` hands them.

    Raises ValueError on a JAX without Pallas' Triton backend.
    """
    if not hasattr(triton, "load"):
        raise ValueError(
            f"kernel='fused' needs Pallas' Triton backend on a GPU, which JAX {jax.__version__} "
            "lacks; use kernel='cudnn' or kernel='xla'"
        )
    *batch, queries, heads, size = arrays["query"].shape
    length, of_keys, wide = arrays["value"].shape[-3:]
    form = _Form(local, queries, length, size, wide, heads, heads // of_keys)
    value, made = accelerated.prepared(local, arrays, makes_channels=False)

    def flat(array: Array, axes: int) -> Array:
        return array.reshape((math.prod(batch), *array.shape[-axes:]))

    channels = None
    if made is not None:
        channels = jnp.concatenate([flat(made[name], 3) for name in sorted(made)], axis=1)
    keys, seeds = arrays.get("keys"), arrays.get("seeds")
    masked = accelerated.flat_masks(arrays)
    tiles = {name: _seen_tiles(form, name, masked) for name in _TILES} if masked else None
    if "pairs" in masked:  # to the end of every tile
        beyond = ((0, 0), (0, 0), (0, -queries % LANES), (0, -length % LANES))
        masked["pairs"] = jnp.pad(masked["pairs"], beyond)
        if masked["pairs"].size >= 2**31:  # Triton counts in 32 bits
            raise ValueError(
                f"kernel='fused' takes masks of less than 2^31 pairs on a GPU, and this has "
                f"{masked['pairs'].size:,}: give segments, or a mask for all batch entries or heads"
            )
    operands = Operands(
        flat(arrays["query"], 3),
        flat(arrays["key"], 3),
        flat(value, 3),
        channels,
        None if keys is None else flat(keys, 1).astype(jnp.int32),
        arrays.get("start"),
        tuple(
            leaf if kind == "head" else flat(leaf, 2)
            for kind, leaf in zip(form.local.functions.kinds, arrays["leaves"], strict=True)
        ),
        None if seeds is None else seeds.reshape(-1, 1, heads),
        **masked,
        tiles=tiles,
    )
    return _attend(form, operands).reshape((*batch, queries, heads, wide))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(form: _Form, operands: Operands) -> Array:
    return _forward(form, operands, keep=False)["output"]


def _attend_forward(form: _Form, operands: Operands) -> tuple[Array, Any]:
    written = _forward(form, operands, keep=True)
    return written["output"], (
        operands,
        written.get("means", written["output"]),
        written.get("log_sums"),
    )


@promoting
def _attend_backward(form: _Form, kept: Any, cotangent: Array) -> tuple[Operands]:
    operands, means, log_sums = kept
    return (_backward(form, operands, means, log_sums, cotangent),)


# Not with optimize_remat, which hides the names of what is kept from policies.
_attend.defvjp(_attend_forward, _attend_backward)


def _forward(form: _Form, operands: Operands, *, keep: bool) -> dict[str, Array]:
    """Returns the output [B, T, H, V], with `keep` R, as that in float32 (where there is a
    transform), and s [B, H, T] (where there is a mass), ∞ in rows without any."""
    batch, length, heads, _ = operands.query.shape
    shape = (batch, length, heads, form.wide)
    out = {"output": jax.ShapeDtypeStruct(shape, form.local.dtype)}
    # R in bfloat16 would be as large an error of δ as all others together (gradients 4.4e-3).
    if keep and form.local.functions.transform is not None:
        out["means"] = jax.ShapeDtypeStruct(shape, jnp.float32)
    if keep and form.local.functions.weighting.mass is not None:
        out["log_sums"] = jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)
    return accelerated.named(_call(form, "forward", _forward_kernel, operands, None, out))


def _backward(
    form: _Form, operands: Operands, means: Array, log_sums: Array | None, cotangent: Array
) -> Operands:
    """Returns the gradients of the operands, in their dtypes; None for channels and keys."""
    parts, inner, of_zero = form.local.functions, cotangent.astype(jnp.float32), None
    batch, heads = operands.query.shape[0], form.heads
    if parts.transform is not None:
        # [B, 1, H, V] by name.
        channels = {
            name: jnp.repeat(operands.channels[:, place : place + 1], form.members, axis=2)
            for place, name in enumerate(parts.channels)
        }
        inner = parts.transform.pull_output(inner, means, channels)
        if form.local.may_see_none and log_sums is not None:
            # The derivative of 0 may be infinite.
            inner = jnp.where(jnp.swapaxes(log_sums < jnp.inf, 1, 2)[..., None], inner, 0)
        of_zero = parts.of_zero(lambda: channels, (batch, 1, heads, form.wide))
    narrow = inner.astype(operands.query.dtype)
    wide = narrow.astype(jnp.float32)
    delta: Any = None
    start_bar = None
    if log_sums is not None:
        # Of G as it is multiplied, so that the terms of a row cancel.
        delta = jnp.swapaxes(jnp.sum(means.astype(jnp.float32) * wide, axis=-1), 1, 2)
    if operands.start is not None:
        shares = jnp.exp(operands.start[:, None] - log_sums)
        loss = delta
        if of_zero is not None:
            loss = loss - jnp.swapaxes(jnp.sum(of_zero * wide, axis=-1), 1, 2)
        start_bar = -jnp.sum(shares * loss, axis=(0, 2)).astype(operands.start.dtype)
    kept = _Kept(narrow, log_sums, delta)
    rows = jax.ShapeDtypeStruct((batch, heads, form.queries), jnp.float32)
    columns = jax.ShapeDtypeStruct((batch, heads, form.keys), jnp.float32)
    kinds = list(enumerate(parts.kinds))
    by_key: dict[Any, Any] = {"key": operands.key, "value": operands.value}
    by_key |= {number: columns for number, kind in kinds if kind == "column"}
    by_query: dict[Any, Any] = {"query": operands.query}
    by_query |= {number: rows for number, kind in kinds if kind != "column"}
    gradients = _call(form, "by_key", _by_key_kernel, operands, kept, by_key)
    gradients |= _call(form, "by_query", _by_query_kernel, operands, kept, by_query)
    leaves = []
    for number, kind in kinds:
        bar, leaf = gradients[number], operands.leaves[number]
        bar = jnp.sum(bar, axis=(0, 2)) if kind == "head" else bar
        leaves.append(bar.astype(leaf.dtype))
    return Operands(
        gradients["query"],
        gradients["key"],
        gradients["value"],
        None,
        None,
        start_bar,
        tuple(leaves),
    )


# By the bytes of a padded row of Q or V: rows of a program's own tile, of those that it goes
# through, warps, and how many loads are under way. As large as leaves no register of H100 spilled
# at head sizes of 64 and 128, by ptxas (docs/kernels.md).
_TILES: dict[str, dict[float, tuple[int, int, int, int]]] = {
    "forward": {
        128: (128, 64, 8, 3),
        256: (128, 64, 8, 2),
        512: (32, 32, 4, 1),
        1024: (32, 32, 8, 1),
        math.inf: (16, 16, 8, 1),
    },
    "by_key": {
        128: (128, 32, 8, 2),
        256: (64, 32, 8, 2),
        512: (32, 32, 8, 1),
        1024: (32, 16, 8, 1),
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


def _tile(form: _Form, kernel: str) -> _Tile:
    """Returns the tiles of 'forward', 'by_key' or 'by_query'."""
    row = form.local.dtype.itemsize * max(_padded(form.size), _padded(form.wide))
    own, other, warps, stages = next(tile for most, tile in _TILES[kernel].items() if row <= most)
    rows, columns = (other, own) if kernel == "by_key" else (own, other)
    return _Tile(min(rows, _padded(form.queries)), min(columns, _padded(form.keys)), warps, stages)


def _seen_tiles(form: _Form, kernel: str, masked: dict[str, Any]) -> Array:
    """Returns of each program how many tiles it sees, and then their numbers, int32
    [B or 1, H or 1, programs, 1 + tiles]."""
    tile = _tile(form, kernel)
    count = -(-form.queries // tile.queries), -(-form.keys // tile.keys)
    states = accelerated.tile_states(form.local, masked, (tile.queries, tile.keys), count)
    hidden = (jnp.swapaxes(states, 2, 3) if kernel == "by_key" else states) == 0
    order = jnp.argsort(hidden, axis=-1, stable=True).astype(jnp.int32)
    seen = jnp.sum(~hidden, axis=-1, keepdims=True, dtype=jnp.int32)
    return jnp.concatenate([seen, order], axis=-1)


def _padded(length: int) -> int:
    """Returns the least power of two that holds it, from 16, the least of a matrix product."""
    return max(16, 1 << (length - 1).bit_length())


def _call(
    form: _Form,
    name: str,
    kernel: Callable[..., None],
    operands: Operands,
    kept: _Kept | None,
    out: dict[Any, Any],
) -> dict[Any, Array]:
    """Returns a kernel's results, of the shapes and dtypes of `out`, by the same names."""
    tile = _tile(form, name)
    by_key = name == "by_key"
    # A program of `by_key` is of a key head and its query heads, the others of one query head.
    members = form.members if by_key and form.members > 1 else None
    of_key = 1 if by_key else form.members
    rows, columns = (
        -(-length // count) * count
        for length, count in ((form.queries, tile.queries), (form.keys, tile.keys))
    )

    def of_queries(size: int) -> Any:
        """Of [B, T, H, size]: a program's own rows, or all of them, for it to go through."""
        shape = (None, rows if by_key else tile.queries, members, _padded(size))
        return pl.BlockSpec(shape, lambda i, h, b: (b, 0 if by_key else i, h, 0))

    def of_keys(size: int) -> Any:
        shape = (None, tile.keys if by_key else columns, None, _padded(size))
        return pl.BlockSpec(shape, lambda i, h, b: (b, i if by_key else 0, h // of_key, 0))

    of_kind = {
        "head": pl.BlockSpec((form.heads,), lambda i, h, b: (0,)),
        # Of [B, H, T] and [B, H, S].
        "row": pl.BlockSpec(
            (None, members, rows if by_key else tile.queries),
            lambda i, h, b: (b, h, 0 if by_key else i),
        ),
        "column": pl.BlockSpec(
            (None, members, tile.keys if by_key else columns),
            lambda i, h, b: (b, h, i if by_key else 0),
        ),
    }
    shape = (None, len(form.local.functions.channels), None, _padded(form.wide))
    keys = (None, tile.keys if by_key else columns)
    of_block = (rows, tile.keys) if by_key else (tile.queries, columns)
    if operands.tiles is not None:
        operands = operands._replace(tiles=operands.tiles[name])
    ends = {"row": form.queries, "column": form.keys}
    operands = operands._replace(
        leaves=tuple(  # to the end of every tile
            leaf
            if kind == "head"
            else jnp.pad(leaf, ((0, 0), (0, 0), (0, -ends[kind] % LANES)), "edge")
            for leaf, kind in zip(operands.leaves, form.local.functions.kinds, strict=True)
        )
    )

    def of_mask(mask: Any, index: Callable[..., tuple[Any, ...]], *block: int | None) -> Any:
        """Of [B or 1, H or 1, ...]."""
        by_entry, by_head = (mask is not None and mask.shape[axis] > 1 for axis in (0, 1))
        return pl.BlockSpec(
            (None, None, *block), lambda i, h, b: (b * by_entry, h * by_head, *index(i))
        )

    specs = Operands(
        of_queries(form.size),
        of_keys(form.size),
        of_keys(form.wide),
        pl.BlockSpec(shape, lambda i, h, b: (b, 0, h // of_key, 0)),
        pl.BlockSpec(keys, lambda i, h, b: (b, i if by_key else 0)),
        of_kind["head"],
        tuple(of_kind[kind] for kind in form.local.functions.kinds),
        pl.BlockSpec((None, 1, form.heads), lambda i, h, b: (b, 0, 0)),
        (
            pl.BlockSpec((None, None, of_block[0]), lambda i, h, b: (b, 0, 0 if by_key else i)),
            pl.BlockSpec((None, None, of_block[1]), lambda i, h, b: (b, 0, i if by_key else 0)),
        ),
        of_mask(operands.pairs, lambda i: (0, i) if by_key else (i, 0), *of_block),
        of_mask(operands.tiles, lambda i: (i, 0), None, 1 + (rows if by_key else columns)),
    )
    of_kept = None
    if kept is not None:
        row = None if kept.log_sums is None else of_kind["row"]
        of_kept = _Kept(of_queries(form.wide), row, row)
    of_result: dict[Any, Any] = {
        "output": of_queries(form.wide),
        "means": of_queries(form.wide),
        "query": of_queries(form.size),
        "key": of_keys(form.size),
        "value": of_keys(form.wide),
        "log_sums": of_kind["row"],
        **dict.fromkeys(range(len(specs.leaves)), of_kind["column" if by_key else "row"]),
    }
    own, length = (tile.keys, form.keys) if by_key else (tile.queries, form.queries)
    kernel_call = pl.pallas_call(
        functools.partial(kernel, form, tile, list(out)),
        grid=(-(-length // own), form.heads // (members or 1), operands.query.shape[0]),
        in_specs=[operands.present(specs), of_kept],
        out_specs=[of_result[result] for result in out],
        out_shape=[jax.ShapeDtypeStruct(result.shape, result.dtype) for result in out.values()],
        name=f"fused_{name}{'_causal' * (form.local.low == 0 and form.local.high == UNBOUNDED)}",
        interpret=form.local.interpret,
        compiler_params=triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
    )
    # JAX warns wherever the kernel is lowered, in a program of which we see no more than this.
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
    # Within jit, since JAX 0.10 keeps kernels whose results nobody reads.
    arrays = jax.jit(kernel_call)(operands, kept)
    return dict(zip(out, arrays, strict=True))


def _forward_kernel(
    form: _Form, tile: _Tile, names: list[str], operands: Operands, kept: None, *outputs: Any
) -> None:
    del kept
    parts, weighting = form.local.functions, form.local.functions.weighting
    first, head = pl.program_id(0) * tile.queries, pl.program_id(1)
    rows = _there(first, tile.queries, form.queries)
    query = _read(operands.query, 0, rows, tile.queries, form.size)
    start: Any = weighting.start if operands.start is None else operands.start[head]
    channels = _of_channels(form, operands.channels)

    def of_tile(j: Any, carried: Any, ragged: bool) -> Any:
        origin = j * tile.keys
        columns = _there_keys(form, operands.keys, origin, origin, tile.keys, ragged)
        key = _read(operands.key, origin, columns, tile.keys, form.size)
        value = _values(form, operands.value, channels, origin, columns, tile.keys)
        place = _Place(tile, first, origin, rows, columns)
        seen = _seen(form, operands, place, ragged)
        logits = _product(query, key, transposed=True) * form.local.scale
        leaves = _leaves(form, operands.leaves, place, head)
        logits = parts.scored(logits, place.indices(), leaves)
        top, total, sums = carried
        highest: Any = None
        if weighting.mass is not None:
            shown = logits if seen is None else jnp.where(seen, logits, HIDDEN)
            highest = jnp.maximum(top, jnp.max(shown, axis=1)) if weighting.scales else top
        s = None if highest is None else highest[:, None]
        weights, masses = parts.weigh(logits, s, seen)
        kept = accelerated.kept(form.local, operands.seeds, head, place.indices())
        weights = weights if kept is None else jnp.where(kept, weights, 0)
        summed = _product(weights.astype(value.dtype), value)
        if masses is None:
            return top, total, sums + summed
        shrunk = jnp.exp(top - highest)
        return (
            highest,
            shrunk * total + jnp.sum(masses, axis=1),
            shrunk[:, None] * sums + summed,
        )

    bound = least(weighting, start)
    top = jnp.full((tile.queries,), LOWEST if bound is None else bound, jnp.float32)
    total = jnp.zeros((tile.queries,), jnp.float32) if start is None else jnp.exp(start - top)
    sums = jnp.zeros((tile.queries, _padded(form.wide)), jnp.float32)
    zero = parts.of_zero(lambda: channels(sums), sums.shape)
    if zero is not None:
        sums = total[:, None] * zero
    carried = top, total, sums
    top, total, sums = _through_keys(form, tile, operands.tiles, first, of_tile, carried)
    means = sums
    if weighting.mass is not None:
        total = jnp.where(total == 0, jnp.inf, total)
        means = sums / total[:, None]
    output = means
    if parts.transform is not None:
        output = parts.transform.output(means, channels(means))
    written = {"output": output, "means": means, "log_sums": top}
    for name, ref in zip(names, outputs, strict=True):
        if name == "log_sums":
            _write_row(ref, None, top + jnp.log(total), rows)
        else:
            _write(ref, written[name], rows, form.wide)


def _by_key_kernel(
    form: _Form, tile: _Tile, names: list[Any], operands: Operands, kept: _Kept, *outputs: Any
) -> None:
    parts, kinds = form.local.functions, form.local.functions.kinds
    origin, of_keys = pl.program_id(0) * tile.keys, pl.program_id(1)
    columns = _there_keys(form, operands.keys, 0, origin, tile.keys, True)
    inside = _there(origin, tile.keys, form.keys)
    key = _read(operands.key, 0, columns, tile.keys, form.size)
    channels = _of_channels(form, operands.channels)
    values = _values(form, operands.value, channels, 0, columns, tile.keys)
    out = dict(zip(names, outputs, strict=True))
    count = -(-form.queries // tile.queries)
    begin, free, end = _seeing(form, tile, origin, count)

    def of_member(member: Any, carried: Any) -> Any:
        def of_tile(i: Any, carried: Any, ragged: bool) -> Any:
            by_key, by_value, *sums = carried
            first = i * tile.queries
            rows = _there(first, tile.queries, form.queries)
            query = _read(operands.query, first, rows, tile.queries, form.size, member)
            inner = _read(kept.inner, first, rows, tile.queries, form.wide, member)
            place = _Place(tile, first, origin, rows, columns, True, member)
            weights, raw_bar, bars = _pulled(
                form,
                operands,
                kept,
                place,
                of_keys * form.members + (0 if member is None else member),
                (key, query, values, inner),
                ragged,
                ("column",),
            )
            by_value += _product(weights.astype(query.dtype), inner)
            by_key += _product((raw_bar * form.local.scale).astype(query.dtype), query)
            summed = [total + jnp.sum(bar, axis=1) for total, bar in zip(sums, bars, strict=True)]
            return by_key, by_value, *summed

        carried += (jnp.zeros((tile.keys,), jnp.float32),) * kinds.count("column")
        if operands.tiles is not None:
            carried = _through_list(operands.tiles, of_tile, carried)
        else:
            if form.local.is_banded:
                edge = functools.partial(of_tile, ragged=True)
                carried = jax.lax.fori_loop(begin, free, edge, carried)
            inner_tiles = functools.partial(of_tile, ragged=form.local.high < UNBOUNDED)
            carried = jax.lax.fori_loop(free, end, inner_tiles, carried)
        by_key, by_value, *sums = carried
        numbers = [number for number, kind in enumerate(kinds) if kind == "column"]
        for number, total in zip(numbers, sums, strict=True):
            _write_row(out[number], member, total, inside)
        return by_key, by_value

    carried: Any = (
        jnp.zeros((tile.keys, _padded(form.size)), jnp.float32),
        jnp.zeros((tile.keys, _padded(form.wide)), jnp.float32),
    )
    if form.members == 1:
        by_key, by_value = of_member(None, carried)
    else:
        by_key, by_value = jax.lax.fori_loop(0, form.members, of_member, carried)
    if parts.transform is not None:
        value = _read(operands.value, 0, columns, tile.keys, form.wide).astype(jnp.float32)
        c = channels(value)
        raised = parts.transform.value(value, c)
        by_value = parts.transform.pull_value(by_value, value, raised, c)
    if columns is not None:  # 0 times what a key that nobody sees would give
        by_value = jnp.where(columns[:, None], by_value, 0)
    _write(out["key"], by_key, inside, form.size)
    _write(out["value"], by_value, inside, form.wide)


def _by_query_kernel(
    form: _Form, tile: _Tile, names: list[Any], operands: Operands, kept: _Kept, *outputs: Any
) -> None:
    first, head = pl.program_id(0) * tile.queries, pl.program_id(1)
    rows = _there(first, tile.queries, form.queries)
    query = _read(operands.query, 0, rows, tile.queries, form.size)
    inner = _read(kept.inner, 0, rows, tile.queries, form.wide)
    channels = _of_channels(form, operands.channels)
    numbers = [number for number in names if number != "query"]

    def of_tile(j: Any, carried: Any, ragged: bool) -> Any:
        by_query, *sums = carried
        origin = j * tile.keys
        columns = _there_keys(form, operands.keys, origin, origin, tile.keys, ragged)
        key = _read(operands.key, origin, columns, tile.keys, form.size)
        value = _values(form, operands.value, channels, origin, columns, tile.keys)
        _, raw_bar, bars = _pulled(
            form,
            operands,
            kept,
            _Place(tile, first, origin, rows, columns),
            head,
            (query, key, inner, value),
            ragged,
            ("head", "row"),
        )
        by_query += _product((raw_bar * form.local.scale).astype(key.dtype), key)
        return by_query, *(
            total + jnp.sum(bar, axis=1) for total, bar in zip(sums, bars, strict=True)
        )

    carried = (
        jnp.zeros((tile.queries, _padded(form.size)), jnp.float32),
        *[jnp.zeros((tile.queries,), jnp.float32)] * len(numbers),
    )
    by_query, *sums = _through_keys(form, tile, operands.tiles, first, of_tile, carried)
    out = dict(zip(names, outputs, strict=True))
    _write(out["query"], by_query, rows, form.size)
    for number, total in zip(numbers, sums, strict=True):
        _write_row(out[number], None, total, rows)


def _pulled(
    form: _Form,
    operands: Operands,
    kept: _Kept,
    place: "_Place",
    head: Any,
    factors: tuple[Array, Array, Array, Array],
    ragged: bool,
    wanted: tuple[str, ...],
) -> tuple[Array, Array, list[Array]]:
    """Returns a tile's weights, the gradient of its scaled logits, and those of `wanted` leaves.

    factors: two of the logits, and two of the gradient of the weights.
    """
    left, right, left_bar, right_bar = factors
    s: Any = None
    delta: Any = None
    if form.local.functions.weighting.mass is not None:
        s, delta = (place.of_rows(ref) for ref in (kept.log_sums, kept.delta))
        if place.rows is not None:  # e^−∞ where no row is, whatever its logits
            s = jnp.where(place._along(place.rows, not place.across), s, jnp.inf)
    return form.local.functions.pulled(
        _product(left, right, transposed=True) * form.local.scale,
        place.indices(),
        _leaves(form, operands.leaves, place, head),
        _seen(form, operands, place, ragged),
        s,
        _product(left_bar, right_bar, transposed=True),
        delta,
        wanted,
        accelerated.kept(form.local, operands.seeds, head, place.indices()),
    )


def _through_keys(
    form: _Form, tile: _Tile, tiles: Any, first: Any, of_tile: Any, carried: Any
) -> Any:
    """Returns what of_tile(j, carried, ragged) carries through the tiles of keys that are seen.

    ragged: where some of its keys are hidden from some rows, or are not there.
    """
    if tiles is not None:
        return _through_list(tiles, of_tile, carried)
    begin: Any = 0
    whole: Any = form.keys // tile.keys
    count: Any = -(-form.keys // tile.keys)
    if form.local.low > -UNBOUNDED:
        last = first + tile.queries - 1 - form.local.low
        count = jnp.minimum(_quotient(last + tile.keys, tile.keys), count)
        before = jnp.maximum(first + 1 - form.local.low, 0)
        whole = jnp.minimum(_quotient(before, tile.keys), whole)
    if form.local.high < UNBOUNDED:  # a window is narrow: all of it is an edge
        begin = whole = _quotient(jnp.maximum(first - form.local.high, 0), tile.keys)
    carried = jax.lax.fori_loop(begin, whole, functools.partial(of_tile, ragged=False), carried)
    if form.local.is_banded or form.keys % tile.keys:
        carried = jax.lax.fori_loop(whole, count, functools.partial(of_tile, ragged=True), carried)
    return carried


def _through_list(tiles: Any, of_tile: Any, carried: Any) -> Any:
    """Returns what of_tile(number, carried, ragged) carries through a program's list of tiles."""
    # Not all tiles with a condition each: LASER's kernel by keys then spills 256 bytes at 128.
    return jax.lax.fori_loop(
        0, tiles[0], lambda place, carried: of_tile(tiles[place + 1], carried, True), carried
    )


def _quotient(number: Any, count: int) -> Any:
    """Returns number // count for a number from 0 on, in 32 bits whatever jax_enable_x64 says."""
    return jax.lax.div(number, jnp.int32(count))


def _seeing(form: _Form, tile: _Tile, origin: Any, count: int) -> tuple[Any, Any, Any]:
    """Returns the first tile of queries that sees some of the keys from `origin` on, the first that
    sees them all, and the end of those that see any."""
    begin: Any = 0
    free: Any = 0
    end: Any = count
    if form.local.low > -UNBOUNDED:
        begin = _quotient(jnp.maximum(origin + form.local.low, 0), tile.queries)
        last = jnp.maximum(origin + tile.keys - 1 + form.local.low, 0)
        free = jnp.minimum(_quotient(last + tile.queries - 1, tile.queries), count)
    if form.local.high < UNBOUNDED:
        past = origin + tile.keys - 1 + form.local.high
        end = jnp.minimum(_quotient(past, tile.queries) + 1, count)
        free = jnp.minimum(free, end)
    return begin, free, end


class _Place(NamedTuple):
    """A tile, the positions of its first row and column, and which rows and columns are there
    (None: all).

    across: keys are along its first axis, and its program goes through the queries of `member`; the
    others go through keys.
    """

    tile: _Tile
    first: Any
    origin: Any
    rows: Array | None
    columns: Array | None
    across: bool = False
    member: Any = None

    def indices(self) -> tuple[Array, Array]:
        """Returns the positions of queries and keys, in shapes that broadcast to the tile.

        Those that are not there have the first one's: of others a function may be no number.
        """
        return (
            self._positions(self.first, self.tile.queries, self.rows, not self.across),
            self._positions(self.origin, self.tile.keys, self.columns, self.across),
        )

    def _positions(self, first: Any, count: int, inside: Array | None, is_column: bool) -> Array:
        positions = first + jnp.arange(count, dtype=jnp.int32)
        return self._along(
            positions if inside is None else jnp.where(inside, positions, first), is_column
        )

    def of_rows(self, ref: Any) -> Array:
        """Returns the tile's part of a row, [n, 1] or [1, n]."""
        begin = self.first if self.across else 0
        part = _read_row(ref, self.member, begin, self.rows, self.tile.queries)
        return self._along(part, not self.across)

    def of_columns(self, ref: Any) -> Array:
        """Returns the tile's part of a column, [m, 1] or [1, m]."""
        begin = 0 if self.across else self.origin
        part = _read_row(ref, self.member, begin, self.columns, self.tile.keys)
        return self._along(part, self.across)

    def of_pairs(self, ref: Any) -> Array:
        """Returns the tile's part of [T, S]."""
        first, origin = (self.first, 0) if self.across else (0, self.origin)
        at = pl.ds(first, self.tile.queries), pl.ds(origin, self.tile.keys)
        part = triton.load(ref.at[at]).astype(jnp.int32)
        return part.T if self.across else part

    def of_head(self, number: Array) -> Array:
        """Returns a number for each row, so that its gradient is summed over keys alone."""
        return self._along(jnp.full((self.tile.queries,), number, jnp.float32), not self.across)

    def _along(self, array: Array, is_column: bool) -> Array:
        return array[:, None] if is_column else array[None, :]


def _leaves(form: _Form, leaves: tuple[Any, ...], place: _Place, head: Any) -> list[Array]:
    """Returns the leaves of a tile in shapes that broadcast to it; head: its number."""
    every = place._replace(rows=None, columns=None)  # hidden ones, too: 0 may be no number there
    read = {
        "head": lambda ref: place.of_head(ref[head]),
        "row": every.of_rows,
        "column": every.of_columns,
    }
    kinds = form.local.functions.kinds
    return [read[kind](ref) for kind, ref in zip(kinds, leaves, strict=True)]


def _seen(form: _Form, operands: Operands, place: _Place, ragged: bool) -> Array | None:
    """Returns which keys a tile's queries see, None where they see all."""
    of_query, of_key = place.indices()
    conditions = form.local.within_band(of_query - of_key) if ragged else []
    alone = place._replace(member=None)
    if operands.segments is not None:
        of_rows, of_columns = operands.segments
        conditions.append(alone.of_rows(of_rows) == alone.of_columns(of_columns))
    if operands.pairs is not None:
        conditions.append(alone.of_pairs(operands.pairs) > 0)
    if place.columns is not None:
        conditions = [place._along(place.columns, place.across), *conditions]
    return functools.reduce(jnp.logical_and, conditions) if conditions else None


def _there(first: Any, count: int, length: int) -> Array | None:
    """Returns which of `count` rows from `first` on are there, None where all of any tile are."""
    return None if length % count == 0 else first + jnp.arange(count) < length


def _there_keys(
    form: _Form, keys: Any, place: Any, origin: Any, count: int, ragged: bool
) -> Array | None:
    """Returns which keys from `origin` on, at `place` in the block, are there and seen."""
    there = _there(origin, count, form.keys) if ragged else None
    if keys is None:
        return there
    seen = _load(keys.at[pl.ds(place, count)], there) > 0
    return seen if there is None else seen & there


def _read(
    ref: Any, first: Any, rows: Array | None, count: int, size: int, member: Any = None
) -> Array:
    """Returns rows [count, padded size] of a block from `first` on, 0 where nothing is."""
    at = (pl.ds(first, count), *(() if member is None else (member,)), slice(None))
    return _load(ref.at[at], _inside(ref.shape[-1], rows, count, size))


def _read_row(ref: Any, member: Any, first: Any, rows: Array | None, count: int) -> Array:
    """Returns [count] of a row's numbers from `first` on, 0 where none is."""
    return _load(ref.at[_at(member, pl.ds(first, count))], rows)


def _load(ref: Any, mask: Array | None) -> Array:
    return triton.load(ref) if mask is None else triton.load(ref, mask=mask, other=0)


def _write(ref: Any, array: Array, rows: Array | None, size: int, member: Any = None) -> None:
    count, padded = array.shape
    at = (slice(None), slice(None)) if member is None else (slice(None), member, slice(None))
    triton.store(ref.at[at], array.astype(ref.dtype), mask=_inside(padded, rows, count, size))


def _write_row(ref: Any, member: Any, array: Array, rows: Array | None) -> None:
    triton.store(ref.at[_at(member, pl.ds(0, array.shape[0]))], array, mask=rows)


def _at(member: Any, place: Any) -> tuple[Any, ...]:
    return (place,) if member is None else (member, place)


def _inside(padded: int, rows: Array | None, count: int, size: int) -> Array | None:
    """Returns which places of a tile [count, padded] exist, None where all do."""
    mask = None if rows is None else jnp.broadcast_to(rows[:, None], (count, padded))
    if padded > size:
        inside = jnp.broadcast_to((jnp.arange(padded) < size)[None, :], (count, padded))
        mask = inside if mask is None else mask & inside
    return mask


def _of_channels(form: _Form, channels: Any) -> Callable[[Array], Leaves]:
    """Returns a function that gives the channel leaves for an array [n, padded V], 0 where a
    channel is none."""
    names = form.local.functions.channels
    read = [_read(channels, place, None, 1, form.wide) for place in range(len(names))]

    def of_array(array: Array) -> Leaves:
        # Of a row of booleans Triton cannot change the layout where a tile has fewer than 64 rows:
        # leaves are made per element, and adding 0 times the array keeps Triton from making what
        # comes of them once.
        return {name: leaf + 0.0 * array for name, leaf in zip(names, read, strict=True)}

    return of_array


def _values(
    form: _Form,
    v: Any,
    channels: Callable[[Array], Leaves],
    first: Any,
    columns: Array | None,
    count: int,
) -> Array:
    """Returns V of keys, or F, as it is multiplied; 0 for keys that are not seen."""
    value = _read(v, first, columns, count, form.wide)
    if form.local.functions.transform is None:
        return value
    wide = value.astype(jnp.float32)
    raised = form.local.functions.transform.value(wide, channels(wide))
    if columns is not None:
        raised = jnp.where(columns[:, None], raised, 0)
    return raised.astype(value.dtype)


def _product(left: Array, right: Array, transposed: bool = False) -> Array:
    """Returns left·right, or left·rightᵀ, float32."""
    product: Array = jnp.dot(
        left, right.T if transposed else right, preferred_element_type=jnp.float32
    )
    return product
