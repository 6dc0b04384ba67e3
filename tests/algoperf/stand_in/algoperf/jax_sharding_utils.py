"""Shardings over all devices: copies, and the batch divided."""

import jax
from jax.sharding import NamedSharding, PartitionSpec


def get_mesh():
    return jax.sharding.Mesh(jax.devices(), ("batch",))


def get_replicate_sharding():
    return NamedSharding(get_mesh(), PartitionSpec())


def get_batch_dim_sharding():
    return NamedSharding(get_mesh(), PartitionSpec("batch"))


def replicate(x):
    return jax.device_put(x, get_replicate_sharding())


def shard_along_batch_dim(x):
    return jax.device_put(x, get_batch_dim_sharding())
