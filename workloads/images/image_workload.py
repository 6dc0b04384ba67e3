"""Image classification as a workload: the part that full and embedded ViT share."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads.base import devices, example_queue, spec
from workloads.base.base_workload import Sizes, TableWorkload
from workloads.base.options import Options
from workloads.images import image_sources, imagenet, vit

Array = jax.Array
# Purpose of a random draw, folded into the seed's key before the step; training has 1 and 3.
_MIXUP = 2
_CACHE_BYTES = 2**28


@dataclasses.dataclass(frozen=True)
class Images:
    """What a data set fixes.

    Sizes count examples. mean and stddev are per RGB channel in [0, 255]. mixup_alpha 0 is no
    mixup. cache keeps decoded images in memory.
    """

    image_size: int
    num_classes: int
    num_train: int
    num_eval_train: int
    num_validation: int
    num_test: int
    eval_batch_size: int
    train_transform: Any
    eval_transform: Any
    mixup_alpha: float = 0.0
    cache: bool = False
    # AlgoPerf's ImageNet statistics (imagenet_resnet/workload.py).
    mean: tuple[float, float, float] = (0.485 * 255, 0.456 * 255, 0.406 * 255)
    stddev: tuple[float, float, float] = (0.229 * 255, 0.224 * 255, 0.225 * 255)

    @property
    def sizes(self) -> Sizes:
        """The sizes alone."""
        return Sizes(
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(Sizes)}
        )


class ImageWorkload(TableWorkload):
    """A ViT on images. Metrics: accuracy (fraction) and loss (nats per example)."""

    def __init__(
        self, name: str, data: Images, model: vit.ViT, variant: Any, options: Options
    ) -> None:
        super().__init__(name, variant, options, data.sizes)
        self._data = data
        self._model = model
        self._sources: dict[tuple[str, str], image_sources.ImageSource] = {}
        self._eval_batches: dict[tuple[str, str, int], list[spec.Batch]] = {}
        self._finish = jax.jit(self._finish_batch, static_argnames="train")
        self._eval_step = jax.jit(self._summed_metrics)
        self._init = jax.jit(self._initial_parameters, out_shardings=self.layout.replicated())

    @property
    def loss_type(self) -> spec.LossType:
        return spec.LossType.SOFTMAX_CROSS_ENTROPY

    def is_output_params(self, param_key: str) -> bool:
        return param_key == "head"

    def _depth(self, path: str) -> int:
        """The attention that pools (`use_map`) comes after all blocks."""
        return self._model.depth if "MAPHead" in path else super()._depth(path)

    def init_model_fn(self, rng: Array) -> tuple[spec.Parameters, None]:
        """Returns float32 parameters, replicated over the devices, and None.

        The key is split as AlgoPerf does, so that equal keys give AlgoPerf's initial values.
        """
        params_rng, _ = jax.random.split(rng)
        params = self._init(params_rng)
        self._param_shapes = jax.tree.map(lambda leaf: spec.ShapeTuple(leaf.shape), params)
        return params, None

    def _initial_parameters(self, key: Array) -> spec.Parameters:
        size = self._data.image_size
        with self._injected():
            return self._model.init({"params": key}, jnp.ones((1, size, size, 3)))["params"]

    def model_fn(
        self,
        params: spec.Parameters,
        augmented_and_preprocessed_input_batch: spec.Batch,
        model_state: spec.ModelState,
        mode: spec.ForwardPassMode,
        rng: Array,
        update_batch_norm: bool,
        use_running_average_bn: bool | None = None,
        dropout_rate: Any = 0.0,
    ) -> tuple[Array, spec.ModelState]:
        del model_state, update_batch_norm, use_running_average_bn
        with self._injected():
            logits = self._model.apply(
                {"params": params},
                augmented_and_preprocessed_input_batch["inputs"],
                rngs={"dropout": rng},
                train=mode == spec.ForwardPassMode.TRAIN,
                dropout_rate=dropout_rate,
            )
        return logits, None

    def loss_fn(
        self,
        label_batch: Array,
        logits_batch: Array,
        mask_batch: Array | None = None,
        label_smoothing: Any = 0.0,
    ) -> dict[str, Array]:
        """Cross-entropy; labels [B] int or mixed [B, C]; smoothing (1 − s)·y + s/C (optax)."""
        classes = self._data.num_classes
        labels = label_batch
        if labels.ndim == 1:
            labels = jax.nn.one_hot(labels, classes)
        labels = (1.0 - label_smoothing) * labels + label_smoothing / classes
        per_example = -jnp.sum(labels * jax.nn.log_softmax(logits_batch), axis=-1)
        weights = jnp.ones_like(per_example) if mask_batch is None else mask_batch
        per_example = per_example * weights
        return {
            "summed": per_example.sum(),
            "n_valid_examples": weights.sum(),
            "per_example": per_example,
        }

    def example_batch(self, batch_size: int) -> spec.Batch:
        size = self._data.image_size
        inputs = jax.random.normal(jax.random.key(1), (batch_size, size, size, 3))
        return {"inputs": inputs, "targets": jnp.zeros(batch_size, jnp.int32)}

    def _source(self, split: str, data_dir: str) -> image_sources.ImageSource:
        """Returns the split's examples, opened once and, where small, decoded once."""
        found = self._sources.get((split, data_dir))
        if found is not None:
            return found
        role = "train" if split == "eval_train" else split
        source: image_sources.ImageSource = imagenet.open_split(data_dir, role)
        if self._data.cache:
            source = image_sources.CachedSource(source)
        if split == "eval_train":
            source = image_sources.fixed_subset(source, self._data.num_eval_train)
        self._sources[split, data_dir] = source
        return source

    def _build_input_queue(
        self,
        data_rng: Any,
        split: str,
        data_dir: str,
        global_batch_size: int,
        cache: bool | None = None,
        repeat_final_dataset: bool | None = None,
        num_batches: int | None = None,
        start_step: int = 0,
    ) -> Iterator[spec.Batch]:
        """Batches: inputs float32 [B, H, W, 3] normalised; targets [B], or [B, C] with mixup."""
        del cache, repeat_final_dataset, num_batches
        if split == "train":
            return self._train_queue(data_rng, data_dir, global_batch_size, start_step)
        return self._eval_queue(split, data_dir, global_batch_size)

    def _train_queue(
        self, data_rng: Any, data_dir: str, batch_size: int, start_step: int
    ) -> Iterator[spec.Batch]:
        seed, key = devices.seed_and_key(data_rng)
        purpose = jax.random.fold_in(key, _MIXUP)
        stream = example_queue.train_batches(
            self._source("train", data_dir),
            seed=seed,
            batch_size=batch_size,
            transform=self._data.train_transform,
            start_step=start_step,
            rows=self.layout.rows(batch_size),
            num_workers=self.loader_workers,
        )
        with stream:
            for step, batch in enumerate(stream, start_step):
                yield self._finish(
                    self.layout.shard(batch), jax.random.fold_in(purpose, step), train=True
                )

    def _eval_queue(self, split: str, data_dir: str, batch_size: int) -> Iterator[spec.Batch]:
        stream = example_queue.eval_batches(
            self._source(split, data_dir),
            batch_size=batch_size,
            transform=self._data.eval_transform,
            rows=self.layout.rows(batch_size),
        )
        with stream:
            for batch in stream:
                yield self._finish(self.layout.shard(batch), jax.random.key(0), train=False)

    def _finish_batch(self, batch: spec.Batch, key: Array, train: bool) -> spec.Batch:
        """Normalises on the device (images travel as uint8) and mixes training examples.

        mixup (arXiv:1710.09412) with one weight per batch and the neighbour as partner, as
        AlgoPerf's input_pipeline does.
        """
        mean, stddev = (jnp.asarray(s, jnp.float32) for s in (self._data.mean, self._data.stddev))
        inputs = (batch["inputs"].astype(jnp.float32) - mean) / stddev
        targets = batch["targets"]
        alpha = self._data.mixup_alpha
        if train and alpha:
            weight = jax.random.beta(key, alpha, alpha)
            targets = jax.nn.one_hot(targets, self._data.num_classes)
            inputs, targets = (
                weight * array + (1 - weight) * jnp.roll(array, 1, axis=0)
                for array in (inputs, targets)
            )
        return {**batch, "inputs": inputs, "targets": targets}

    def _summed_metrics(self, params: spec.Parameters, batch: spec.Batch) -> dict[str, Array]:
        logits, _ = self.model_fn(
            params, batch, None, spec.ForwardPassMode.EVAL, jax.random.key(0), False
        )
        correct = (jnp.argmax(logits, -1) == batch["targets"]) * batch["weights"]
        loss = self.loss_fn(batch["targets"], logits, batch["weights"])["summed"]
        return {"accuracy": correct.sum(), "loss": loss}

    def _eval_model_on_split(
        self,
        split: str,
        num_examples: int,
        global_batch_size: int,
        params: spec.Parameters,
        model_state: spec.ModelState,
        rng: Array,
        data_dir: str,
        global_step: int = 0,
    ) -> dict[str, float]:
        del model_state, rng, global_step
        sums = [
            self._eval_step(params, batch)
            for batch in self._batches_of(split, data_dir, global_batch_size)
        ]
        totals = jax.tree.map(lambda *parts: float(np.sum([float(p) for p in parts])), *sums)
        return {name: total / num_examples for name, total in totals.items()}

    def _batches_of(self, split: str, data_dir: str, batch_size: int) -> Iterator[spec.Batch]:
        """Yields the split's batches; small splits stay on the devices between evaluations."""
        key = (split, data_dir, batch_size)
        if key in self._eval_batches:
            yield from self._eval_batches[key]
            return
        size = self._data.image_size**2 * 12 * len(self._source(split, data_dir))
        kept: list[spec.Batch] | None = [] if size <= _CACHE_BYTES else None
        for batch in self._eval_queue(split, data_dir, batch_size):
            if kept is not None:
                kept.append(batch)
            yield batch
        if kept is not None:
            self._eval_batches[key] = kept
