"""Our own flash attention for TPUs, with LASER's exponential and logarithm inside (`fused`).

Written in Pallas, compiled by Mosaic; NOT yet run on a TPU: interpret mode holds its numbers to
those of our core, the real compiler its shapes, and no study takes it by default.

A library's kernel gives softmax(QKᵀ)·E for a matrix E that was written before it, and its result is
read again by the logarithm: in float32, since rounding in exp space is an absolute error of the
output (`attention.kernels.shift`). Here V is read once, in the inputs' dtype, and what comes out is

    standard    o = A·V
    LASER       o = c + log(1 + A·F),  F = expm1(V − c)     (max form: o = c + log(A·F), F = exp)

with c per channel as `shift.choose` has it: by a pass over V outside, or inside, where a block
holds all keys (of c4_lm's step that pass is 3 %). Blocks of logits live on the chip. Kept for the
backward pass: log Σ exp of each row, and R = A·F in float32 (standard: o). With G = dO·∂o/∂R, in
float32 up to the matrix unit:

    dV = F'∘(AᵀG),  F' = ∂F/∂V;   dL = A∘(G·Fᵀ − δ),  δ = Σ_d R∘G;   dQ = s·dL·K,  dK = s·dLᵀ·Q

and, with +softcap, dL times its derivative. Weights are rounded to the inputs' dtype before a
product, as our core does; the scale is applied to float32 logits, so queries are rounded once less
than under `splash`.

Blocks of queries by blocks of keys, _TILE queries at a time; of blocks above the diagonal of a
causal problem, and of tiles on it what lies right of it, nothing is computed. Lengths are padded
with hidden keys.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attention.kernels import accelerated, masks, shift
from attention.kernels.accelerated import LANES
from attention.kernels.inputs import Problem
from attention.records import Kernel

Array = jax.Array
# Query, key, value, shifts and keys, as `_forward` says.
_Given = tuple[Array, Array, Array, Array | None, Array | None]

# Its backward pass divides by 1 + R, not by exp(max − c): as far as float32 reaches.
SPAN = 75.0
_TILE = 512
_HIDDEN = -1e30
_SMALL = 0.35
_GRID = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary"))
# Of v5e's 16 MB of scoped memory, what blocks may take; the rest is a tile's and the compiler's.
_SCOPED_BYTES = 6 << 20


class _Form(NamedTuple):
    """What is compiled in: see `_forward` for the arguments."""

    laser: bool
    is_causal: bool
    scale: float
    cap: float | None
    dtype: jnp.dtype
    interpret: bool


def weighted_sum(problem: Problem, value: Array, *, interpret: bool = False) -> Array:
    """Returns A·V for value [..., S, H, Dv], [..., T, H, Dv] in its dtype.

    interpret: run the kernel by XLA, on any platform, for tests. Raises ValueError for what the
    kernel lacks, and where it is not to run on a TPU.
    """
    return _run(problem, value, False, interpret)


def log_mean_exp(problem: Problem, value: Array, *, interpret: bool = False) -> Array:
    """Returns log(A·exp(V)) for value [..., S, H, Dv], [..., T, H, Dv] in its dtype.

    Rows that see nothing return 0. Raises as `weighted_sum`.
    """
    output = _run(problem, value, True, interpret)
    return output if problem.masks.rows is None else jnp.where(problem.masks.rows, output, 0)


def _run(problem: Problem, value: Array, laser: bool, interpret: bool) -> Array:
    accelerated.refuse("fused", problem, value, interpret)
    form = _Form(
        laser=laser,
        is_causal=problem.is_causal,
        scale=problem.scale,
        cap=accelerated.soft_cap("fused", problem),
        dtype=value.dtype,
        interpret=interpret,
    )
    narrow = value.astype(problem.query.dtype)
    arrays = {"query": problem.query, "key": problem.key, "value": narrow}
    keys = accelerated.visible_keys("fused", problem)
    queries, length = problem.query.shape[-3], value.shape[-3]
    earlier = masks.of_causality(queries, length).keys if problem.is_causal else None
    if earlier is not None:
        earlier = jnp.broadcast_to(earlier[:, 0, 0], (*value.shape[:-3], length))
        keys = earlier if keys is None else keys & earlier
    if keys is not None:
        arrays["keys"] = keys
    return accelerated.on_devices("fused", functools.partial(_on_one_device, form), problem, arrays)


def _on_one_device(form: _Form, arrays: dict[str, Array]) -> Array:
    """Returns the output [..., T, H, Dv]; see `_run` for the arrays."""
    *batch, queries, heads, size = arrays["query"].shape
    length, entries = arrays["key"].shape[-3], math.prod(batch)
    most = _most_rows(size, arrays["value"])
    # Where causal, blocks of both begin together, and the diagonal runs through their corners.
    longest = max(queries, length) if form.is_causal else 0
    block_q, block_k = (accelerated.divided(longest or n, most)[0] for n in (queries, length))
    rows, columns = -(-queries // block_q) * block_q, -(-length // block_k) * block_k
    query, key, value = (
        jnp.swapaxes(arrays[name].reshape((entries, *arrays[name].shape[-3:])), 1, 2)
        for name in ("query", "key", "value")
    )
    seen = arrays["keys"].reshape((entries, 1, length, 1)) if "keys" in arrays else None
    shifts = None
    # Where a block holds all keys, and no others, the kernel sees what the shift is chosen from.
    if form.laser and not (seen is None and block_k == columns == length):
        chosen = shift.choose(
            value[..., None, :].astype(jnp.float32),
            None if seen is None else seen[..., None],
            SPAN,
        )
        constant = chosen.constant[..., 0, :]
        shifts = jnp.concatenate([constant, chosen.is_max[..., 0, :].astype(jnp.float32)], axis=-2)
        if seen is not None:  # 0 times ∞ would be NaN
            value = jnp.where(seen, value, constant.astype(value.dtype))
    if seen is None and columns > length and not (form.is_causal and queries <= length):
        seen = jnp.ones((entries, 1, length, 1), bool)
    keys = None
    if seen is not None:
        keys = seen[..., 0].astype(jnp.float32)
        keys = jnp.pad(keys, ((0, 0), (0, 0), (0, columns - length)))
    lengthened = _lengthened(query, rows), _lengthened(key, columns), _lengthened(value, columns)
    output = _attend(form, (block_q, block_k), (*lengthened, shifts, keys))[:, :, :queries]
    return jnp.swapaxes(output, 1, 2).reshape((*batch, queries, heads, -1))


def _lengthened(array: Array, length: int) -> Array:
    """Returns [B, H, length, D], padded by the last row: a hidden value far off would overflow."""
    more = length - array.shape[2]
    if not more:
        return array
    return jnp.pad(array, ((0, 0), (0, 0), (0, more), (0, 0)), mode="edge")


def _most_rows(size: int, value: Array) -> int:
    """Returns the most rows of a block whose arrays fit on the chip, twice each: 1024, 512 or 256.

    Backward: Q, K, V, dO in their dtype, R and the sums of dK and dV in float32, dQ.
    """
    wide, narrow = (-(-one // LANES) * LANES for one in (value.shape[-1], size))
    item = value.dtype.itemsize
    row = (
        2 * item * 2 * (narrow + wide)
        + 2 * 4 * wide
        + (4 + 2 * item) * (narrow + wide)
        + 8 * narrow
    )
    fitting = [rows for rows in (1024, 512) if rows * row <= _SCOPED_BYTES]
    return fitting[0] if fitting else 256


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(form: _Form, blocks: tuple[int, int], given: _Given) -> Array:
    return _forward(form, blocks, given, keep=False)[0]


def _attend_forward(form: _Form, blocks: tuple[int, int], given: _Given) -> tuple[Array, Any]:
    output, sums, log_sums, shifts = _forward(form, blocks, given, keep=True)
    query, key, value, _, keys = given
    return output, ((query, key, value, shifts, keys), sums if form.laser else output, log_sums)


def _attend_backward(
    form: _Form, blocks: tuple[int, int], kept: Any, cotangent: Array
) -> tuple[Any]:
    given, sums, log_sums = kept
    return ((*_backward(form, blocks, given, sums, log_sums, cotangent), None, None),)


_attend.defvjp(_attend_forward, _attend_backward)


def _forward(
    form: _Form, blocks: tuple[int, int], given: _Given, *, keep: bool
) -> tuple[Array, Array | None, Array | None, Array | None]:
    """Returns the output [B, H, T, Dv], where `keep` R, as that (LASER), and log-sums [B, H, 1, T],
    and the shifts.

    given: query [B, H, T, D], key [B, H, S, D], value [B, H, S, Dv], shifts [B, H, 2, Dv] (the
    constant, and 1 where it serves the max form; LASER without them chooses them itself), keys
    [B, 1, S], 1 where visible.
    """
    query, _, value, shifts, _ = given
    chooses = form.laser and shifts is None
    batch, heads, rows, _ = query.shape
    columns, wide = value.shape[-2:]
    block_q, block_k = blocks
    grid = (batch, heads, rows // block_q, columns // block_k)
    specs, arrays = _inputs(blocks, given, lambda i, j: (i, j))
    of_channels = pl.BlockSpec((None, None, 2, wide), lambda n, h, i, j: (n, h, 0, 0))
    out = [jax.ShapeDtypeStruct((batch, heads, rows, wide), form.dtype)]
    out_specs = [pl.BlockSpec((None, None, block_q, wide), lambda n, h, i, j: (n, h, i, 0))]
    if keep and form.laser:
        out.append(jax.ShapeDtypeStruct((batch, heads, rows, wide), jnp.float32))
        out_specs.append(out_specs[0])
    if keep:
        out.append(jax.ShapeDtypeStruct((batch, heads, 1, rows), jnp.float32))
        out_specs.append(pl.BlockSpec((None, None, 1, block_q), lambda n, h, i, j: (n, h, 0, i)))
    if chooses:
        out.append(jax.ShapeDtypeStruct((batch, heads, 2, wide), jnp.float32))
        out_specs.append(of_channels)
    found = pl.pallas_call(
        functools.partial(_forward_kernel, form, grid[2:], keep, *_there(given)),
        grid=grid,
        in_specs=specs,
        out_specs=out_specs,
        out_shape=out,
        scratch_shapes=[
            pltpu.VMEM((block_q, LANES), jnp.float32),
            pltpu.VMEM((block_q, LANES), jnp.float32),
            pltpu.VMEM((block_q, wide), jnp.float32),
            pltpu.VMEM((block_k, wide), value.dtype),
        ],
        name="fused_forward",
        interpret=form.interpret,
        compiler_params=_GRID,
    )(*arrays)
    output, *rest = found
    shifts = rest.pop() if chooses else shifts
    log_sums = rest.pop() if keep else None
    return output, rest.pop() if rest else None, log_sums, shifts


def _inputs(blocks: tuple[int, int], given: _Given, order: Any) -> tuple[list[Any], list[Array]]:
    """Returns block specifications and arrays; `order` gives (i, j) from the grid's last places."""
    query, key, value, shifts, keys = given
    block_q, block_k = blocks

    def rows(n: Any, h: Any, *place: Any) -> Any:
        return n, h, order(*place)[0], 0

    def columns(n: Any, h: Any, *place: Any) -> Any:
        return n, h, order(*place)[1], 0

    specs = [
        pl.BlockSpec((None, None, block_q, query.shape[-1]), rows),
        pl.BlockSpec((None, None, block_k, key.shape[-1]), columns),
        pl.BlockSpec((None, None, block_k, value.shape[-1]), columns),
    ]
    arrays = [query, key, value]
    if shifts is not None:
        whole = (None, None, 2, shifts.shape[-1])
        specs.append(pl.BlockSpec(whole, lambda n, h, *place: (n, h, 0, 0)))
        arrays.append(shifts)
    if keys is not None:
        shape = (None, 1, block_k)
        specs.append(pl.BlockSpec(shape, lambda n, h, *place: (n, 0, order(*place)[1])))
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
    values = v
    if form.laser:  # of one block of keys, once for all blocks of queries
        values = exponential

        @pl.when((i == 0) | (grid[1] > 1))
        def _() -> None:
            if chooses:
                wide = v[...].astype(jnp.float32)
                low, high = (end(wide, axis=0, keepdims=True) for end in (jnp.min, jnp.max))
                mean = jnp.sum(wide, axis=0, keepdims=True) / wide.shape[0]
                chosen = shift.between(mean, low, high, SPAN)
                shifts[:1, :] = chosen.constant
                shifts[1:, :] = chosen.is_max.astype(jnp.float32)
            exponential[...] = _exponential(v[...], shifts).astype(v.dtype)

    @pl.when(j == 0)
    def _() -> None:
        top[...] = jnp.full_like(top, _HIDDEN)
        total[...] = jnp.zeros_like(total)
        sums[...] = jnp.zeros_like(sums)

    def tile(a: Any, b: Any, on_diagonal: bool) -> None:
        logits, seen, _ = _logits(form, q, k, keys, (a, b), on_diagonal, across=False)
        before = top[a, :1]
        highest = jnp.maximum(before, jnp.max(logits, axis=1, keepdims=True))
        weights = _only(seen, jnp.exp(logits - highest))
        shrunk = jnp.exp(before - highest)
        top[a, :] = jnp.broadcast_to(highest, (highest.shape[0], LANES))
        grown = shrunk * total[a, :1] + jnp.sum(weights, axis=1, keepdims=True)
        total[a, :] = jnp.broadcast_to(grown, (grown.shape[0], LANES))
        sums[a, :] = shrunk * sums[a, :] + _product(weights.astype(v.dtype), values[b, :])

    _tiles(form, grid, (i, j), (q.shape[0], k.shape[0]), tile)

    @pl.when(j == grid[1] - 1)
    def _() -> None:
        whole = total[:, :1]
        whole = jnp.where(whole == 0, 1, whole)  # a row that sees nothing
        means = sums[...] / whole
        result = means
        if form.laser:
            chosen = _shift(shifts)
            precise = outputs[0].dtype == jnp.float32
            result = shift.logarithm(means, None, chosen, precise=precise)
        outputs[0][...] = result.astype(outputs[0].dtype)
        if keep:
            if form.laser:
                outputs[1][...] = means
            outputs[-1][...] = _as_row(top[:, :1] + jnp.log(whole))


