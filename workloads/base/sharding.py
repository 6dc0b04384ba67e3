"""The mesh, shardings of batches and parameters, keys from seeds.

A rule is (regular expression, axes). The first rule that matches a leaf's path 'a/b/c' gives mesh
axes to its dimensions, counted from the last one backwards. So leaves stacked by scan_layers match
like those of single layers. The path of an optimizer moment ends with the path of its parameter,
so the same rules match.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from workloads.base.options import MESH_AXES, check_batch, mesh_shape

# Examples are divided over these; 'tensor' divides heads and MLP of each.
BATCH_AXES = MESH_AXES[:2]


def token_axes(mesh: Mesh, length: int) -> PartitionSpec:
    """Returns the axes of an array [B, L, …]: L lies over 'context' if the mesh divides it."""
    is_divided = "context" in mesh.shape and length % mesh.shape["context"] == 0
    return PartitionSpec(BATCH_AXES, "context" if is_divided else None)


@functools.cache
def mesh(sizes: tuple[int, ...] = (0, 1, 1), over: tuple[Any, ...] = ()) -> Mesh:
    """Returns the mesh over all devices with axes (data, fsdp, tensor), as `options.mesh_shape`.

    The devices of a process are neighbours, so that its rows of a batch are one piece. The devices
    of a slice are neighbours, so that 'data' alone crosses the network between slices.
    `jax.make_mesh` refuses two thirds of the shapes of v5e and v5p slices. On v5e:16x16 with
    fsdp=16 its groups are 15 hops wide and these 8, and a process's rows lie apart.
    over: devices of a topology to compile for. Raises ValueError as `options.mesh_shape`, and if a
    slice does not hold whole groups of fsdp · tensor.
    """

    def place(device: Any) -> tuple[int, int]:
        return _slice(device), device.process_index

    devices = np.asarray(sorted(over or jax.devices(), key=place))
    shape = mesh_shape(sizes, devices.size)
    groups = devices.reshape(shape[0], -1)
    if any(len(set(map(_slice, group))) > 1 for group in groups):
        raise ValueError(
            f"mesh (data, fsdp, tensor) = {shape} has groups of {groups.shape[1]} devices in more "
            f"than one of the {len(set(map(_slice, devices.flat)))} slices, whose network would "
            "carry every layer's parameters: give an fsdp that divides a slice's devices"
        )
    return Mesh(devices.reshape(shape), MESH_AXES[: len(shape)])


def _slice(device: Any) -> int:
    """Returns the number of a TPU's slice; other devices are in one."""
    return getattr(device, "slice_index", None) or 0


