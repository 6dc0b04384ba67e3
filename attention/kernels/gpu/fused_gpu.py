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

import math
from typing import Any

import jax
import jax.numpy as jnp

from attention.kernels import accelerated
from attention.kernels.accelerated import LANES, Local, Operands
from attention.kernels.gpu.backward_gpu import backward
from attention.kernels.gpu.forward_gpu import forward
from attention.kernels.gpu.plan_gpu import TILES, Geometry, seen_tiles, triton

Array = jax.Array
_attend = accelerated.differentiable(forward, backward)


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
    length, key_heads, wide = arrays["value"].shape[-3:]
    geometry = Geometry(local, queries, length, size, wide, heads, heads // key_heads)
    value, made = accelerated.prepared(local, arrays, makes_channels=False)

    def flat(array: Array, axes: int) -> Array:
        return array.reshape((math.prod(batch), *array.shape[-axes:]))

    channels = None
    if made is not None:
        channels = jnp.concatenate([flat(made[name], 3) for name in sorted(made)], axis=1)
    keys, seeds = arrays.get("keys"), arrays.get("seeds")
    masked = accelerated.flat_masks(arrays)
    tiles = {name: seen_tiles(geometry, name, masked) for name in TILES} if masked else None
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
            for kind, leaf in zip(geometry.local.functions.kinds, arrays["leaves"], strict=True)
        ),
        None if seeds is None else seeds.reshape(-1, 1, heads),
        **masked,
        tiles=tiles,
    )
    return _attend(geometry, operands).reshape((*batch, queries, heads, wide))
