"""The `fused` kernel for GPUs, compiled by Triton; the formulas are those of `fused`.

One program for a tile of queries (forward, dQ) or of keys (dK and dV), which goes through the tiles
of the others that it sees: on a GPU nothing is carried from one program to the next. Arrays stay as
the host's projections leave them, [B, T, H, D]. Tiles are powers of two, as Triton wants them: what
lies beyond a length or a head size is not read, and 0 takes its place.

F is made anew by every program from the tile of V that it reads: D exponentials a key beside the
T of its softmax, and nothing written to memory. G and δ are made before the backward pass, G in the
inputs' dtype, so that both of its kernels read what those of standard attention do.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from attention.kernels import fused_values, shift

Array = jax.Array
# Query, key, value, shifts [B, 2, H, V] and keys [B, S], as `attend` makes them.
_Given = tuple[Array, Array, Array, Array | None, Array | None]

_HIDDEN = -1e30
# Where a row's maximum begins: above what hides, so that the weights of a row that sees nothing
# are exp(−∞), not exp(0).
_LOWEST = -1e20


class _Form(NamedTuple):
    """What is compiled in. queries, keys: the arrays' lengths; size, wide: channels of Q and K, and
    of V."""

    laser: bool
    is_causal: bool
    scale: float
    cap: float | None
    dtype: jnp.dtype
    interpret: bool
    queries: int
    keys: int
    size: int
    wide: int


class _Tile(NamedTuple):
    """A kernel's tiles, in rows of queries and of keys, and what Triton is told."""

    queries: int
    keys: int
    warps: int
    stages: int


def attend(of_form: dict[str, Any], arrays: dict[str, Array]) -> Array:
    """Returns the output [..., T, H, Dv]; see `fused._run` for what it is given."""
    *batch, queries, heads, size = arrays["query"].shape
    length, wide = arrays["value"].shape[-3], arrays["value"].shape[-1]
    form = _Form(**of_form, queries=queries, keys=length, size=size, wide=wide)
    entries = math.prod(batch)
    query, key, value = (
        arrays[name].reshape((entries, *arrays[name].shape[-3:]))
        for name in ("query", "key", "value")
    )
    keys = arrays["keys"].reshape((entries, length)) if "keys" in arrays else None
    shifts = None
    if form.laser:
        chosen = shift.choose(
            value.astype(jnp.float32),
            None if keys is None else keys[..., None, None],
            fused_values.SPAN,
        )
        constant, is_max = (one.astype(jnp.float32) for one in chosen)
        shifts = jnp.concatenate([constant, is_max], axis=1)
    given = query, key, value, shifts, None if keys is None else keys.astype(jnp.int32)
    return _attend(form, given).reshape((*batch, queries, heads, wide))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(form: _Form, given: _Given) -> Array:
    return _forward(form, given, keep=False)[0]


def _attend_forward(form: _Form, given: _Given) -> tuple[Array, Any]:
    output, *sums, log_sums = _forward(form, given, keep=True)
    return output, (given, sums[0] if form.laser else output, log_sums)


def _attend_backward(form: _Form, kept: Any, cotangent: Array) -> tuple[Any]:
    given, sums, log_sums = kept
    return ((*_backward(form, given, sums, log_sums, cotangent), None, None),)


# optimize_remat: a forward pass that is computed anew for the backward one writes R then alone.
_attend.defvjp(_attend_forward, _attend_backward, optimize_remat=True)


def _forward(form: _Form, given: _Given, *, keep: bool) -> list[Array]:
    """Returns the output [B, T, H, V], with `keep` R, as that in float32 (LASER), and log-sums
    [B, H, T]."""
    batch, length, heads, _ = given[0].shape
    # R in bfloat16 would be as large an error of δ as all others together (gradients 4.4e-3).
    kinds = [form.dtype, *[jnp.float32] * (keep and form.laser)]
    out = [jax.ShapeDtypeStruct((batch, length, heads, form.wide), kind) for kind in kinds]
    if keep:
        out.append(jax.ShapeDtypeStruct((batch, heads, length), jnp.float32))
    return _call(form, "forward", functools.partial(_forward_kernel, keep), given, out)


