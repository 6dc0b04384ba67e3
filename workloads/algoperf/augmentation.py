"""AlgoPerf's RandAugment with all its draws from the example's key.

AlgoPerf folds the example's number into a key for crops, flips, mixup and the choice of
operations, but takes the sign of a rotation or shear, and the place of a cutout, from TensorFlow's
global generator (imagenet_resnet/imagenet_jax/randaugment.py: `tf.random.uniform`). Inside a
parallel map no seed makes that repeatable, so that two runs of one seed train on different images.
Here those draws, of the same distributions, follow from the example's key too.
"""

import contextlib
import itertools
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

_MODULE = "algoperf.workloads.imagenet_resnet.imagenet_jax.randaugment"
# Numbers of draws folded into the key begin here: RandAugment's own fold in 0, 1, ....
_FIRST = 1_000_000


@contextlib.contextmanager
def seeded() -> Iterator[None]:
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
        with mock.patch.object(module, "tf", _Keyed(module.tf, key)):
            return original(image, num_layers, magnitude, key)

    with mock.patch.object(module, "distort_image_with_randaugment", distort):
        yield


class _Keyed:
    """TensorFlow as a module, whose `random.uniform` draws from a key, each call its own."""

    def __init__(self, tf: Any, key: Any) -> None:
        self._tf = tf
        self.random = _KeyedRandom(tf, key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tf, name)


class _KeyedRandom:
    def __init__(self, tf: Any, key: Any) -> None:
        self._tf, self._key, self._numbers = tf, key, itertools.count(_FIRST)

    def uniform(
        self, shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = None, **others: Any
    ) -> Any:
        key = self._tf.random.experimental.stateless_fold_in(self._key, next(self._numbers))
        del others  # an operation's own seed and name
        return self._tf.random.stateless_uniform(
            shape, seed=key, minval=minval, maxval=maxval, dtype=dtype or self._tf.float32
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tf.random, name)
