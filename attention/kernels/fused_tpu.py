"""The `fused` kernel for TPUs, compiled by Mosaic; the formulas are those of `fused`.

Kept for the backward pass: log Σ exp of each row, and R in float32 (standard: o). The shift is
chosen by a pass over V outside, or inside, where a block holds all keys (of c4_lm's step that pass
is 3 %).

Blocks of queries by blocks of keys, 256 or 512 queries at a time; of blocks above the diagonal of a
causal problem, and of tiles on it what lies right of it, nothing is computed. A last block reaches
beyond the arrays: what it reads there is set to 0, and what it writes is dropped.

Arrays are [B, H, T, D], but heads that 128 lanes hold several of stay as the host's projections
leave them, [B, T, H·D]: a block has 128/D side by side, each seen by setting the others' lanes to
0, which a matrix unit 128 wide computes in the same time. (ViT-S: transpositions and padding around
this kernel took 39 of 118 ms; what is left of copies takes 8 of 70.)
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attention.kernels import accelerated, fused_values, shift
from attention.kernels.accelerated import LANES

Array = jax.Array
# Query, key, value, shifts and keys, as `_forward` says.
_Given = tuple[Array, Array, Array, Array | None, Array | None]

# Queries at a time. On a causal problem's diagonal a wider tile multiplies more that is hidden: at
# 512 instead of 256 c4_lm's backward pass takes 1.2 times as long, by its products.
_TILE, _CAUSAL_TILE = 512, 256
_HIDDEN = -1e30
# What the compiler gives a kernel of the chip's memory unasked, and what may be asked for where JAX
# knows a chip to have more of it (128 MiB, or 64). Of either, a tile and the compiler take _REST.
_SCOPED_BYTES = 16 << 20
_LARGER_BYTES = {
    **dict.fromkeys(("TPU v5 lite", "TPU v5e", "TPU v6 lite", "TPU v6e"), 96 << 20),
    **dict.fromkeys(("TPU v5", "TPU v5p", "TPU7x"), 48 << 20),
}
_REST = 10 << 20


class _Form(NamedTuple):
    """What is compiled in: see `_forward` for the arguments.

    heads: how many share a block's lanes. copies: of a batch entry's keys, that follow one another.
    queries, keys: the arrays' lengths, in blocks of so many rows. size, wide: a head's channels in
    Q and K, and in V.
    """

    laser: bool
    is_causal: bool
    scale: float
    cap: float | None
    dtype: jnp.dtype
    interpret: bool
    heads: int
    copies: int
    queries: int
    keys: int
    block_q: int
    block_k: int
    size: int
    wide: int
    scoped: int | None

    @property
    def compiler_params(self) -> pltpu.CompilerParams:
        return pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=self.scoped,
        )


def attend(of_form: dict[str, Any], device_kind: str, arrays: dict[str, Array]) -> Array:
    """Returns the output [..., T, H, Dv]; see `fused._run` for what it is given."""
    *batch, queries, heads, size = arrays["query"].shape
    length, wide = arrays["value"].shape[-3], arrays["value"].shape[-1]
    entries = math.prod(batch)
    together = _heads_together(heads, size, wide)
    side_by_side = max(1, together)
    row = _row_bytes(side_by_side * size, side_by_side * wide, arrays["value"].dtype)
    most, scoped = _most_rows(max(queries, length), row, device_kind)
    # Where causal, blocks of both begin together, and the diagonal runs through their corners.
    longest = max(queries, length) if of_form["is_causal"] else 0
    block_q, block_k = (_block(longest or n, most) for n in (queries, length))
    form = _Form(
        **of_form,
        heads=side_by_side,
        copies=1 if together else heads,
        queries=queries,
        keys=length,
        block_q=block_q,
        block_k=block_k,
        size=size,
        wide=wide,
        scoped=scoped,
    )
    seen = arrays["keys"].reshape((entries, length, 1, 1)) if "keys" in arrays else None
    value = arrays["value"].reshape((entries, length, heads, wide))
    shifts = None
    # Where a block holds all keys, and no mask, the kernel sees what the shift is chosen from.
    if form.laser and not (seen is None and length <= block_k):
        chosen = shift.choose(
            jnp.moveaxis(value, 1, 2)[..., None, :].astype(jnp.float32),
            None if seen is None else jnp.moveaxis(seen, 1, 2)[..., None],
            fused_values.SPAN,
        )
        constant = chosen.constant[..., 0, :]  # [B, H, 1, Dv]
        shifts = jnp.concatenate([constant, chosen.is_max[..., 0, :].astype(jnp.float32)], axis=-2)
        if seen is not None:  # 0 times ∞ would be NaN
            value = jnp.where(seen, value, jnp.moveaxis(constant, 1, 2).astype(value.dtype))
    keys = None
    if seen is not None:
        keys = seen[..., 0].astype(jnp.float32).swapaxes(1, 2)
        keys = jnp.pad(keys, ((0, 0), (0, 0), (0, -length % block_k)))

    def flat(array: Array) -> Array:
        array = array.reshape((entries, *array.shape[-3:]))
        if not together:
            array = jnp.swapaxes(array, 1, 2).reshape((-1, array.shape[1], 1, array.shape[-1]))
        return array.reshape((*array.shape[:2], -1))

    if shifts is not None:  # [B, 2, H·Dv]
        shifts = flat(jnp.swapaxes(shifts, 1, 2))
    given = flat(arrays["query"]), flat(arrays["key"]), flat(value), shifts, keys
    output = _attend(form, given)
    if not together:
        output = jnp.swapaxes(output.reshape((entries, heads, queries, wide)), 1, 2)
    return output.reshape((*batch, queries, heads, wide))


def _block(length: int, most: int) -> int:
    """Returns the rows of a block: equal multiples of 128, or one of 16s where that is short."""
    if length < min(most, _TILE):
        return -(-length // 16) * 16
    return accelerated.divided(length, most)[0]


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


def _row_bytes(size: int, wide: int, dtype: jnp.dtype) -> int:
    """Returns what a row of all blocks takes on the chip, arrays twice each, in the backward pass.

    Q, K, V, dO in their dtype, R and the sums of dK and dV in float32, dQ. size, wide: of a row of
    Q and of V.
    """
    wide, narrow = (-(-one // LANES) * LANES for one in (wide, size))
    item = dtype.itemsize
    return (
        2 * item * 2 * (narrow + wide)
        + 2 * 4 * wide
        + (4 + 2 * item) * (narrow + wide)
        + 8 * narrow
    )


def _most_rows(length: int, row: int, device_kind: str) -> tuple[int, int | None]:
    """Returns the most rows of a block, 1024, 512 or 256, and the bytes to ask for, if any.

    More is asked for where fewer blocks then hold `length`: several blocks of keys write parts of
    dQ in float32, and their sums are carried on (c4_lm_2b's heads of 512, a layer, forward and
    backward: 5.3 ms of 4 × 4 blocks, 1.7 of one).
    """

    def within(scoped: int) -> int:
        return next((rows for rows in (1024, 512) if rows * row <= scoped - _REST), 256)

    given, larger = within(_SCOPED_BYTES), _LARGER_BYTES.get(device_kind, _SCOPED_BYTES)
    most = given if length <= given else within(larger)
    return most, larger if most > given else None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(form: _Form, given: _Given) -> Array:
    return _forward(form, given, keep=False)[0]


def _attend_forward(form: _Form, given: _Given) -> tuple[Array, Any]:
    output, sums, log_sums, shifts = _forward(form, given, keep=True)
    query, key, value, _, keys = given
    return output, ((query, key, value, shifts, keys), sums if form.laser else output, log_sums)


def _attend_backward(form: _Form, kept: Any, cotangent: Array) -> tuple[Any]:
    given, sums, log_sums = kept
    return ((*_backward(form, given, sums, log_sums, cotangent), None, None),)


_attend.defvjp(_attend_forward, _attend_backward)


def _forward(
    form: _Form, given: _Given, *, keep: bool
) -> tuple[Array, Array | None, Array | None, Array | None]:
    """Returns the output [N, T, G·V], where `keep` R, as that (LASER), and log-sums [N, G, h, T],
    and the shifts.

    N: batch entries (by heads where those are transposed); G groups of h = form.heads heads; C and
    V: channels of a group. given: query [N, T, G·C], key [N, S, G·C], value [N, S, G·V], shifts
    [N, 2, G·V] (the constant, and 1 where it serves the max form; LASER without them chooses them
    itself), keys [B, 1, S], 1 where visible, to the end of the last block.
    """
    *_, value, shifts, _ = given
    chooses = form.laser and shifts is None
    wide = form.heads * form.wide
    entries, channels = value.shape[0], value.shape[-1]
    groups = channels // wide
    grid = (entries, groups, -(-form.queries // form.block_q), -(-form.keys // form.block_k))
    specs, arrays = _inputs(form, given, lambda i, j: (i, j))
    out = [jax.ShapeDtypeStruct((entries, form.queries, channels), form.dtype)]
    out_specs = [pl.BlockSpec((None, form.block_q, wide), lambda n, g, i, j: (n, i, g))]
    if keep and form.laser:
        out.append(jax.ShapeDtypeStruct((entries, form.queries, channels), jnp.float32))
        out_specs.append(out_specs[0])
    if keep:
        shape = (entries, groups, form.heads, grid[2] * form.block_q)
        out.append(jax.ShapeDtypeStruct(shape, jnp.float32))
        block = (None, None, form.heads, form.block_q)
        out_specs.append(pl.BlockSpec(block, lambda n, g, i, j: (n, g, 0, i)))
    if chooses:
        out.append(jax.ShapeDtypeStruct((entries, 2, channels), jnp.float32))
        out_specs.append(pl.BlockSpec((None, 2, wide), lambda n, g, i, j: (n, 0, g)))
    found = pl.pallas_call(
        functools.partial(_forward_kernel, form, grid[2:], keep, *_there(given)),
        grid=grid,
        in_specs=specs,
        out_specs=out_specs,
        out_shape=out,
        scratch_shapes=[
            pltpu.VMEM((form.heads, form.block_q, LANES), jnp.float32),
            pltpu.VMEM((form.heads, form.block_q, LANES), jnp.float32),
            pltpu.VMEM((form.block_q, wide), jnp.float32),
            pltpu.VMEM((form.block_k, wide), value.dtype),
        ],
        name="fused_forward",
        interpret=form.interpret,
        compiler_params=form.compiler_params,
    )(*arrays)
    output, *rest = found
    shifts = rest.pop() if chooses else shifts
    log_sums = rest.pop() if keep else None
    return output, rest.pop() if rest else None, log_sums, shifts


def _inputs(form: _Form, given: _Given, order: Any) -> tuple[list[Any], list[Array]]:
    """Returns block specifications and arrays; `order` gives (i, j) from the grid's last places."""
    query, key, value, shifts, keys = given

    def rows(n: Any, g: Any, *place: Any) -> Any:
        return n, order(*place)[0], g

    def columns(n: Any, g: Any, *place: Any) -> Any:
        return n, order(*place)[1], g

    specs = [
        pl.BlockSpec((None, form.block_q, form.heads * form.size), rows),
        pl.BlockSpec((None, form.block_k, form.heads * form.size), columns),
        pl.BlockSpec((None, form.block_k, form.heads * form.wide), columns),
    ]
    arrays = [query, key, value]
    if shifts is not None:
        whole = (None, 2, form.heads * form.wide)
        specs.append(pl.BlockSpec(whole, lambda n, g, *place: (n, 0, g)))
        arrays.append(shifts)
    if keys is not None:
        shape, copies = (None, 1, form.block_k), form.copies
        specs.append(pl.BlockSpec(shape, lambda n, g, *place: (n // copies, 0, order(*place)[1])))
        arrays.append(keys)
    return specs, arrays


def _there(given: _Given) -> tuple[bool, bool]:
    """Returns whether there are shifts, and keys."""
    return given[3] is not None, given[4] is not None


def _split(
    has_shifts: bool, has_keys: bool, references: tuple[Any, ...]
) -> tuple[Any, Any, list[Any]]:
    """Returns the references of shift and keys, None where there are none, and the rest."""
    rest = list(references)
    shifts = rest.pop(0) if has_shifts else None
    keys = rest.pop(0) if has_keys else None
    return shifts, keys, rest


def _forward_kernel(
    form: _Form,
    grid: tuple[int, int],
    keep: bool,
    has_shifts: bool,
    has_keys: bool,
    q: Any,
    k: Any,
    v: Any,
    *references: Any,
) -> None:
    shifts, keys, rest = _split(has_shifts, has_keys, references)
    *outputs, top, total, sums, exponential = rest
    chooses = form.laser and not has_shifts
    if chooses:
        shifts = outputs.pop()
    i, j = pl.program_id(2), pl.program_id(3)

    if form.laser:  # of one block of keys, once for all blocks of queries

        @pl.when((i == 0) | (grid[1] > 1))
        def prepare() -> None:
            if chooses:
                chosen = _choose(v[...].astype(jnp.float32), form.keys)
                shifts[:1, :] = chosen.constant
                shifts[1:, :] = chosen.is_max.astype(jnp.float32)
            found = fused_values.exponential(v[...], _shift(shifts), fused_values.expm1).astype(
                v.dtype
            )
            exponential[...] = _there_alone(found, j * form.block_k, form.keys, form.block_k)

    # All keys in one block: each row's maximum is known at once, nothing is carried on.
    alone = grid[1] == 1

    @pl.when(j == 0)
    def _() -> None:
        if not alone:
            top[...] = jnp.full_like(top, _HIDDEN)
            total[...] = jnp.zeros_like(total)
        if not alone or form.heads > 1:
            sums[...] = jnp.zeros_like(sums)

    def tile(a: Any, b: Any, on_diagonal: bool) -> None:
        origin = j * form.block_k + b.start
        values = exponential[b, :]
        if not form.laser:
            values = _there_alone(v[b, :], origin, form.keys, form.block_k)
        for head in range(form.heads):
            own = _lanes_of(form, head, q[a, :], form.size)
            logits, seen, _ = _logits(
                form, (own, k[b, :]), keys, (a, b), origin, on_diagonal, across=False
            )
            before = top[head, a, :1]
            highest = jnp.max(logits, axis=1, keepdims=True)
            if not alone:
                highest = jnp.maximum(before, highest)
            weights = _only(seen, jnp.exp(logits - highest))
            whole = jnp.sum(weights, axis=1, keepdims=True)
            summed = _product(weights.astype(v.dtype), values)
            if alone:
                whole = jnp.where(whole == 0, 1, whole)  # a row that sees nothing
                summed, highest = summed / whole, highest + jnp.log(whole)
            else:
                shrunk = jnp.exp(before - highest)
                whole, summed = shrunk * total[head, a, :1] + whole, shrunk * sums[a, :] + summed
                total[head, a, :] = jnp.broadcast_to(whole, (whole.shape[0], LANES))
            if keep or not alone:
                top[head, a, :] = jnp.broadcast_to(highest, (highest.shape[0], LANES))
            sums[a, :] = _lanes_of(form, head, summed, form.wide, sums[a, :])

    _tiles(form, grid, (i, j), tile)

    @pl.when(j == grid[1] - 1)
    def _() -> None:
        means = sums[...]
        for head in range(form.heads):
            log_sum = top[head, :, :1]
            if not alone:
                whole = total[head, :, :1]
                whole = jnp.where(whole == 0, 1, whole)
                log_sum = log_sum + jnp.log(whole)
                means = _lanes_of(form, head, sums[...] / whole, form.wide, means)
            if keep:
                outputs[-1][head : head + 1, :] = _as_row(log_sum)
        result = means
        if form.laser:
            result = fused_values.logarithm(means, _shift(shifts), outputs[0].dtype)
        outputs[0][...] = result.astype(outputs[0].dtype)
        if keep and form.laser:
            outputs[1][...] = means


def _choose(wide: Array, length: int) -> shift.Shift:
    """Returns the shift of values [n, V], float32, of which `length` rows are there."""
    there = jax.lax.broadcasted_iota(jnp.int32, wide.shape, 0) < length
    low = jnp.min(jnp.where(there, wide, jnp.inf), axis=0, keepdims=True)
    high = jnp.max(jnp.where(there, wide, -jnp.inf), axis=0, keepdims=True)
    total = jnp.sum(jnp.where(there, wide, 0), axis=0, keepdims=True)
    return shift.between(total / length, low, high, fused_values.SPAN)


def _lanes_of(
    form: _Form, head: int, array: Array, size: int, others: Array | float = 0.0
) -> Array:
    """Returns [n, form.heads·size] with the head's lanes of `array`, and others'."""
    if form.heads == 1:
        return array
    lane = jax.lax.broadcasted_iota(jnp.int32, array.shape, 1)
    of_head = (lane >= head * size) & (lane < (head + 1) * size)
    return jnp.where(of_head, array, jnp.asarray(others, array.dtype))


def _there_alone(array: Array, first: Any, length: int, block: int) -> Array:
    """Returns rows [n, …] from `first` on, 0 from `length` on: blocks of `block` may pass it."""
    if length % block == 0:
        return array
    row = jax.lax.broadcasted_iota(jnp.int32, array.shape, 0) + first
    return jnp.where(row < length, array, jnp.zeros_like(array))


def _backward(
    form: _Form,
    given: _Given,
    sums: Array,
    log_sums: Array,
    cotangent: Array,
) -> tuple[Array, Array, Array]:
    """Returns the gradients by query, key and value, in their dtypes; `given` as in `_forward`."""
    query, key, value, *_ = given
    size, wide = form.heads * form.size, form.heads * form.wide
    entries, groups = value.shape[0], value.shape[-1] // wide
    grid = (entries, groups, -(-form.keys // form.block_k), -(-form.queries // form.block_q))
    specs, arrays = _inputs(form, given, lambda j, i: (i, j))
    by_query = pl.BlockSpec((None, form.block_q, wide), lambda n, g, j, i: (n, i, g))
    of_rows = pl.BlockSpec((None, None, form.heads, form.block_q), lambda n, g, j, i: (n, g, 0, i))
    specs += [by_query, of_rows, by_query]
    # Keys of several blocks each give a part of dQ, summed afterwards.
    parts = query.dtype if grid[2] == 1 else jnp.float32
    query_bar, key_bar, value_bar = pl.pallas_call(
        functools.partial(_backward_kernel, form, (grid[3], grid[2]), *_there(given)),
        grid=grid,
        in_specs=specs,
        out_specs=[
            pl.BlockSpec((None, None, form.block_q, size), lambda n, g, j, i: (j, n, i, g)),
            pl.BlockSpec((None, form.block_k, size), lambda n, g, j, i: (n, j, g)),
            pl.BlockSpec((None, form.block_k, wide), lambda n, g, j, i: (n, j, g)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((grid[2], *query.shape), parts),
            jax.ShapeDtypeStruct(key.shape, key.dtype),
            jax.ShapeDtypeStruct(value.shape, value.dtype),
        ],
        scratch_shapes=[
            pltpu.VMEM((form.block_q, size), jnp.float32),
            pltpu.VMEM((form.block_k, size), jnp.float32),
            pltpu.VMEM((form.block_k, wide), jnp.float32),
            pltpu.VMEM((form.block_k, wide), jnp.float32),
        ],
        name="fused_backward",
        interpret=form.interpret,
        compiler_params=form.compiler_params,
    )(*arrays, sums, log_sums, cotangent)
    summed = query_bar[0] if grid[2] == 1 else jnp.sum(query_bar, axis=0).astype(query.dtype)
    return summed, key_bar, value_bar


def _backward_kernel(
    form: _Form,
    grid: tuple[int, int],
    has_shifts: bool,
    has_keys: bool,
    q: Any,
    k: Any,
    v: Any,
    *references: Any,
) -> None:
    shifts, keys, rest = _split(has_shifts, has_keys, references)
    sums, log_sums, cotangent, query_bar, key_bar, value_bar, *scratch = rest
    by_query, by_key, by_value, exponential = scratch
    j, i = pl.program_id(2), pl.program_id(3)

    @pl.when(i == 0)
    def _() -> None:
        by_key[...] = jnp.zeros_like(by_key)
        by_value[...] = jnp.zeros_like(by_value)
        if form.laser:
            found = fused_values.exponential(v[...], _shift(shifts), fused_values.expm1)
            exponential[...] = _there_alone(found, j * form.block_k, form.keys, form.block_k)

    by_query[...] = jnp.zeros_like(by_query)

    def tile(a: Any, b: Any, on_diagonal: bool) -> None:
        first, origin = i * form.block_q + a.start, j * form.block_k + b.start

        def rows(array: Any) -> Array:
            return _there_alone(array[a, :], first, form.queries, form.block_q)

        def columns(array: Any) -> Array:
            return _there_alone(array[b, :], origin, form.keys, form.block_k)

        queries, their_keys = rows(q), columns(k)
        values = exponential[b, :].astype(v.dtype) if form.laser else columns(v)
        means = rows(sums).astype(jnp.float32)
        inner = rows(cotangent).astype(jnp.float32)
        if form.laser:
            inner = inner * fused_values.logarithm_slope(means, _shift(shifts))
        narrow = inner.astype(queries.dtype)
        # Of G as it is multiplied, so that the terms of a row cancel.
        products = means * narrow.astype(jnp.float32)
        for head in range(form.heads):
            own, own_narrow = (
                _lanes_of(form, head, array, width)
                for array, width in ((queries, form.size), (narrow, form.wide))
            )
            logits, seen, slope = _logits(
                form, (own, their_keys), keys, (a, b), origin, on_diagonal, across=True
            )
            weights = _only(seen, jnp.exp(logits - log_sums[head : head + 1, a]))
            if form.queries % form.block_q:
                row = jax.lax.broadcasted_iota(jnp.int32, weights.shape, 1) + first
                weights = jnp.where(row < form.queries, weights, 0)
            delta = jnp.sum(_lanes_of(form, head, products, form.wide), axis=1, keepdims=True)
            by_value[b, :] += _product(weights.astype(queries.dtype), own_narrow)
            logit_bar = weights * (_product(values, own_narrow, transposed=True) - _as_row(delta))
            if slope is not None:
                logit_bar = logit_bar * slope
            logit_bar = (logit_bar * form.scale).astype(queries.dtype)
            by_key[b, :] += _product(logit_bar, own)
            found = _product(jnp.transpose(logit_bar), their_keys)
            by_query[a, :] += _lanes_of(form, head, found, form.size)

    _tiles(form, grid, (i, j), tile)
    query_bar[...] = by_query[...].astype(query_bar.dtype)

    @pl.when(i == grid[0] - 1)
    def _() -> None:
        key_bar[...] = by_key[...].astype(key_bar.dtype)
        found = by_value[...]
        if form.laser:
            found = found * fused_values.exponential_slope(exponential[...], _shift(shifts))
        value_bar[...] = found.astype(value_bar.dtype)


def _logits(
    form: _Form,
    tiles: tuple[Array, Array],
    keys: Any,
    place: tuple[Any, Any],
    origin: Any,
    on_diagonal: bool,
    across: bool,
) -> tuple[Array, Array | None, Array | None]:
    """Returns a tile's logits, hidden ones at _HIDDEN; which keys a mask leaves; the cap's slope.

    tiles: of queries and keys, at the slices `place` in the block, keys from `origin` on in the
    whole. across: keys along the first axis.
    """
    a, b = place
    first, second = reversed(tiles) if across else tiles
    logits = _product(first, second, transposed=True) * form.scale
    logits, slope = fused_values.capped(logits, form.cap)
    of_key = jax.lax.broadcasted_iota(jnp.int32, logits.shape, int(not across))
    seen = None
    if keys is not None:
        row = keys[:, b]
        seen = jnp.broadcast_to(_as_column(row) if across else row, logits.shape) > 0
        logits = jnp.where(seen, logits, _HIDDEN)
    elif form.keys % form.block_k:
        logits = jnp.where(of_key + origin < form.keys, logits, _HIDDEN)
    if on_diagonal:
        of_query = jax.lax.broadcasted_iota(jnp.int32, logits.shape, int(across)) + a.start
        logits = jnp.where(of_query >= of_key + b.start, logits, _HIDDEN)
    return logits, seen, slope


def _only(seen: Array | None, weights: Array) -> Array:
    """Returns the weights, 0 where a mask hides: rows that see nothing have exp(0) there."""
    return weights if seen is None else jnp.where(seen, weights, 0)


def _product(left: Array, right: Array, transposed: bool = False) -> Array:
    """Returns left·right, or left·rightᵀ, float32."""
    numbers = (((1,), (int(transposed),)), ((), ()))
    found: Array = jax.lax.dot_general(left, right, numbers, preferred_element_type=jnp.float32)
    return found


def _as_row(column: Array) -> Array:
    """Returns [1, n] for [n, 1]."""
    return jnp.transpose(jnp.broadcast_to(column, (column.shape[0], LANES)))[:1]


def _as_column(row: Array) -> Array:
    """Returns [n, 1] for [1, n]."""
    return jnp.transpose(jnp.broadcast_to(row, (LANES, row.shape[1])))[:, :1]


def _shift(shifts: Any) -> shift.Shift:
    return shift.Shift(shifts[:1, :], shifts[1:2, :] > 0.5)


def _tiles(form: _Form, grid: tuple[int, int], place: tuple[Any, Any], tile: Any) -> None:
    """Calls tile(rows, columns, on_diagonal) for all rows of a block, with the columns they see.

    place: the block's, among grid[0] of queries and grid[1] of keys; of one size where causal.
    """
    sizes = (_CAUSAL_TILE if form.is_causal else _TILE, 384, 256, 128)
    count = next((rows for rows in sizes if form.block_q % rows == 0), form.block_q)

    def some(diagonal: bool) -> None:
        for first in range(0, form.block_q, count):
            columns = first + count if diagonal else form.block_k
            tile(pl.ds(first, count), pl.ds(0, columns), diagonal)

    i, j = place
    if not form.is_causal or grid == (1, 1):
        some(form.is_causal)
        return
    pl.when(i > j)(functools.partial(some, False))
    pl.when(i == j)(functools.partial(some, True))
