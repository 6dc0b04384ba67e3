"""AlgoPerf's own workload object behind our interface, so that our loop trains it.

Model, loss, batches and evaluation are AlgoPerf's. Our loop needs more: a first step for batches, a
model state whose shapes stay, evaluations that do not depend on earlier ones, and numbers instead
of arrays.

Training batches from any step on are a function of the seed and the step.

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
import importlib.util
import inspect
import itertools
import sys
from collections.abc import Iterator
from operator import attrgetter
from typing import Any
from unittest import mock

import jax
import numpy as np

from workloads import algoperf_specs
from workloads.algoperf import installation
from workloads.base import sharding, spec
from workloads.base.injection import Substitute
from workloads.base.options import Options
from workloads.base.workload_spec import WorkloadSpec

_MODULE = "algoperf.workloads.imagenet_resnet.imagenet_jax.randaugment"
# Numbers of draws folded into the key begin here: RandAugment's own fold in 0, 1, ....
_FIRST = 1_000_000
# Of the keys that a seed gives; 2 is the data's (sweeps/training/train_step.py).
_DATA = 2


def make(
    row: WorkloadSpec, variant: Any, options: Options, **extra_paths: str
) -> "AlgoperfWorkload":
    """Returns the workload; use `workloads.registry.make`.

    options: the defaults, the only ones that AlgoPerf serves. extra_paths: `algoperf_dir` ("": the
    installed AlgoPerf), for speech `tokenizer_vocab_path`.
    Raises ValueError if AlgoPerf or the tokenizer is missing, if AlgoPerf is older than its
    `dropout_rate` argument, and if several processes train.
    """
    name = row.name
    if jax.process_count() > 1:
        raise ValueError(
            f"{name}: AlgoPerf's pipelines give every process the same batch; use the devices of "
            "one process"
        )
    checkout = installation.find(extra_paths.pop(algoperf_specs.DIRECTORY, ""))
    if algoperf_specs.TOKENIZER in row.extra_paths and not extra_paths[algoperf_specs.TOKENIZER]:
        raise ValueError(algoperf_specs.no_tokenizer(name))
    modes = checkout.module("algoperf.spec").ForwardPassMode
    # As submission_runner.py: TensorFlow must not take the accelerators' memory, and
    # `algoperf.random_utils` asks absl's flag `framework` which generator to use.
    if importlib.util.find_spec("tensorflow") is not None:
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
    installation.define_framework()
    theirs = checkout.make_workload(algoperf_specs.short_name(name), **extra_paths)
    if "dropout_rate" not in inspect.signature(theirs.model_fn).parameters:
        raise ValueError(
            f"AlgoPerf in {checkout.directory} gives its model a dropout rate when it is made, not "
            f"when it is called; use commit {installation.TESTED_COMMITS[0][:7]} or a later one"
        )
    if variant is not None:
        from workloads.algoperf import injected

        theirs = injected.with_variant(theirs, algoperf_specs.short_name(name), variant)
    for key, value in checkout.record().items():  # once: it asks git
        setattr(theirs, key, value)
    return AlgoperfWorkload(name, theirs, variant, modes)


class AlgoperfWorkload(spec.Workload):
    """AlgoPerf's workload object, `theirs`, trained and evaluated through our interface.

    Its sizes are AlgoPerf's, whatever the data directory holds.
    """

    def __init__(self, name: str, theirs: Any, variant: Any, modes: Any) -> None:
        self.name, self.theirs, self.variant = name, theirs, variant
        self.options, self.devices = Options(), sharding.Devices()
        self._modes = modes
        self._takes_bn = "use_running_average_bn" in inspect.signature(theirs.model_fn).parameters

    def __str__(self) -> str:
        return self.name

    def __getattr__(self, name: str) -> Any:
        """AlgoPerf's metric, targets, type of loss, sizes of splits and step hint."""
        return getattr(self.theirs, name)

    eval_batch_size = property(attrgetter("theirs.eval_batch_size"))
    param_shapes = property(attrgetter("theirs.param_shapes"))
    attention_layers = property(attrgetter("theirs.attention_layers"))
    has_reached_validation_target = property(attrgetter("theirs.has_reached_validation_target"))
    has_reached_test_target = property(attrgetter("theirs.has_reached_test_target"))
    is_output_params = property(attrgetter("theirs.is_output_params"))
    loss_fn = property(attrgetter("theirs.loss_fn"))
    algoperf_dir = property(attrgetter("theirs.algoperf_dir"))
    algoperf_commit = property(attrgetter("theirs.algoperf_commit"))
    algoperf_changed_files = property(attrgetter("theirs.algoperf_changed_files"))

    def init_model_fn(self, rng: jax.Array) -> tuple[spec.Parameters, spec.ModelState]:
        params, model_state = self.theirs.init_model_fn(raw_key(rng))
        return params, model_state

    def model_fn(
        self,
        params: spec.Parameters,
        augmented_and_preprocessed_input_batch: spec.Batch,
        model_state: spec.ModelState,
        mode: spec.ForwardPassMode,
        rng: jax.Array,
        update_batch_norm: bool,
        use_running_average_bn: bool | None = None,
        dropout_rate: Any = 0.0,
    ) -> tuple[jax.Array, spec.ModelState]:
        """Returns logits and the model state.

        AlgoPerf's Dropout takes a traced rate (algoperf/jax_utils.py, since April 2025), so that
        trials which differ in it share a program. Its ViT and Transformer return None for a state
        they do not have, which here stays as it was; its Conformer's batch statistics gain axes
        of length 1 in their first update, dropped here: one program for all steps.
        """
        # WMT's Transformer has no such argument.
        bn = {"use_running_average_bn": use_running_average_bn} if self._takes_bn else {}
        logits, new = self.theirs.model_fn(
            params,
            augmented_and_preprocessed_input_batch,
            model_state,
            self._modes[mode.name],
            raw_key(rng),
            update_batch_norm,
            dropout_rate=dropout_rate,
            **bn,
        )
        new = model_state if new is None else new
        return logits, jax.tree.map(lambda leaf, like: leaf.reshape(like.shape), new, model_state)

    def _build_input_queue(
        self,
        data_rng: Any,
        split: str,
        data_dir: str,
        global_batch_size: int,
        *args: Any,
        start_step: int = 0,
        **kwargs: Any,
    ) -> Iterator[spec.Batch]:
        """Returns AlgoPerf's batches from `start_step` on.

        Other arguments are AlgoPerf's own, which not every workload of theirs has.
        """
        key = data_key(data_rng)
        with seeded_augmentation():
            queue = self.theirs._build_input_queue(
                key, split, data_dir, global_batch_size, *args, **kwargs
            )
        if split == "train" and "librispeech" in self.name:
            queue = with_own_torch_generator(queue, key)
        split_over = self.devices.batch()
        # The batches before the first are drawn and thrown away.
        return (
            jax.device_put(batch, split_over) for batch in itertools.islice(queue, start_step, None)
        )

    def example_batch(self, batch_size: int) -> spec.Batch:
        """Returns a random batch of the shapes and dtypes of AlgoPerf's: that of our own workload.

        Raises ValueError for a workload that has none.
        """
        from workloads import registry

        ours: Any = registry.make(algoperf_specs.short_name(self.name))
        return ours.example_batch(batch_size)

    def _eval_model_on_split(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = self.theirs._eval_model_on_split(*args, **kwargs)
        return {name: float(value) for name, value in metrics.items()}

    def eval_model(
        self,
        global_batch_size: int,
        params: spec.Parameters,
        model_state: spec.ModelState,
        rng: jax.Array,
        data_dir: str,
        imagenet_v2_data_dir: str | None = None,
        global_step: int = 0,
    ) -> dict[str, float]:
        """Returns AlgoPerf's metrics of all splits that have examples.

        AlgoPerf reports a loss of 0 for a split without examples (finewebedu_lm's test split).
        AlgoPerf continues a split at the end of its last evaluation. Here every evaluation reads
        the split from its start, so that a resumed trial measures what an uninterrupted one does.
        """
        self.theirs._eval_iters.clear()
        metrics = self.theirs.eval_model(
            global_batch_size,
            params,
            model_state,
            raw_key(rng),
            data_dir,
            imagenet_v2_data_dir,
            global_step,
        )
        return {
            name: value if isinstance(value, int) else float(value)
            for name, value in metrics.items()
            if self.theirs.num_test_examples or not name.startswith("test/") or "num_" in name
        }


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
