"""The `fused` kernel for TPUs, compiled by Mosaic; the formulas are those of `fused`.

The backward pass needs s of each row and R in float32 (without a transform: the output). LASER's
channel leaves depend on the values. A pass over V makes them, 3 % of c4_lm's step. If one block
holds all keys, the kernel makes them instead.

A grid step multiplies a block of queries by a block of keys, 256 or 512 queries at a time. Nothing
is read or computed for blocks that a band (causality, a window) hides, nor for the columns that it
hides from a whole tile. If a window is narrow, all keys of a head lie on the chip (backward: all
queries), and a tile takes one slice of them, the slab. T = 4,096 with a window of 256 then takes
0.23 of the causal problem. Of documents and other masks a loop visits only the tiles that are seen.
The last block may reach beyond the arrays: reads there give 0, and writes are dropped.

Arrays are [B, H, T, D]. Heads smaller than 128 keep the layout of the projections, [B, T, H·D];
128/D of them share a block. A head's product sets the lanes of the others to 0, which takes the
same time in a matrix unit 128 wide. In ViT-S transpositions and padding took 39 of 118 ms; the
copies that remain take 8 of 70 ms.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from attention.kernels import accelerated
from attention.kernels.accelerated import Local, Operands
from attention.kernels.tpu.backward_tpu import backward
from attention.kernels.tpu.forward_tpu import forward
from attention.kernels.tpu.plan_tpu import Plan, Plans, heads_together, planned, with_slab

Array = jax.Array
_attend = accelerated.differentiable(forward, backward)


def attend(local: Local, device_kind: str, arrays: dict[str, Any]) -> Array:
    """Returns the output [..., T, H, Dv] of arrays as `accelerated.on_devices` hands them."""
    *batch, queries, heads, size = arrays["query"].shape
    length, key_heads, wide = arrays["value"].shape[-3:]
    members = heads // key_heads
    masked = accelerated.flat_masks(arrays)
    by_head = "pairs" in masked and masked["pairs"].shape[1] > 1
    together = 0 if members > 1 or by_head else heads_together(heads, size, wide)
    copies = 1 if together else key_heads
    plan = Plan(local, max(1, together), copies, members, queries, length, size, wide)
    plan = planned(plan, arrays["value"].dtype, device_kind, masked)
    plans = Plans(*(with_slab(plan, device_kind, backward) for backward in (False, True)))
    operands = operands_of(plans.forward, arrays, masked, bool(together))
    if plan.listed:
        states = accelerated.tile_states(local, masked, (plan.tile, plan.listed), plan.tiles)
        operands = operands._replace(tiles=states)
    output = _attend(plans, operands)
    if not together:
        output = output.reshape((math.prod(batch), heads, queries, wide))
        output = jnp.swapaxes(output, 1, 2)
    return output.reshape((*batch, queries, heads, wide))


def operands_of(
    plan: Plan, arrays: dict[str, Any], masked: dict[str, Any], together: bool
) -> Operands:
    """Returns the operands of the kernels, without the states of tiles.

    N: batch entries, times key heads unless several heads share a block (`together`). M: query
    heads of a key head. G: groups of h heads that share a block, with C and V channels.

    query [N, M, T, G·C], key [N, S, G·C], value [N, S, G·V], channels [N, c, G·V] float32,
    keys [B, 1, S], 1 if visible, start [H], leaves: head [H], row [N, G, M, h, T],
    column [N, G, M, h, S], seeds [B, 1, H], and the masks of `accelerated.flat_masks`.
    """
    *batch, _, heads, _ = arrays["query"].shape
    entries = math.prod(batch)

    def flat(array: Array) -> Array:
        """Returns [N, rows, channels] of [..., rows, heads, channels]."""
        array = array.reshape((entries, *array.shape[-3:]))
        if not together:
            array = jnp.swapaxes(array, 1, 2).reshape((-1, array.shape[1], 1, array.shape[-1]))
        return array.reshape((*array.shape[:2], -1))

    def by_group(leaf: Array) -> Array:
        """Returns [N, G, M, h, rows] of [..., H, rows]."""
        return leaf.reshape((entries * plan.copies, -1, plan.members, plan.heads, leaf.shape[-1]))

    # A block with all keys and no mask has what the channel leaves are made of.
    in_kernel = "seen" not in arrays and plan.blocks[1] == 1
    value, made = accelerated.prepared(plan.local, arrays, in_kernel)
    channels = None
    if made is not None:
        channels = jnp.concatenate([flat(made[name]) for name in sorted(made)], axis=1)
    keys, seeds = arrays.get("keys"), arrays.get("seeds")
    if keys is not None:
        keys = keys.reshape((entries, 1, plan.keys)).astype(jnp.float32)
    query = flat(arrays["query"])
    return Operands(
        query.reshape((-1, plan.members, *query.shape[1:])),
        flat(arrays["key"]),
        flat(value),
        channels,
        keys,
        arrays.get("start"),
        tuple(
            leaf if kind == "head" else by_group(leaf)
            for kind, leaf in zip(plan.local.functions.kinds, arrays["leaves"], strict=True)
        ),
        None if seeds is None else seeds.reshape(-1, 1, heads),
        **masked,
    )
