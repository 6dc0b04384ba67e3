"""AlgoPerf's training batches from any step on: a function of the seed and the step.

AlgoPerf's queues are iterators that start at their first batch. One that is to start at step n
draws n batches and throws them away, which costs what reading them costs: decoding ImageNet runs
at some thousand images a second on 32 cores, so that n = 10,000 of 1,024 images take an hour.

- WMT (tf.data): the order follows from the key that the queue is given (wmt/input_pipeline.py).
- ImageNet (tf.data): so do order, crops and mixup, but not all of RandAugment, whose other draws
  `workloads.algoperf.augmentation` takes from the key too.
- LibriSpeech (torch's DataLoader): the queue drops its key, and the loader shuffles by torch's
  global generator (librispeech_jax/workload.py). Here that generator is the queue's own while a
  batch is drawn, seeded from the key; what else uses it, evaluations included, changes nothing.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

Array = jax.Array

# Of the keys that a seed gives; 2 is the data's (sweeps/training/train_step.py).
_DATA = 2


def raw_key(rng: Array) -> Array:
    """Returns a key as AlgoPerf takes it, uint32 of shape (2,): its readers index keys."""
    typed = jax.dtypes.issubdtype(rng.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(rng) if typed else rng


def data_key(data_rng: int | Array) -> Array:
    """Returns the raw key of a seed's data, or that of a given key."""
    if isinstance(data_rng, int):
        return jax.random.fold_in(jax.random.PRNGKey(data_rng), _DATA)
    return raw_key(data_rng)


def from_step(queue: Iterator[Any], start_step: int) -> Iterator[Any]:
    """Returns the queue without its first `start_step` batches, which are drawn at once."""
    return itertools.islice(queue, start_step, None)


def with_own_torch_generator(queue: Iterator[Any], key: Array) -> Iterator[Any]:
    """Yields a queue's batches, torch's global generator being the queue's while one is drawn."""
    import torch

    state = torch.Generator().manual_seed(_seed_of(key)).get_state()
    while True:
        others = torch.get_rng_state()
        torch.set_rng_state(state)
        try:
            batch = next(queue, None)
        finally:
            state = torch.get_rng_state()
            torch.set_rng_state(others)
        if batch is None:
            return
        yield batch


def _seed_of(key: Array) -> int:
    high, low = (int(word) for word in np.asarray(key))
    return (high << 32 | low) & (2**63 - 1)  # torch takes what an int64 holds
