"""Context parallelism for kernels: each device attends its own queries to all keys.

Keys and values are gathered, so their gradients are scattered and summed. A kernel knows its band,
causality or a window, when it is compiled, and a device its queries' place when it runs. So a
device takes the keys of a part of its queries by one slice that ends with the part: in it the band
lies the same for every part. Keys before the first are hidden, and tiles of them are skipped.

Under causality late queries have more work than early ones. Device p of n exchanges the second
half of its queries with device n − 1 − p, so that all devices see as many pairs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention.functions import Leaves, Score
from attention.kernels.accelerated import UNBOUNDED, Local

Array = jax.Array
Arrays = dict[str, Any]
# The head leaf that says where a part of the queries begins; float32 holds it up to 2^24.
_FIRST = "first query of the part"
# The segment of keys that do not exist.
_NO_SEGMENT = jnp.iinfo(jnp.int32).min


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
    if not is_causal or rows % 2:
        return _part(kernel, local, lengths, arrays, place * rows)
    partners = [(number, devices - 1 - number) for number in range(devices)]

    def first_half(array: Array, axis: int, _: str) -> Array:
        return jnp.split(array, 2, axis)[0]

    def partners_half(array: Array, axis: int, _: str) -> Array:
        return jax.lax.ppermute(jnp.split(array, 2, axis)[1], axes, partners)

    begin = (devices - 1 - place) * rows + rows // 2
    early = _part(kernel, local, lengths, _along(0, local, arrays, first_half), place * rows)
    late = _part(kernel, local, lengths, _along(0, local, arrays, partners_half), begin)
    late = jax.lax.ppermute(late, axes, partners)
    if not local.with_lse:
        return jnp.concatenate([early, late], axis=-3)
    return tuple(
        jnp.concatenate(halves, axis) for *halves, axis in zip(early, late, (-3, -1), strict=True)
    )


# The axes of queries and of keys, and the kinds of leaves that have one as their last.
_AXES = (
    {"query": -3, "pairs": -2},
    {"key": -3, "value": -3, "keys": -1, "seen": -3, "pairs": -1},
)
_KINDS = ("row", "column")


def _along(side: int, local: Local, arrays: Arrays, change: Callable[..., Array]) -> Arrays:
    """Returns the arrays, changed those that have an axis of queries (side 0) or of keys (1).

    change: of (array, axis, name).
    """
    changed = {
        name: change(array, _AXES[side][name], name) if name in _AXES[side] else array
        for name, array in arrays.items()
    }
    if "segments" in arrays:
        segments = list(arrays["segments"])
        segments[side] = change(segments[side], -1, "segments")
        changed["segments"] = tuple(segments)
    changed["leaves"] = tuple(
        change(leaf, -1, "leaves") if kind == _KINDS[side] else leaf
        for kind, leaf in zip(local.functions.kinds, arrays["leaves"], strict=True)
    )
    return changed


def _part(
    kernel: Callable[..., Any],
    local: Local,
    lengths: tuple[int, int],
    arrays: Arrays,
    first: Array,
) -> Any:
    """Returns the output of a part of the queries, whose first is number `first` of all."""
    (queries, keys), rows = lengths, arrays["query"].shape[-3]
    before = None
    if local.is_banded:
        # The slice ends with the last key that the part's last query sees, and begins `before` keys
        # before its first query.
        before = min(local.high, queries - rows)
        after = rows - max(local.low, -keys)
        beyond = max(0, queries - rows + after - keys)
        arrays = _with_keys(local, arrays, (before, beyond), first, before + after)
        local = local._replace(
            low=local.low - before,
            high=local.high if local.high == UNBOUNDED else local.high - before,
        )
        numbers = first - before + jnp.arange(before + after)
        arrays = _hidden(local, arrays, (numbers >= 0) & (numbers < keys))
    return kernel(*_numbered(local, arrays, first, before, keys))


def _with_keys(
    local: Local, arrays: Arrays, widths: tuple[int, int], first: Array, length: int
) -> Arrays:
    """Returns the arrays, of those that have an axis of keys a slice of `length` from `first` on.

    widths: by how many keys the axis is padded before, on both sides.
    """

    # A function may divide by a leaf.
    fill: dict[str, Any] = {
        "segments": {"constant_values": _NO_SEGMENT},
        "leaves": {"mode": "edge"},
    }

    def change(array: Array, axis: int, name: str) -> Array:
        axis += array.ndim
        around = [widths if n == axis else (0, 0) for n in range(array.ndim)]
        padded = jnp.pad(array, around, **fill.get(name, {}))
        return jax.lax.dynamic_slice_in_dim(padded, first, length, axis)

    return _along(1, local, arrays, change)


def _hidden(local: Local, arrays: Arrays, exist: Array) -> Arrays:
    """Returns the arrays with masks that hide the keys of a slice that do not `exist`, bool [S]."""
    *batch, rows, _, _ = arrays["query"].shape
    hiding = dict(arrays)
    if local.functions.transform is not None and "seen" not in arrays:
        hiding["seen"] = exist.reshape((*(1,) * len(batch), -1, 1, 1))
    if {"segments", "pairs"} & {*arrays}:
        return hiding
    if local.high == UNBOUNDED:  # many keys: as a segment, whose tiles are skipped
        of_keys = jnp.broadcast_to(jnp.where(exist, 0, _NO_SEGMENT), (*batch, exist.size))
        hiding["segments"] = jnp.zeros((*batch, rows), jnp.int32), of_keys
    elif "keys" not in arrays:
        hiding["keys"] = jnp.broadcast_to(exist, (*batch, exist.size))
    return hiding


def _numbered(
    local: Local, arrays: Arrays, first: Array, before: int | None, keys: int
) -> tuple[Local, Arrays]:
    """Returns the same with score functions that are given indices among all queries and keys."""
    of_heads = jnp.broadcast_to(first.astype(jnp.float32), arrays["query"].shape[-2:-1])
    scores, leaves, rest = [], [], iter(arrays["leaves"])
    for score in local.functions.score:
        named = {name: next(rest) for name, _ in sorted(score.kinds)} | {_FIRST: of_heads}
        settings = ("before", before), ("keys_in_all", keys), ("score", score)
        kinds = (*score.kinds, (_FIRST, "head"))
        scores.append(Score(_of_all, settings, kinds, score.may_hide))
        leaves += [named[name] for name, _ in sorted(kinds)]
    functions = dataclasses.replace(local.functions, score=tuple(scores))
    return local._replace(functions=functions), {**arrays, "leaves": tuple(leaves)}


def _of_all(
    logits: Array,
    queries: Array,
    keys: Array,
    leaves: Leaves,
    *,
    before: int | None,
    keys_in_all: int,
    score: Score,
) -> Array:
    """Returns a score function's logits for indices of a part and its slice of keys."""
    first = leaves[_FIRST].astype(jnp.int32)
    others = {name: leaf for name, leaf in leaves.items() if name != _FIRST}
    # A function may be NaN for a key that does not exist.
    number = keys
    if before is not None:
        number = jnp.clip(keys + first - before, 0, keys_in_all - 1)
    return score(logits, queries + first, number, others)