def _backward(
    form: _Form,
    blocks: tuple[int, int],
    given: _Given,
    sums: Array,
    log_sums: Array,
    cotangent: Array,
) -> tuple[Array, Array, Array]:
    """Returns the gradients by query, key and value, in their dtypes; `given` as in `_forward`."""
    query, key, value, *_ = given
    batch, heads, rows, size = query.shape
    columns, wide = value.shape[-2:]
    block_q, block_k = blocks
    grid = (batch, heads, columns // block_k, rows // block_q)
    specs, arrays = _inputs(blocks, given, lambda j, i: (i, j))
    by_query = pl.BlockSpec((None, None, block_q, wide), lambda n, h, j, i: (n, h, i, 0))
    of_rows = pl.BlockSpec((None, None, 1, block_q), lambda n, h, j, i: (n, h, 0, i))
    specs += [by_query, of_rows, by_query]
    # Keys of several blocks each give a part of dQ, summed afterwards.
    parts = query.dtype if grid[2] == 1 else jnp.float32
    query_bar, key_bar, value_bar = pl.pallas_call(
        functools.partial(_backward_kernel, form, (grid[3], grid[2]), *_there(given)),
        grid=grid,
        in_specs=specs,
        out_specs=[
            pl.BlockSpec((None, None, None, block_q, size), lambda n, h, j, i: (j, n, h, i, 0)),
            pl.BlockSpec((None, None, block_k, size), lambda n, h, j, i: (n, h, j, 0)),
            pl.BlockSpec((None, None, block_k, wide), lambda n, h, j, i: (n, h, j, 0)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((grid[2], *query.shape), parts),
            jax.ShapeDtypeStruct(key.shape, key.dtype),
            jax.ShapeDtypeStruct(value.shape, value.dtype),
        ],
        scratch_shapes=[
            pltpu.VMEM((block_q, size), jnp.float32),
            pltpu.VMEM((block_k, size), jnp.float32),
            pltpu.VMEM((block_k, wide), jnp.float32),
            pltpu.VMEM((block_k, wide), jnp.float32),
        ],
        name="fused_backward",
        interpret=form.interpret,
        compiler_params=_GRID,
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
            exponential[...] = _exponential(v[...], shifts)

    by_query[...] = jnp.zeros_like(by_query)

    def tile(a: Any, b: Any, on_diagonal: bool) -> None:
        queries = q[a, :]
        values = exponential[b, :].astype(v.dtype) if form.laser else v[b, :]
        logits, seen, slope = _logits(form, q, k, keys, (a, b), on_diagonal, across=True)
        weights = _only(seen, jnp.exp(logits - log_sums[:, a]))
        means = sums[a, :].astype(jnp.float32)
        inner = cotangent[a, :].astype(jnp.float32)
        if form.laser:
            inner = inner * _logarithm_slope(means, shifts)
        narrow = inner.astype(queries.dtype)
        # Of G as it is multiplied, so that the terms of a row cancel.
        delta = jnp.sum(means * narrow.astype(jnp.float32), axis=1, keepdims=True)
        by_value[b, :] += _product(weights.astype(queries.dtype), narrow)
        logit_bar = weights * (_product(values, narrow, transposed=True) - _as_row(delta))
        if slope is not None:
            logit_bar = logit_bar * slope
        logit_bar = (logit_bar * form.scale).astype(queries.dtype)
        by_key[b, :] += _product(logit_bar, queries)
        by_query[a, :] += _product(jnp.transpose(logit_bar), k[b, :])

    _tiles(form, grid, (i, j), (q.shape[0], k.shape[0]), tile)
    query_bar[...] = by_query[...].astype(query_bar.dtype)

    @pl.when(i == grid[0] - 1)
    def _() -> None:
        key_bar[...] = by_key[...].astype(key_bar.dtype)
        found = by_value[...]
        if form.laser:
            found = found * (exponential[...] + jnp.where(_shift(shifts).is_max, 0.0, 1.0))
        value_bar[...] = found.astype(value_bar.dtype)


def _logits(
    form: _Form, q: Any, k: Any, keys: Any, place: tuple[Any, Any], on_diagonal: bool, across: bool
) -> tuple[Array, Array | None, Array | None]:
    """Returns a tile's logits, hidden ones at _HIDDEN; which keys a mask leaves; the cap's slope.

    place: slices of queries and keys in the block. across: keys along the first axis.
    """
    a, b = place
    first, second = (k[b, :], q[a, :]) if across else (q[a, :], k[b, :])
    logits = _product(first, second, transposed=True) * form.scale
    slope = None
    if form.cap is not None:
        bent = jnp.tanh(logits / form.cap)
        logits, slope = form.cap * bent, 1 - bent * bent
    seen = None
    if keys is not None:
        row = keys[:, b]
        seen = jnp.broadcast_to(_as_column(row) if across else row, logits.shape) > 0
        logits = jnp.where(seen, logits, _HIDDEN)
    if on_diagonal:
        of_query = jax.lax.broadcasted_iota(jnp.int32, logits.shape, int(across)) + a.start
        of_key = jax.lax.broadcasted_iota(jnp.int32, logits.shape, int(not across)) + b.start
        logits = jnp.where(of_query >= of_key, logits, _HIDDEN)
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


def _exponential(value: Array, shifts: Any) -> Array:
    """Returns F, float32, of values [n, Dv]; F' is F where the max form serves, else F + 1."""
    precise, wide = value.dtype == jnp.float32, value.astype(jnp.float32)
    return shift.exponentiate(wide, None, _shift(shifts), precise=precise, expm1=_expm1)


def _expm1(x: Array) -> Array:
    """Returns exp(x) − 1, which Mosaic has not: within 3e-7, by Taylor's series below 0.35."""
    small = jnp.clip(x, -_SMALL, _SMALL)
    series = jnp.full_like(x, 1 / math.factorial(7))
    for power in range(6, 0, -1):
        series = series * small + 1 / math.factorial(power)
    return jnp.where(jnp.abs(x) < _SMALL, series * small, jnp.exp(x) - 1)


def _logarithm_slope(means: Array, shifts: Any) -> Array:
    """Returns ∂o/∂R, [n, Dv]."""
    return 1 / jnp.where(_shift(shifts).is_max, jnp.maximum(means, shift.SMALLEST), 1 + means)


def _tiles(
    form: _Form, grid: tuple[int, int], place: tuple[Any, Any], sizes: tuple[int, int], tile: Any
) -> None:
    """Calls tile(rows, columns, on_diagonal) for all rows of a block, with the columns they see.

    place: the block's, among grid[0] of queries and grid[1] of keys; of one size where causal.
    """
    count = _tile(sizes[0])

    def some(diagonal: bool) -> None:
        for first in range(0, sizes[0], count):
            columns = first + count if diagonal else sizes[1]
            tile(pl.ds(first, count), pl.ds(0, columns), diagonal)

    i, j = place
    if not form.is_causal or grid == (1, 1):
        some(form.is_causal)
        return
    pl.when(i > j)(functools.partial(some, False))
    pl.when(i == j)(functools.partial(some, True))


def _tile(size: int) -> int:
    """Returns the rows of a tile: at most _TILE, dividing the block."""
    return next(rows for rows in (_TILE, 384, 256, 128) if size % rows == 0)


KERNEL = Kernel(weighted_sum, span=SPAN, float32_sums=True, log_mean_exp=log_mean_exp)
