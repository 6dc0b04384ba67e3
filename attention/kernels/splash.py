"""Splash attention on TPUs: JAX's Pallas kernel, which never writes [B, H, T, S] (`splash`).

jax.experimental.pallas.ops.tpu.splash_attention (read in JAX 0.10.2): blocks of logits live on the
chip, forward and backward. It knows a softmax of logits, soft-capped as `+softcap` does it, that
sees all keys, earlier ones, or those of its segment. What it lacks is refused by name: a bias (so
sinks, too), a mask that differs by query or head, attention dropout.

Numerics: logits and softmax in float32. The library returns sums in the query's dtype, so the query
goes in as float32 where the value is float32 beside bfloat16 (LASER and differential mixers hand it
so): their sums come out in float32, their gradients on the value, too. The standard mixer's output
is rounded once, as it would be anyway, but its backward pass uses it rounded. The library takes no
scale; QKᵀ's goes onto the query, rounded to the inputs' dtype: a TPU's matrix unit would round a
float32 query, too. That unit also rounds weights and value to bfloat16, as our own core does;
interpret mode, where tests hold the numerics, does not.

Devices: XLA cannot divide a kernel, so `jax.shard_map` does, as `Problem.sharding` says.

Cost by the compiler for TPU v5e, (8, 1024, 8, 128) bfloat16, causal, as bundles × grid steps at
1.5 GHz, forward + backward, by (queries, keys, keys at a time) of a block:

    fused backward                         0.71 ms (1024, 1024, 512), 0.72 (1024, 1024, 1024),
                                           0.77 (512, 1024, 512), 0.88 (512, 512, 512)
    one for dQ, one for dK and dV          0.92 ms (1024, 1024, 512), 1.13 (512, 512, 512)
    fused, float32 sums (LASER)            0.74 ms (1024, 1024, 512)

The own core's attention is 6.95 ms there, and reads and writes ten times as many bytes.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as library,
)
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as library_masks
from jax.sharding import NamedSharding, PartitionSpec

from attention import records, table
from attention.kernels.core import SOFTMAX
from attention.kernels.inputs import Problem
from attention.records import Kernel

Array = jax.Array

# Its backward pass multiplies exp(max − c) by the raw cotangent, as the library kernels do.
SPAN = 60.0
_LANES = 128


def weighted_sum(problem: Problem, value: Array, *, interpret: bool = False) -> Array:
    """Returns the weighted sum of value [..., S, H, Dv], [..., T, H, Dv] in the value's dtype.

    interpret: run the kernel by XLA, on any platform, for tests. Raises ValueError for what the
    kernel lacks, and where it is not to run on a TPU.
    """
    _refuse_what_splash_lacks(problem)
    table.check_kernel(
        "splash",
        platform="tpu" if interpret else problem.platform,
        dtype=problem.query.dtype.name,
        head_size=problem.query.shape[-1],
        value_size=value.shape[-1],
    )
    _check_matmul_precision(problem.query.dtype)
    local = functools.partial(
        _on_one_device,
        is_causal=problem.is_causal,
        soft_cap=_soft_cap(problem),
        interpret=interpret,
    )
    wide = problem.query.astype(jnp.float32) * problem.scale
    query = wide.astype(problem.query.dtype).astype(value.dtype)
    arrays = [query, problem.key, value.astype(problem.key.dtype)]
    keys = _visible_keys(problem)
    if keys is not None:
        arrays.append(keys)
    if problem.sharding is None or problem.sharding.mesh.size == 1:
        return local(*arrays)
    spec = _spec(problem.sharding, query.shape)
    specs = (spec, spec, spec, PartitionSpec(*spec[:-3], None))[: len(arrays)]
    mesh = problem.sharding.mesh
    # pallas_call does not say over which axes of the mesh its results vary.
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=spec, check_vma=False)(*arrays)


def _spec(sharding: NamedSharding, shape: tuple[int, ...]) -> PartitionSpec:
    """Returns how an array [..., T, H, D] is divided, without the axes that do not divide it.

    Those compute the same, as where a model is initialised with one example. Raises ValueError
    for a sharding of another rank, or one that divides T or D.
    """
    spec = (*sharding.spec, *(None,) * (len(shape) - len(sharding.spec)))
    if len(spec) != len(shape) or spec[-3] is not None or spec[-1] is not None:
        raise ValueError(
            f"kernel='splash' is divided by batch and heads, [..., T, H, D] of shape {shape} by "
            f"PartitionSpec(..., None, heads, None), not by {sharding.spec}"
        )
    kept = []
    for size, axes in zip(shape, spec, strict=True):
        names = (axes,) if isinstance(axes, str) else axes or ()
        parts = math.prod(sharding.mesh.shape[name] for name in names)
        kept.append(None if size % parts else axes)
    return PartitionSpec(*kept)


def _on_one_device(
    query: Array,
    key: Array,
    value: Array,
    keys: Array | None = None,
    *,
    is_causal: bool,
    soft_cap: float | None,
    interpret: bool,
) -> Array:
    """Returns the sums [..., T, H, Dv]; the query is scaled, `keys` [..., S] True where visible."""
    *batch, queries, heads, size = query.shape
    length = key.shape[-3]
    blocks, queries_there, keys_there = _blocks(queries, length, size, value)

    def by_head(array: Array, padded: int) -> Array:
        array = array.reshape((math.prod(batch), *array.shape[-3:]))
        array = jnp.pad(array, ((0, 0), (0, padded - array.shape[1]), (0, 0), (0, 0)))
        return jnp.swapaxes(array, 1, 2)

    shape = (queries_there, keys_there)
    mask = library_masks.CausalMask(shape) if is_causal else library_masks.FullMask(shape)
    kernel = library.make_splash_mha(
        library_masks.MultiHeadMask([mask] * heads),
        block_sizes=blocks,
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=soft_cap,
        interpret=interpret,
    )
    # A query of segment 1 sees no key of segment 0. Causality hides the padding by itself.
    if keys is not None:
        keys = keys.reshape(math.prod(batch), length)
        segments = jnp.pad(keys.astype(jnp.int32), ((0, 0), (0, keys_there - length)))
    elif keys_there > length and not (is_causal and queries <= length):
        segments = jnp.where(jnp.arange(keys_there) < length, 1, 0)
    else:
        segments = None

    def of_entry(query: Array, key: Array, value: Array, segments: Array | None) -> Array:
        if segments is None:
            ids = None
        else:
            ids = library.SegmentIds(jnp.ones(queries_there, jnp.int32), segments)
        sums: Array = kernel(query, key, value, ids)
        return sums

    sums = jax.vmap(of_entry, in_axes=(0, 0, 0, None if keys is None else 0))(
        by_head(query, queries_there),
        by_head(key, keys_there),
        by_head(value, keys_there),
        segments,
    )
    sums = jnp.swapaxes(sums, 1, 2)[:, :queries]
    return sums.reshape((*batch, queries, heads, value.shape[-1]))


def _blocks(
    queries: int, keys: int, size: int, value: Array
) -> tuple[library.BlockSizes, int, int]:
    """Returns block sizes, and the padded numbers of queries and keys."""
    most = _largest_block(size, value)
    (rows, all_rows), (columns, all_columns) = _divided(queries, most), _divided(keys, most)
    at_once = columns // 2 if columns > 512 and columns % (2 * _LANES) == 0 else columns
    blocks = library.BlockSizes(
        block_q=rows,
        block_kv=columns,
        block_kv_compute=at_once,
        block_q_dkv=rows,
        block_kv_dkv=columns,
        block_kv_dkv_compute=at_once,
        use_fused_bwd_kernel=True,
    )
    return blocks, all_rows, all_columns


def _divided(length: int, most: int) -> tuple[int, int]:
    """Returns the size of as few equal blocks as hold `length`, and what they hold together."""
    count = -(-length // most)
    block = -(-length // (count * _LANES)) * _LANES
    return block, count * block


def _largest_block(size: int, value: Array) -> int:
    """Returns the most rows of a block that fit on the chip (v5e's 16 MB of scoped memory).

    Compiled, forward and backward: 1024 at sizes (128, 256) float32 and (256, 256) bfloat16, 512
    at (720, 720) float32, 256 at (720, 1440) float32; 1024 does not fit at (256, 256) float32.
    """
    lanes = sum(-(-one // _LANES) * _LANES for one in (size, value.shape[-1]))
    row = lanes * value.dtype.itemsize
    return 1024 if row <= 1536 else 512 if row <= 6144 else 256


def _visible_keys(problem: Problem) -> Array | None:
    """Returns the mask's keys, bool [..., S], None where there is no mask.

    Raises ValueError for a mask that differs by query or head: those are no segments.
    """
    if problem.mask is None:
        return None
    rank = problem.query.ndim
    mask = problem.mask.reshape((1,) * (rank - problem.mask.ndim) + problem.mask.shape)
    if mask.shape[-3:-1] != (1, 1):
        raise ValueError(
            f"kernel='splash' hides keys of a batch entry, not of a query or head: its mask has "
            f"shape [..., 1, 1, S], and the one given has {problem.mask.shape}. Give causality as "
            "is_causal=True, or use kernel='xla' or kernel='jax_xla'"
        )
    shape = (*problem.query.shape[:-3], problem.key.shape[-3])
    return jnp.broadcast_to(mask[..., 0, 0, :].astype(bool), shape)


def _soft_cap(problem: Problem) -> float | None:
    """Returns the cap of `+softcap`, which splash computes by the same formula in the same place.

    Raises ValueError for any other function of the logits.
    """
    if not problem.logits:
        return None
    known = records.modifier("softcap").apply
    if [one.function for one in problem.logits] != [known]:
        raise ValueError(
            "kernel='splash' knows one function of logits, that of +softcap; use kernel='xla'"
        )
    cap: float = dict(problem.logits[0].hyperparameters)["cap"]
    return cap


def _refuse_what_splash_lacks(problem: Problem) -> None:
    """Raises ValueError for what the library's kernel has no argument for."""
    if problem.weighting is not SOFTMAX:
        raise ValueError("kernel='splash' knows the softmax alone; use kernel='xla'")
    if problem.bias is not None:
        raise ValueError(
            "kernel='splash' takes no bias; use kernel='xla' or kernel='jax_xla', or hide keys by "
            "a mask of shape [..., 1, 1, S]"
        )
    if problem.dropout is not None:
        raise ValueError("kernel='splash' has no attention dropout; use kernel='xla'")
    if problem.precision is not None:
        raise ValueError(
            f"kernel='splash' takes no matmul precision (got {problem.precision!r}); use "
            "kernel='xla', or set jax_default_matmul_precision"
        )


def _check_matmul_precision(dtype: jnp.dtype) -> None:
    """Raises ValueError for a default precision that the TPU's kernel compiler does not know."""
    given = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009  (mypy)
    wide = ("highest", "float32")
    known = (None, "default", "bfloat16", *(wide if dtype == jnp.float32 else ()))
    if given not in known:
        raise ValueError(
            f"kernel='splash' cannot multiply {dtype} at jax_default_matmul_precision={given!r}; "
            f"set {', '.join(map(repr, known[1:]))} or none, or use kernel='xla'"
        )


# A scale that is no power of two rounds the queries once more, which rows with a peak notice (worst
# of 4 seeds at (256, 2, 128) and qs 4: output 4.0e-3, dQ 5.9e-3; 2.4e-3 and 3.4e-3 at qs 1). Where
# it is one (head sizes 64 and 256), the library's limits hold: 1.7e-3, 4.2e-3; LASER's dQ 2.5e-3.
KERNEL = Kernel(weighted_sum, span=SPAN, float32_sums=False, bfloat16_allowance=1.5)