@dataclasses.dataclass(frozen=True)
class Devices:
    """Where batches and parameters lie, for mesh sizes as in `options.Options`.

    over: devices of a topology to compile for; the empty tuple is those that are here.
    """

    sizes: tuple[int, ...] = (0, 1, 1)
    over: tuple[Any, ...] = ()

    @property
    def mesh(self) -> Mesh:
        """The mesh; made when first asked for."""
        return mesh(self.sizes, self.over)

    def replicated(self) -> NamedSharding:
        """Returns the sharding of what every device holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    def batch(self) -> NamedSharding:
        """Returns the sharding of a batch: split along its first axis."""
        return NamedSharding(self.mesh, PartitionSpec(BATCH_AXES))

    def heads(self) -> NamedSharding:
        """Returns the sharding of attention's heads, [B, L, H, D]: as a batch, by 'context', if it
        is in the mesh, and by 'tensor'."""
        return NamedSharding(self.mesh, PartitionSpec(BATCH_AXES, self.context, "tensor", None))

    @property
    def context(self) -> str | None:
        """The axis that divides tokens of a sequence, None if the mesh has none."""
        return "context" if "context" in self.mesh.shape else None

    def rounded_up(self, batch_size: int) -> int:
        """Returns the next multiple of the devices that share a batch."""
        return -(-batch_size // self._parts) * self._parts

    @property
    def _parts(self) -> int:
        return self.mesh.shape[BATCH_AXES[0]] * self.mesh.shape[BATCH_AXES[1]]

    def rows(self, batch_size: int) -> slice:
        """Returns which rows of a batch this process's devices hold: all where it is alone.

        Raises ValueError where the batch size is not a multiple of the devices that share it.
        """
        if jax.process_count() == 1:
            return slice(0, batch_size)
        check_batch(batch_size, self._parts)
        held = self.batch().addressable_devices_indices_map((batch_size,)).values()
        spans = {index[0].indices(batch_size)[:2] for index in held if index is not None}
        return slice(min(start for start, _ in spans), max(stop for _, stop in spans))

    def shard(self, batch: Any) -> Any:
        """Returns a batch (any tree of arrays with a common first axis) split over the devices.

        Of several processes each gives its `rows`. Raises ValueError where the batch size is not a
        multiple of the devices that share it.
        """
        size = len(jax.tree.leaves(batch)[0])
        if jax.process_count() == 1:
            check_batch(size, self._parts)
            return jax.device_put(batch, self.batch())
        rows = self.rows(self._parts)
        size = size * self._parts // (rows.stop - rows.start)
        check_batch(size, self._parts)
        return jax.tree.map(
            lambda leaf: jax.make_array_from_process_local_data(
                self.batch(), leaf, (size, *leaf.shape[1:])
            ),
            batch,
        )

    def parts(self, batch: Any, number: int) -> tuple[Any, jax.Array]:
        """Returns a batch [B, …] in parts [number, B/number, …], and the rows of each, int32.

        Every part has rows of every device, which stay where they are. For use inside jit. Raises
        ValueError where the parts do not divide over the devices that share a batch.
        """
        size = len(jax.tree.leaves(batch)[0])
        check_batch(size, self._parts, number)
        place = NamedSharding(self.mesh, PartitionSpec(None, BATCH_AXES))

        def cut(leaf: jax.Array) -> jax.Array:
            inner = leaf.shape[1:]
            of_devices = leaf.reshape(self._parts, number, -1, *inner)
            leaf = jnp.swapaxes(of_devices, 0, 1).reshape(number, size // number, *inner)
            return jax.lax.with_sharding_constraint(leaf, place)

        return jax.tree.map(cut, batch), cut(jnp.arange(size, dtype=jnp.int32))

    def on_host(self, tree: Any) -> Any:
        """Returns whole NumPy arrays of a tree of arrays, on every process."""
        if jax.process_count() == 1:
            return jax.device_get(tree)
        return multihost_utils.process_allgather(tree, tiled=True)


def seed_and_key(data_rng: Any) -> tuple[int, jax.Array]:
    """Returns NumPy's seed and JAX's key for a seed (int) or a JAX key."""
    if isinstance(data_rng, int):
        return data_rng, jax.random.key(data_rng)
    words = np.asarray(
        jax.random.key_data(data_rng)
        if jnp.issubdtype(data_rng.dtype, jax.dtypes.prng_key)
        else data_rng
    )
    return int.from_bytes(words.astype("<u4").tobytes(), "little"), data_rng


Rule = tuple[str, tuple[str | None, ...]]


def shardings(tree: Any, rules: Sequence[Rule], mesh: Mesh | AbstractMesh) -> Any:
    """Returns the tree of shardings for a tree of arrays or shapes; what no rule names is whole.

    Raises ValueError where a dimension is not a multiple of the devices that are to share it,
    with the path and the numbers.
    """

    def sharding(path: Any, leaf: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return NamedSharding(mesh, _spec(name, leaf.shape, rules, mesh))

    return jax.tree_util.tree_map_with_path(sharding, tree)


def _spec(
    name: str, shape: tuple[int, ...], rules: Sequence[Rule], mesh: Mesh | AbstractMesh
) -> PartitionSpec:
    axes = next((axes for rule, axes in rules if re.search(rule, name)), ())
    axes = axes[: len(shape)] if shape else ()
    for distance, axis in enumerate(axes, 1):
        size = shape[-distance]
        if axis is not None and size % mesh.shape[axis]:
            raise ValueError(
                f"{name} of shape {shape}: dimension {len(shape) - distance} ({size}) cannot be "
                f"divided over {mesh.shape[axis]} devices of mesh axis {axis!r}; choose a size of "
                "the axis that divides it"
            )
    return PartitionSpec(*[None] * (len(shape) - len(axes)), *reversed(axes))
