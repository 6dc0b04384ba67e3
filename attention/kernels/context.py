"""Context parallelism for kernels: each device attends its own queries to all keys.

Keys and values are gathered, so their gradients are scattered and summed. A kernel is told where a
device's queries lie by numbers that it reads when it runs, the operand `shifts`.

Under causality late queries have more work than early ones. Device p of n exchanges the second
half of its queries with device n − 1 − p, so that all devices see as many pairs.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.kernels.accelerated import LANES, UNBOUNDED, Division, Local

Arrays = dict[str, Any]


def attend(
    kernel: Callable[..., Any],
    local: Local,
    axes: Any,
    lengths: tuple[int, int],
    arrays: Arrays,
) -> Any:
    """Returns the output of a device's queries, [..., T/n, H, Dv], inside of jax.shard_map.

    kernel: attend(local, arrays) of a platform. axes: of the mesh, which divide the queries among n
    devices. lengths: T and S of all. arrays: as `accelerated.on_devices` divides them.
    """
    devices, place = jax.lax.axis_size(axes), jax.lax.axis_index(axes)
    rows = arrays["query"].shape[-3]
    arrays = dict(arrays)
    for name in ("key", "value"):
        if arrays[name].shape[-3] < lengths[1]:
            axis = arrays[name].ndim - 3
            arrays[name] = jax.lax.all_gather(arrays[name], axes, axis=axis, tiled=True)
    is_causal = local.low > -UNBOUNDED and local.high == UNBOUNDED
    # A tile has queries of one half.
    if not is_causal or rows % (2 * LANES):
        arrays["shifts"] = jnp.reshape(place * rows, 1).astype(jnp.int32)
        division = Division(lengths[0], 0 if rows % LANES else rows, (0,))
        return kernel(local._replace(division=division), arrays)
    last = devices - 1
    partners = [(number, last - number) for number in range(devices)]

    def exchanged(array: jax.Array, axis: int) -> jax.Array:
        """Returns an array with its second half from the partner, and from that the own again."""
        first, second = jnp.split(array, 2, axis)
        return jnp.concatenate([first, jax.lax.ppermute(second, axes, partners)], axis)

    of_leaves = tuple(-1 if kind == "row" else 0 for kind in local.functions.kinds)
    axes_of_queries: dict[str, Any] = {"query": -3, "pairs": -2, "lower": -1, "leaves": of_leaves}
    for name, axis in (axes_of_queries | {"segments": (-1, 0)}).items():
        if name in arrays:  # 0 stands for none
            arrays[name] = jax.tree.map(
                lambda axis, array: exchanged(array, axis) if axis else array, axis, arrays[name]
            )
    arrays["shifts"] = jnp.stack([place, last - place]).astype(jnp.int32) * rows
    local = local._replace(division=Division(lengths[0], rows // 2, (0, last * rows)))
    return jax.tree.map(exchanged, kernel(local, arrays), (-3, -1) if local.with_lse else -3)
