"""What a language model's training step holds and does on one device, without allocating anything.

Parameters and moments are exact: shapes by `jax.eval_shape`, divided by the rules that place them.
All else is counted by formula, in bytes and FLOP; what a compiler makes of it is the business of
`sweeps/monitoring/calibration.py`. A group of devices works on b sequences of L tokens at a time
(`microbatches` times a step), of which 'tensor' shares the heads (t of them); a is the size of
compute_dtype, W width, M mlp_width, H heads, D head size, V vocabulary, N layers, p predicted
positions. Differential attention has 2·D a head and two weights each.

Memory:

- gradients: as the parameters; twice with microbatches, whose sum is kept.
- kept: N·b·L·W·a with remat, N·block without.
- block: b·L·[a·(8·W + (8·H·D + 4·M)/t)]: the residual and norms, query, key, value, output and
  their cotangents, the MLP before and after GELU with cotangents, of one layer.
- scores: b·L·(H/t)·L float32 numbers, which a kernel that keeps them on the chip has not.
- logits: b·p·V/t float32; with loss_chunk_tokens of so many tokens at most, and V·W/t for the
  embedding's gradient, whole.
- gathered: the parameters of one layer and the embedding, whole but for 'tensor', in
  compute_dtype: what fsdp collects for use. 0 where fsdp is 1.

Work:

- products: FLOP of projections, MLP and logits: 6 per parameter and token, 8 with remat.
- score_products: FLOP of QKᵀ and A·V, 12·N·H·D·L per token, 16 with remat; of a kernel that keeps
  scores on the chip kernel_products instead, halved where it skips what a causal mask hides.
- score_bytes: N·b·L·(H/t)·L float32 numbers, 0 as above.
- layout_bytes: 8·H·D/t per token and layer, where heads are no multiple of a TPU's 128 lanes and
  query, key, value, output and their cotangents are copied into another layout.
- layer_bytes: N·block. logit_bytes: as in memory, of all tokens. update_bytes: of parameters.
- gathered_bytes: N layers' parameters in compute_dtype, as fsdp collects them.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from attention import table
from workloads.base import sharding
from workloads.base.options import MESH_AXES, Options, check_batch, mesh_shape
from workloads.text import finetuning_specs, language_models, transformer
from workloads.text.specs import SIZES, TransformerSize


def per_device(
    name: str,
    options: Options,
    *,
    batch_size: int,
    devices: int,
    microbatches: int = 1,
    variant: Any = None,
    keeps_scores: bool = True,
) -> dict[str, dict[str, float]]:
    """Returns {"memory": bytes by part, "work": bytes and FLOP of a step by part}, as named above.

    name: of a Transformer workload. batch_size: of the whole step. devices: how many share the
    work; options.mesh with data 0 takes what its other axes leave. Two moments per parameter, in
    float32 (the Adam family). keeps_scores: the kernel writes [B, H, T, S] to main memory.

    Raises ValueError for a workload of another kind, and for a mesh that the devices, the batch
    or the parameters do not fit.
    """
    name, _ = finetuning_specs.split(name)
    known = [one for one in SIZES if "finewebedu" not in one]
    if name not in known:
        raise ValueError(f"{name!r} is no Transformer workload; those are {', '.join(known)}")
    size = SIZES[name]
    mesh = AbstractMesh(mesh_shape(options.mesh, devices), MESH_AXES)
    groups = mesh.shape["data"] * mesh.shape["fsdp"]
    check_batch(batch_size, groups, microbatches)
    parameters = _parameters(size, variant, options, mesh)
    moments = 2 * parameters * 4 // jnp.dtype(options.param_dtype).itemsize
    narrow, tensor = jnp.dtype(options.compute_dtype).itemsize, mesh.shape["tensor"]
    tokens = batch_size // groups * size.context
    at_once = tokens // microbatches
    wider = 1 if variant is None else table.value_size(variant.name, 1)
    heads = size.heads * size.head_size
    per_token = narrow * (8 * size.width + (8 * wider * heads + 4 * size.mlp_width) / tensor)
    scores = 4 * wider * size.heads * size.context / tensor if keeps_scores else 0
    is_bert = "bert" in name
    share = language_models.num_positions(size.context) / size.context if is_bert else 1
    chunk = options.loss_chunk_tokens
    logits = 4 * size.vocabulary / tensor
    layer = (4 * size.width * heads + 2 * size.width * size.mlp_width) / tensor
    embedding = size.vocabulary * size.width / tensor
    fsdp = mesh.shape["fsdp"] > 1
    passes = 8 if options.remat else 6
    of_scores = 2 * passes * tokens * size.layers * wider * heads * size.context / tensor
    copied = 8 * narrow * size.layers * tokens * wider * heads / tensor
    memory = {
        "parameters": parameters,
        "moments": moments,
        "gradients": parameters * (2 if microbatches > 1 else 1),
        "kept": size.layers * at_once * (narrow * size.width if options.remat else per_token),
        "block": at_once * per_token,
        "scores": at_once * scores,
        "logits": logits * min(at_once * share, chunk or at_once) + (4 * embedding if chunk else 0),
        "gathered": narrow * (layer + embedding) if fsdp else 0,
    }
    work = {
        "products": tokens * (passes * size.layers * layer + 6 * share * embedding),
        "score_products": of_scores if keeps_scores else 0,
        "kernel_products": 0 if keeps_scores else of_scores * (1 if is_bert else 0.5),
        "score_bytes": size.layers * tokens * scores,
        "layer_bytes": size.layers * tokens * per_token,
        "layout_bytes": copied if size.head_size % 128 else 0,
        "logit_bytes": logits * tokens * share,
        "update_bytes": parameters + moments,
        "gathered_bytes": narrow * microbatches * (size.layers * layer + embedding) if fsdp else 0,
    }
    return {"memory": memory, "work": work}


def _parameters(size: TransformerSize, variant: Any, options: Options, mesh: AbstractMesh) -> int:
    # Stacked layers have the same bytes, and are traced once.
    options = dataclasses.replace(options, scan_layers=True)
    model = transformer.Transformer(size, variant, options=options)
    tokens = (1, size.context)
    # The key, too, is made in there: on a host without its accelerator JAX would look for that.
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros(tokens, jnp.int32)))
    shapes = shapes["params"]
    # An abstract mesh has shape and axes, which is all that shardings are made from.
    placed = sharding.shardings(shapes, transformer.PARAMETER_RULES, mesh)
    sizes = jax.tree.map(
        lambda leaf, held: math.prod(held.shard_shape(leaf.shape)) * leaf.dtype.itemsize,
        shapes,
        placed,
    )
    return sum(jax.tree.leaves(sizes))
