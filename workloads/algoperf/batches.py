"""AlgoPerf's training batches from any step on: a function of the seed and the step.

AlgoPerf's queues are iterators that start at their first batch. One that is to start at step n
draws n batches and throws them away, which costs what reading them costs: decoding ImageNet runs
at some thousand images a second on 32 cores, so that n = 10,000 of 1,024 images take an hour.

- WMT (tf.data): the order follows from the key that the queue is given (wmt/input_pipeline.py).
- ImageNet (tf.data): so do order, crops and mixup, but not all of RandAugment. AlgoPerf folds the
  example's number into a key for crops, flips, mixup and the choice of operations, but takes the
  sign of a rotation or shear, and the place of a cutout, from TensorFlow's global generator
  (imagenet_resnet/imagenet_jax/randaugment.py: `tf.random.uniform`). Inside a parallel map no seed
  makes that repeatable, so that two runs of one seed train on different images. Here those draws,
  of the same distributions, follow from the example's key too.
- LibriSpeech (torch's DataLoader): the queue drops its key, and the loader shuffles by torch's
  global generator (librispeech_jax/workload.py). Here that generator is the queue's own while a
  batch is drawn, seeded from the key; what else uses it, evaluations included, changes nothing.
"""

import contextlib
import itertools
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np

from workloads.base.injection import Substitute

_MODULE = "algoperf.workloads.imagenet_resnet.imagenet_jax.randaugment"
# Numbers of draws folded into the key begin here: RandAugment's own fold in 0, 1, ....
_FIRST = 1_000_000


@contextlib.contextmanager
def seeded_augmentation() -> Iterator[None]:
    """While a queue is built inside, its RandAugment draws from keys alone.

    TensorFlow traces the functions of a pipeline when it is built, so that the pipeline keeps
    that. AlgoPerf's module is as it was afterwards; without it there is nothing to do.
    """
    module = sys.modules.get(_MODULE)
    if module is None:
        yield
        return
    original = module.distort_image_with_randaugment

    def distort(image: Any, num_layers: int, magnitude: Any, key: Any) -> Any:
        with mock.patch.object(module, "tf", _keyed(module.tf, key)):
            return original(image, num_layers, magnitude, key)

    with mock.patch.object(module, "distort_image_with_randaugment", distort):
        yield


def _keyed(tf: Any, key: Any) -> Any:
    """Returns TensorFlow, whose `random.uniform` draws from a key, each call its own."""
    numbers = itertools.count(_FIRST)

    def uniform(
        shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = None, **_: Any
    ) -> Any:
        # Not used: the seed and the name of an operation.
        seed = tf.random.experimental.stateless_fold_in(key, next(numbers))
        return tf.random.stateless_uniform(
            shape, seed=seed, minval=minval, maxval=maxval, dtype=dtype or tf.float32
        )

    return Substitute(tf, random=Substitute(tf.random, uniform=uniform))


# Of the keys that a seed gives; 2 is the data's (sweeps/training/train_step.py).
_DATA = 2


def raw_key(rng: jax.Array) -> jax.Array:
    """Returns a key as AlgoPerf takes it, uint32 of shape (2,): its readers index keys."""
    typed = jax.dtypes.issubdtype(rng.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(rng) if typed else rng


def data_key(data_rng: int | jax.Array) -> jax.Array:
    """Returns the raw key of a seed's data, or that of a given key."""
    if isinstance(data_rng, int):
        return jax.random.fold_in(jax.random.PRNGKey(data_rng), _DATA)
    return raw_key(data_rng)


def with_own_torch_generator(queue: Iterator[Any], key: jax.Array) -> Iterator[Any]:
    """Yields a queue's batches, torch's global generator being the queue's while one is drawn."""
    import torch

    high, low = (int(word) for word in np.asarray(key))
    state = torch.Generator().manual_seed((high << 32 | low) & (2**63 - 1)).get_state()
    while True:
        outside = torch.get_rng_state()
        torch.set_rng_state(state)
        try:
            batch = next(queue, None)
        finally:
            state = torch.get_rng_state()
            torch.set_rng_state(outside)
        if batch is None:
            return
        yield batch
