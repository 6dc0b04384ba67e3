"""Memory per device of a language model's training step, reckoned without allocating anything.

Parameters, gradients and moments are exact: shapes by `jax.eval_shape`, divided by the rules that
place them. Activations are an estimate, in bytes per device, for b sequences of L tokens on a group
of devices that share them by 'tensor' (t of them); a is the size of compute_dtype, W width, M
mlp_width, H heads, D head size, V vocabulary, N layers:

- block(b) = b·L·[a·(8·W + (8·H·D + 4·M)/t) + 3·4·(H/t)·L]: the residual and norms, query, key,
  value, output and their cotangents, the MLP before and after GELU with cotangents, and the softmax
  in float32 (logits, weights, cotangent), as `attention/kernels/core.py` computes it.
  Differential attention adds 4·6·H·D/t per token: values, outputs and cotangents of 2·D per head.
- kept = N·b·L·W·a + block(b) with remat, N·block(b) without.
- logits = 2·4·b·(predicted positions)·V/t: logits and their cotangent, float32. With
  loss_chunk_tokens of so many tokens at most, and 4·V·W/t for the embedding's gradient, whole.
- gathered = the parameters of one layer and the embedding, whole but for 'tensor', in
  compute_dtype: what fsdp collects for use. 0 where fsdp is 1.

XLA's own count for the CPU, one compiled step of a model of width 512 and 8 layers, is 12 to 22 %
below the sum of gradients and estimates: with remat and without, on 1 and 8 devices. Buffers for
sending and fragmentation need more: leave a tenth of the device free.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from workloads.base import sharding
from workloads.base.options import MESH_AXES, Options
from workloads.text import language_models, transformer
from workloads.text.specs import SIZES, TransformerSize


def per_device(
    name: str,
    options: Options,
    *,
    batch_size: int,
    devices: int,
    variant: Any = None,
    moments: int = 2,
) -> dict[str, int]:
    """Returns bytes of parameters, moments, gradients, activations, logits, gathered, and total.

    name: of a Transformer workload. batch_size: of the whole step. devices: how many share the
    work; options.mesh with data 0 takes what its other axes leave. moments: arrays the optimizer
    keeps per parameter, in float32 (2 for the Adam family; sweeps/training/optimizers.py).

    Raises ValueError for a workload of another kind, and for a mesh that the devices, the batch
    or the parameters do not fit.
    """
    if name not in SIZES:
        raise ValueError(f"{name!r} is no Transformer workload; those are {', '.join(SIZES)}")
    size = SIZES[name]
    shape = sharding.mesh_shape(options.mesh, devices)
    mesh = AbstractMesh(shape, MESH_AXES)
    size.check_mesh(shape)
    groups = mesh.shape["data"] * mesh.shape["fsdp"]
    if batch_size % groups:
        raise ValueError(
            f"batch size {batch_size} cannot be divided over the {groups} groups of devices of "
            f"mesh (data, fsdp, tensor) = {shape}"
        )
    parameters = _parameters(size, variant, options, mesh)
    parts = {
        "parameters": parameters,
        "moments": moments * parameters * 4 // jnp.dtype(options.param_dtype).itemsize,
        "gradients": parameters,
        **_activations(name, size, options, batch_size // groups, mesh, variant),
    }
    return {**parts, "total": sum(parts.values())}


def _parameters(size: TransformerSize, variant: Any, options: Options, mesh: AbstractMesh) -> int:
    # Stacked layers have the same bytes, and are traced once.
    options = dataclasses.replace(options, scan_layers=True)
    model = transformer.Transformer(size, variant, options=options)
    tokens = jax.ShapeDtypeStruct((1, size.context), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    # An abstract mesh has shape and axes, which is all that shardings are made from.
    placed = sharding.shardings(shapes, transformer.PARAMETER_RULES, mesh)
    sizes = jax.tree.map(
        lambda leaf, held: math.prod(held.shard_shape(leaf.shape)) * leaf.dtype.itemsize,
        shapes,
        placed,
    )
    return sum(jax.tree.leaves(sizes))


def _activations(
    name: str,
    size: TransformerSize,
    options: Options,
    sequences: int,
    mesh: AbstractMesh,
    variant: Any,
) -> dict[str, int]:
    """Returns the estimated parts, by the formulas above."""
    narrow, tensor = jnp.dtype(options.compute_dtype).itemsize, mesh.shape["tensor"]
    tokens, heads = sequences * size.context, size.heads * size.head_size
    block = tokens * (
        narrow * (8 * size.width + (8 * heads + 4 * size.mlp_width) // tensor)
        + 12 * size.heads * size.context // tensor
        + (24 * heads // tensor if getattr(variant, "needs_depth", False) else 0)
    )
    residuals = size.layers * tokens * size.width * narrow
    kept = residuals + block if options.remat else size.layers * block
    predicted = (
        sequences * language_models.num_positions(size.context) if "bert" in name else tokens
    )
    chunk = options.loss_chunk_tokens
    logits = 8 * min(predicted, chunk or predicted) + (4 * size.width if chunk else 0)
    layer = 4 * size.width * heads + 2 * size.width * size.mlp_width
    whole = narrow * (layer + size.vocabulary * size.width) // tensor
    return {
        "activations": kept,
        "logits": logits * size.vocabulary // tensor,
        "gathered": whole if mesh.shape["fsdp"] > 1 else 0,
    }
