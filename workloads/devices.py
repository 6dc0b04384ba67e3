"""Data parallelism over the local devices, and keys from seeds: what every workload shares."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workloads import spec

Array = jax.Array


@functools.cache
def mesh() -> Mesh:
    """Returns the mesh over all devices with the one axis 'batch', as AlgoPerf's."""
    return Mesh(np.asarray(jax.devices()), ("batch",))


def replicated() -> NamedSharding:
    """Returns the sharding of parameters: a copy on every device."""
    return NamedSharding(mesh(), PartitionSpec())


def shard(batch: dict[str, np.ndarray]) -> spec.Batch:
    """Returns the batch split over the devices along its first axis.

    Raises ValueError where the batch size is not a multiple of the number of devices.
    """
    devices, size = mesh().size, len(batch["targets"])
    if size % devices:
        raise ValueError(
            f"batch size {size} is not a multiple of the {devices} devices; choose one that is"
        )
    return jax.device_put(batch, NamedSharding(mesh(), PartitionSpec("batch")))


def seed_and_key(data_rng: Any) -> tuple[int, Array]:
    """Returns NumPy's seed and JAX's key for a seed (int) or a JAX key."""
    if isinstance(data_rng, int):
        return data_rng, jax.random.key(data_rng)
    words = np.asarray(
        jax.random.key_data(data_rng)
        if jnp.issubdtype(data_rng.dtype, jax.dtypes.prng_key)
        else data_rng
    )
    return int.from_bytes(words.astype("<u4").tobytes(), "little"), data_rng
