"""Splash attention on TPUs: JAX's Pallas kernel, which never writes [B, H, T, S] (`splash`).

jax.experimental.pallas.ops.tpu.splash_attention, as read in JAX 0.10.2. Blocks of logits live on
the chip, forward and backward. The kernel computes a softmax of logits, soft-capped as by
`+softcap`, over all keys, earlier ones, those of a window, or those of a segment. It refuses by
name a bias (so sinks, too), any other mask that differs by query or head, and attention dropout.

Numerics: logits and softmax are float32. The library returns sums in the query's dtype. If the
value is float32 beside bfloat16 (LASER and differential mechanisms), the query becomes float32, so
that the sums are. The value itself is rounded, as in our own core and in a TPU's matrix unit. That
reads less: 507.9 instead of 512.8 ms for a step of c4_lm_2b. The standard mechanism's output is
rounded once, as always, but the library's backward pass uses the rounded output. The library takes
no scale, so the query is multiplied by it and rounded to the inputs' dtype; the matrix unit would
round a float32 query, too. The library also rounds weights to bfloat16, which interpret mode does
not do. The numerics are tested in interpret mode.

Cost by the compiler for TPU v5e, (8, 1024, 8, 128) bfloat16, causal, as bundles × grid steps at
1.5 GHz, forward + backward, by (queries, keys, keys at a time) of a block:

    fused backward                         0.71 ms (1024, 1024, 512), 0.72 (1024, 1024, 1024),
                                           0.77 (512, 1024, 512), 0.88 (512, 512, 512)
    one for dQ, one for dK and dV          0.92 ms (1024, 1024, 512), 1.13 (512, 512, 512)
    fused, float32 sums (LASER)            0.74 ms (1024, 1024, 512)

If keys are several blocks, the fused backward pass writes dQ in float32 once per block, and XLA
sums the parts. In that case we use the library's kernel for dQ: 482.4 instead of 490.8 ms for a
step of c4_lm_2b (heads of 512, two blocks). Float32 sums of bfloat16 keep the fused one: the other
rounds the cotangent, which takes the error of gradients from 3.1e-3 to 5.3e-3, and saves no time.

Our own core's attention takes 6.95 ms there, and reads and writes ten times as many bytes.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as library,
)
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as library_masks

from attention.kernels import accelerated
from attention.kernels.inputs import Problem
from attention.masks import Mask
from attention.records import Kernel

# As in other libraries' kernels, the backward pass multiplies exp(max − c) by the raw cotangent.
SPAN = 60.0
# The first JAX whose kernel takes values of any size.
SMALL_HEADS = (0, 7, 1)


def weighted_sum(problem: Problem, value: jax.Array, *, interpret: str = "") -> jax.Array:
    """Returns the weighted sum of value [..., S, H, Dv], [..., T, H, Dv] in the value's dtype.

    interpret: 'tpu' to have XLA run the kernel on any platform, for tests. Raises ValueError for
    what the kernel lacks, and without a TPU.
    """
    accelerated.refuse("splash", problem, value, interpret)
    if jax.__version_info__ < SMALL_HEADS and value.shape[-1] % accelerated.LANES:
        raise ValueError(
            f"kernel='splash' of JAX {jax.__version__} needs values of a multiple of 128 channels, "
            f"and these have {value.shape[-1]}; install JAX 0.7.1 or later, or use kernel='xla'"
        )
    local = functools.partial(
        _on_one_device,
        mask=problem.mask,
        soft_cap=dict(problem.score[0].hyperparameters)["cap"] if problem.score else None,
        interpret=bool(interpret),
    )
    wide = problem.query.astype(jnp.float32) * problem.scale
    query = wide.astype(problem.query.dtype).astype(value.dtype)
    arrays = {"query": query, "key": problem.key, "value": value.astype(problem.key.dtype)}
    keys = accelerated.visible_keys(problem)
    if keys is not None:
        arrays["keys"] = keys
    return accelerated.on_devices("splash", local, problem, arrays)


def _on_one_device(
    arrays: dict[str, jax.Array], *, mask: Mask, soft_cap: float | None, interpret: bool
) -> jax.Array:
    """Returns the sums [..., T, H, Dv]; the query is scaled, "keys" [..., S] True where visible."""
    query, key, value = (arrays[name] for name in ("query", "key", "value"))
    keys = arrays.get("keys")
    *batch, queries, heads, _ = query.shape
    length = key.shape[-3]
    blocks, padded_queries, padded_keys = _blocks(query, value)

    def by_head(array: jax.Array, padded: int) -> jax.Array:
        array = array.reshape((math.prod(batch), *array.shape[-3:]))
        array = jnp.pad(array, ((0, 0), (0, padded - array.shape[1]), (0, 0), (0, 0)))
        return jnp.swapaxes(array, 1, 2)

    shape = (padded_queries, padded_keys)
    pairs: library_masks.Mask
    if mask.width is not None:
        near = mask.width - 1
        pairs = library_masks.LocalMask(shape, (near, 0 if mask.causal else near), offset=0)
    else:
        pairs = (library_masks.CausalMask if mask.causal else library_masks.FullMask)(shape)
    kernel = library.make_splash_mha(
        library_masks.MultiHeadMask([pairs] * heads),
        block_sizes=blocks,
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=soft_cap,
        interpret=interpret,
    )
    # A query of segment 1 sees no key of segment 0. Causality hides the padding by itself.
    segments = None
    if keys is not None:
        keys = keys.reshape(math.prod(batch), length)
        segments = jnp.pad(keys.astype(jnp.int32), ((0, 0), (0, padded_keys - length)))
    elif padded_keys > length and not (mask.causal and queries <= length):
        segments = jnp.where(jnp.arange(padded_keys) < length, 1, 0)

    def of_entry(
        query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array | None
    ) -> jax.Array:
        if segments is None:
            return kernel(query, key, value, None)
        return kernel(
            query, key, value, library.SegmentIds(jnp.ones(padded_queries, jnp.int32), segments)
        )

    sums = jax.vmap(of_entry, in_axes=(0, 0, 0, None if keys is None else 0))(
        by_head(query, padded_queries),
        by_head(key, padded_keys),
        by_head(value, padded_keys),
        segments,
    )
    sums = jnp.swapaxes(sums, 1, 2)[:, :queries]
    return sums.reshape((*batch, queries, heads, value.shape[-1]))


def _blocks(query: jax.Array, value: jax.Array) -> tuple[library.BlockSizes, int, int]:
    """Returns block sizes, and the padded numbers of queries and keys."""
    most = _largest_block(query, value)
    (rows, all_rows), (columns, all_columns) = (
        accelerated.divided(array.shape[-3], most) for array in (query, value)
    )
    at_once = columns // 2 if columns > 512 and columns % (2 * accelerated.LANES) == 0 else columns
    is_fused = columns == all_columns or query.dtype != value.dtype
    blocks = library.BlockSizes(
        block_q=rows,
        block_kv=columns,
        block_kv_compute=at_once,
        block_q_dkv=rows,
        block_kv_dkv=columns,
        block_kv_dkv_compute=at_once,
        use_fused_bwd_kernel=is_fused,
        block_q_dq=None if is_fused else rows,
        block_kv_dq=None if is_fused else columns,
    )
    return blocks, all_rows, all_columns


def _largest_block(query: jax.Array, value: jax.Array) -> int:
    """Returns the most rows of a block that fit on the chip (v5e's 16 MB of scoped memory).

    A row of a block takes its queries or values and the float32 sums of two gradients. Compiled
    within language models: 1024 rows at (128, 128) bfloat16 and float32; 1024 do not fit at
    (256, 256) bfloat16, nor 512 at (720, 720) bfloat16.
    """
    sizes = query.shape[-1], value.shape[-1]
    lanes = sum(-(-size // accelerated.LANES) * accelerated.LANES for size in sizes)
    row = lanes * (query.dtype.itemsize + 4)
    return 1024 if row <= 2048 else 512 if row <= 8192 else 256


# A scale that is no power of two rounds the queries once more, which shows in rows with a peak. The
# worst of 4 seeds at (256, 2, 128): output 4.0e-3 and dQ 5.9e-3 at qs 4, 2.4e-3 and 3.4e-3 at qs 1.
# With a power of two (head sizes 64 and 256) the library's limits hold: 1.7e-3 and 4.2e-3, LASER's
# dQ 2.5e-3.
KERNEL = Kernel(weighted_sum, span=SPAN, float32_sums=False, bfloat16_allowance=1.5)