def _backward(
    form: _Form, given: _Given, sums: Array, log_sums: Array, cotangent: Array
) -> tuple[Array, Array, Array]:
    """Returns the gradients by query, key and value, in their dtypes."""
    query, key, value, shifts, _ = given
    inner = cotangent.astype(jnp.float32)
    if shifts is not None:
        chosen = shift.Shift(shifts[:, :1], shifts[:, 1:] > 0.5)
        inner = inner * fused_values.logarithm_slope(sums, chosen)
    narrow = inner.astype(query.dtype)
    # Of G as it is multiplied, so that the terms of a row cancel.
    products = sums.astype(jnp.float32) * narrow.astype(jnp.float32)
    delta = jnp.swapaxes(jnp.sum(products, axis=-1), 1, 2)
    arrays = (*given, narrow, log_sums, delta)
    key_bar, value_bar = _call(form, "by_key", _by_key_kernel, arrays, [key, value])
    (query_bar,) = _call(form, "by_query", _by_query_kernel, arrays, [query])
    return query_bar, key_bar, value_bar


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
    row = form.dtype.itemsize * max(_padded(form.size), _padded(form.wide))
    own, other, warps, stages = next(tile for most, tile in _TILES[kernel].items() if row <= most)
    rows, columns = (other, own) if kernel == "by_key" else (own, other)
    return _Tile(min(rows, _padded(form.queries)), min(columns, _padded(form.keys)), warps, stages)


def _padded(length: int) -> int:
    """Returns the least power of two that holds it, from 16, the least of a matrix product."""
    return max(16, 1 << (length - 1).bit_length())


