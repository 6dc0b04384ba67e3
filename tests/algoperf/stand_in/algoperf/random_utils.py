"""Random numbers of one framework, JAX."""

import jax


def PRNGKey(seed):  # noqa: N802, AlgoPerf's name
    return jax.random.PRNGKey(seed)


def split(seed, num=2):
    return jax.random.split(seed, num)


def fold_in(seed, data):
    return jax.random.fold_in(seed, data)