def _call(
    form: _Form, name: str, kernel: Any, arrays: tuple[Array | None, ...], out: list[Any]
) -> list[Array]:
    """Returns a kernel's results, of the shapes and dtypes of `out`.

    arrays: those given, and for a backward pass G, log-sums and δ.
    """
    tile = _tile(form, name)
    by_key = name == "by_key"
    rows, columns = (
        -(-length // count) * count
        for length, count in ((form.queries, tile.queries), (form.keys, tile.keys))
    )

    # A program's own rows, or all of them, for it to go through.
    def of_queries(size: int) -> Any:
        return _of_heads(rows, size, whole=True) if by_key else _of_heads(tile.queries, size)

    def of_keys(size: int) -> Any:
        return _of_heads(tile.keys, size) if by_key else _of_heads(columns, size, whole=True)

    per_row = _per_row(rows, whole=True) if by_key else _per_row(tile.queries)
    shifts = pl.BlockSpec((None, 2, None, _padded(form.wide)), lambda i, h, b: (b, 0, h, 0))
    seen = pl.BlockSpec(
        (None, tile.keys if by_key else columns), lambda i, h, b: (b, i if by_key else 0)
    )
    specs = [of_queries(form.size), of_keys(form.size), of_keys(form.wide), shifts, seen]
    specs += [of_queries(form.wide), per_row, per_row]
    batch, _, heads, _ = out[0].shape
    own, length = (tile.keys, form.keys) if by_key else (tile.queries, form.queries)
    found: list[Array] = pl.pallas_call(
        functools.partial(kernel, form, tile),
        grid=(-(-length // own), heads, batch),
        in_specs=[
            None if array is None else spec for array, spec in zip(arrays, specs, strict=False)
        ],
        out_specs=[
            _of_heads(own, one.shape[-1]) if len(one.shape) == 4 else _per_row(own) for one in out
        ],
        out_shape=[jax.ShapeDtypeStruct(one.shape, one.dtype) for one in out],
        name=f"fused_{name}{'_causal' * form.is_causal}",
        interpret=form.interpret,
        compiler_params=triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
    )(*arrays)
    return found


def _of_heads(count: int, size: int, whole: bool = False) -> Any:
    """Returns the specification of `count` rows of [B, T, H, size]: a program's, or all of them."""
    return pl.BlockSpec(
        (None, count, None, _padded(size)), lambda i, h, b: (b, 0 if whole else i, h, 0)
    )


def _per_row(count: int, whole: bool = False) -> Any:
    """Returns the same of [B, H, T]."""
    return pl.BlockSpec((None, None, count), lambda i, h, b: (b, h, 0 if whole else i))


def _forward_kernel(
    keep: bool,
    form: _Form,
    tile: _Tile,
    q: Any,
    k: Any,
    v: Any,
    shifts: Any,
    keys: Any,
    *outputs: Any,
) -> None:
    first = pl.program_id(0) * tile.queries
    rows = _there(first, tile.queries, form.queries)
    query = _read(q, 0, rows, tile.queries, form.size)
    channels = _of_channels(form, shifts)

    def of_tile(j: Any, carried: Any, ragged: bool) -> Any:
        top, total, sums = carried
        origin = j * tile.keys
        columns = _there_keys(form, keys, origin, origin, tile.keys, ragged)
        key = _read(k, origin, columns, tile.keys, form.size)
        value = _values(form, v, channels, origin, columns, tile.keys)
        logits, _ = _logits(form, (query, key), (first, origin), columns, ragged, across=False)
        highest = jnp.maximum(top, jnp.max(logits, axis=1))
        weights = jnp.exp(logits - highest[:, None])
        shrunk = jnp.exp(top - highest)
        summed = _product(weights.astype(value.dtype), value)
        return (
            highest,
            shrunk * total + jnp.sum(weights, axis=1),
            shrunk[:, None] * sums + summed,
        )

    carried = (
        jnp.full((tile.queries,), _LOWEST, jnp.float32),
        jnp.zeros((tile.queries,), jnp.float32),
        jnp.zeros((tile.queries, _padded(form.wide)), jnp.float32),
    )
    top, total, sums = _through_keys(form, tile, first, of_tile, carried)
    nothing = total == 0
    total = jnp.where(nothing, 1, total)
    means = sums / total[:, None]
    output = means
    if form.laser:
        output = fused_values.logarithm(means, _of_tile(channels, means), form.dtype)
    _write(outputs[0], output, rows, form.wide)
    if keep and form.laser:
        _write(outputs[1], means, rows, form.wide)
    if keep:
        log_sums = jnp.where(nothing, 0, top + jnp.log(total))
        triton.store(outputs[-1].at[:], log_sums, mask=rows)


def _by_key_kernel(
    form: _Form,
    tile: _Tile,
    q: Any,
    k: Any,
    v: Any,
    shifts: Any,
    keys: Any,
    g: Any,
    log_sums: Any,
    delta: Any,
    key_bar: Any,
    value_bar: Any,
) -> None:
    origin = pl.program_id(0) * tile.keys
    columns = _there_keys(form, keys, 0, origin, tile.keys, True)
    key = _read(k, 0, columns, tile.keys, form.size)
    channels = _of_channels(form, shifts)
    values = _values(form, v, channels, 0, columns, tile.keys)

    def of_tile(i: Any, carried: Any, on_diagonal: bool) -> Any:
        by_key, by_value = carried
        first = i * tile.queries
        rows = _there(first, tile.queries, form.queries)
        query = _read(q, first, rows, tile.queries, form.size)
        cotangent = _read(g, first, rows, tile.queries, form.wide)
        logits, slope = _logits(
            form, (query, key), (first, origin), columns, on_diagonal, across=True
        )
        weights = jnp.exp(logits - _read_row(log_sums, first, rows, tile.queries)[None, :])
        by_value += _product(weights.astype(query.dtype), cotangent)
        bar = _product(values, cotangent, transposed=True)
        bar = weights * (bar - _read_row(delta, first, rows, tile.queries)[None, :])
        if slope is not None:
            bar = bar * slope
        by_key += _product((bar * form.scale).astype(query.dtype), query)
        return by_key, by_value

    # Of a causal problem the first tile that sees these keys, and the first that sees them all.
    count = -(-form.queries // tile.queries)
    begin: Any = 0
    free: Any = 0
    if form.is_causal:
        begin = jax.lax.div(origin, tile.queries)
        free = jnp.minimum(jax.lax.div(origin + tile.keys + tile.queries - 2, tile.queries), count)
    carried = (
        jnp.zeros((tile.keys, _padded(form.size)), jnp.float32),
        jnp.zeros((tile.keys, _padded(form.wide)), jnp.float32),
    )
    if form.is_causal:
        carried = jax.lax.fori_loop(
            begin, free, functools.partial(of_tile, on_diagonal=True), carried
        )
    carried = jax.lax.fori_loop(free, count, functools.partial(of_tile, on_diagonal=False), carried)
    by_key, by_value = carried
    if form.laser:
        value = _read(v, 0, columns, tile.keys, form.wide)
        chosen = _of_tile(channels, value)
        found = fused_values.exponential(value, chosen)
        by_value = by_value * fused_values.exponential_slope(found, chosen)
    inside = _there(origin, tile.keys, form.keys)
    if columns is not None:  # 0 times what a key that nobody sees would give
        by_value = jnp.where(columns[:, None], by_value, 0)
    _write(key_bar, by_key, inside, form.size)
    _write(value_bar, by_value, inside, form.wide)


def _by_query_kernel(
    form: _Form,
    tile: _Tile,
    q: Any,
    k: Any,
    v: Any,
    shifts: Any,
    keys: Any,
    g: Any,
    log_sums: Any,
    delta: Any,
    query_bar: Any,
) -> None:
    first = pl.program_id(0) * tile.queries
    rows = _there(first, tile.queries, form.queries)
    query = _read(q, 0, rows, tile.queries, form.size)
    cotangent = _read(g, 0, rows, tile.queries, form.wide)
    log_sum = _read_row(log_sums, 0, rows, tile.queries)[:, None]
    row_delta = _read_row(delta, 0, rows, tile.queries)[:, None]
    channels = _of_channels(form, shifts)

    def of_tile(j: Any, by_query: Any, ragged: bool) -> Any:
        origin = j * tile.keys
        columns = _there_keys(form, keys, origin, origin, tile.keys, ragged)
        key = _read(k, origin, columns, tile.keys, form.size)
        value = _values(form, v, channels, origin, columns, tile.keys)
        logits, slope = _logits(form, (query, key), (first, origin), columns, ragged, across=False)
        weights = jnp.exp(logits - log_sum)
        bar = weights * (_product(cotangent, value, transposed=True) - row_delta)
        if slope is not None:
            bar = bar * slope
        return by_query + _product((bar * form.scale).astype(key.dtype), key)

    carried = jnp.zeros((tile.queries, _padded(form.size)), jnp.float32)
    found = _through_keys(form, tile, first, of_tile, carried)
    _write(query_bar, found, rows, form.size)


def _through_keys(form: _Form, tile: _Tile, first: Any, of_tile: Any, carried: Any) -> Any:
    """Returns what of_tile(j, carried, ragged) carries through the tiles of keys that are seen.

    ragged: where some of its keys are hidden from some rows, or are not there.
    """
    whole: Any = form.keys // tile.keys
    count: Any = -(-form.keys // tile.keys)
    if form.is_causal:
        seen = jax.lax.div(first + tile.queries + tile.keys - 1, tile.keys)
        whole = jnp.minimum(jax.lax.div(first + 1, tile.keys), whole)
        count = jnp.minimum(seen, count)
    carried = jax.lax.fori_loop(0, whole, functools.partial(of_tile, ragged=False), carried)
    if form.is_causal or form.keys % tile.keys:
        carried = jax.lax.fori_loop(whole, count, functools.partial(of_tile, ragged=True), carried)
    return carried


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


def _read(ref: Any, first: Any, rows: Array | None, count: int, size: int) -> Array:
    """Returns rows [count, padded size] of a block from `first` on, 0 where nothing is."""
    return _load(ref.at[pl.ds(first, count), :], _inside(ref.shape[-1], rows, count, size))


def _read_row(ref: Any, first: Any, rows: Array | None, count: int) -> Array:
    """Returns [count] of a row's numbers from `first` on, 0 where none is."""
    return _load(ref.at[pl.ds(first, count)], rows)


def _load(ref: Any, mask: Array | None) -> Array:
    return triton.load(ref) if mask is None else triton.load(ref, mask=mask, other=0)


def _write(ref: Any, array: Array, rows: Array | None, size: int) -> None:
    count, padded = array.shape
    triton.store(ref.at[:, :], array.astype(ref.dtype), mask=_inside(padded, rows, count, size))


def _inside(padded: int, rows: Array | None, count: int, size: int) -> Array | None:
    """Returns which places of a tile [count, padded] exist, None where all do."""
    mask = None if rows is None else jnp.broadcast_to(rows[:, None], (count, padded))
    if padded > size:
        inside = jnp.broadcast_to((jnp.arange(padded) < size)[None, :], (count, padded))
        mask = inside if mask is None else mask & inside
    return mask


def _of_channels(form: _Form, shifts: Any) -> Any:
    """Returns a head's constants, and 1 where they serve the max form, [1, padded V] each; 0 where
    a channel is none."""
    if not form.laser:
        return None
    return tuple(_read(shifts, place, None, 1, form.wide) for place in (0, 1))


def _of_tile(channels: Any, array: Array) -> shift.Shift:
    """Returns the shift of the channels of an array [n, padded V]."""
    # Of a row of booleans Triton cannot change the layout where a tile has fewer than 64 rows: they
    # are made per element, and adding 0 times the array keeps Triton from making them once.
    constant, is_max = channels
    return shift.Shift(constant, is_max + 0.0 * array.astype(jnp.float32) > 0.5)


def _values(
    form: _Form, v: Any, channels: Any, first: Any, columns: Array | None, count: int
) -> Array:
    """Returns V of keys, or F, as it is multiplied; 0 for keys that are not seen."""
    value = _read(v, first, columns, count, form.wide)
    if not form.laser:
        return value
    found = fused_values.exponential(value, _of_tile(channels, value))
    if columns is not None:
        found = jnp.where(columns[:, None], found, 0)
    return found.astype(value.dtype)


def _logits(
    form: _Form,
    tiles: tuple[Array, Array],
    place: tuple[Any, Any],
    columns: Array | None,
    on_diagonal: bool,
    across: bool,
) -> tuple[Array, Array | None]:
    """Returns a tile's logits, hidden ones at _HIDDEN, and the cap's slope.

    tiles: of queries and keys, which are at `place`. across: keys along the first axis.
    """
    first, second = reversed(tiles) if across else tiles
    logits = _product(first, second, transposed=True) * form.scale
    logits, slope = fused_values.capped(logits, form.cap)
    if columns is not None:
        logits = jnp.where(columns[:, None] if across else columns[None, :], logits, _HIDDEN)
    if form.is_causal and on_diagonal:
        of_query = place[0] + jnp.arange(tiles[0].shape[0])
        of_key = place[1] + jnp.arange(tiles[1].shape[0])
        seen = (
            of_query[None, :] >= of_key[:, None] if across else of_query[:, None] >= of_key[None, :]
        )
        logits = jnp.where(seen, logits, _HIDDEN)
    return logits, slope


def _product(left: Array, right: Array, transposed: bool = False) -> Array:
    """Returns left·right, or left·rightᵀ, float32."""
    found: Array = jnp.dot(
        left, right.T if transposed else right, preferred_element_type=jnp.float32
    )
    return found
