"""Image classification as a workload: what full and embedded ViT share."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads.base import sources, spec
from workloads.base.options import Options
from workloads.base.workload import BaseWorkload, Sizes
from workloads.base.workload_spec import WorkloadSpec
from workloads.images import imagenet, images, vit

Array = jax.Array
# Purpose of a random draw, folded into the seed's key before the step; training has 1 and 3.
_MIXUP = 2


@dataclasses.dataclass(frozen=True)
class Images:
    """What a data set fixes.

    mean and stddev are per RGB channel in [0, 255]. mixup_alpha 0 is no mixup. cache keeps decoded
    images in memory.
    """

    image_size: int
    num_classes: int
    sizes: Sizes
    train_transform: Any
    eval_transform: Any
    mixup_alpha: float = 0.0
    cache: bool = False
    # AlgoPerf's ImageNet statistics (imagenet_resnet/workload.py).
    mean: tuple[float, float, float] = (0.485 * 255, 0.456 * 255, 0.406 * 255)
    stddev: tuple[float, float, float] = (0.229 * 255, 0.224 * 255, 0.225 * 255)


class ImageWorkload(BaseWorkload):
    """A ViT on images. Metrics: accuracy (fraction) and loss (nats per example).

    Batches: inputs float32 [B, H, W, 3] normalised; targets [B], or [B, C] with mixup; in
    evaluations weights float32 [B], 0 for what fills up a batch.
    """

    loss_type = spec.LossType.SOFTMAX_CROSS_ENTROPY

    def __init__(self, row: WorkloadSpec, data: Images, model: vit.ViT, options: Options) -> None:
        super().__init__(row, model, model.variant, options, data.sizes, cache=data.cache)
        self._data = data
        self.train_transform = data.train_transform
        self.eval_transform = data.eval_transform
        self.eval_example_bytes = 12 * data.image_size**2
        self._finish = jax.jit(self._finish_batch, static_argnames="train")

    def is_output_params(self, param_key: str) -> bool:
        return param_key == "head"

    def _initial_variables(self, key: Array) -> dict[str, Any]:
        size = self._data.image_size
        variables: dict[str, Any] = self._model.init({"params": key}, jnp.ones((1, size, size, 3)))
        return variables

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

    def _open(self, split: str, data_dir: str) -> sources.Source:
        return imagenet.open_split(data_dir, split)

    def _cached_record(self, record: dict[str, Any]) -> dict[str, Any]:
        return images.decoded(record)

    def _train_batch(self, batch: dict[str, np.ndarray], key: Array, step: int) -> spec.Batch:
        return self._finish(self.devices.shard(batch), _mixup_key(key, np.int32(step)), train=True)

    def _eval_batch(self, batch: dict[str, np.ndarray], first: int) -> spec.Batch:
        del first
        return self._finish(self.devices.shard(batch), jax.random.key(0), train=False)

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

    def _evaluated(
        self, params: spec.Parameters, model_state: spec.ModelState, batch: spec.Batch
    ) -> tuple[dict[str, Array], None]:
        logits = self._eval_logits(params, model_state, batch)
        correct = (jnp.argmax(logits, -1) == batch["targets"]) * batch["weights"]
        loss = self.loss_fn(batch["targets"], logits, batch["weights"])["summed"]
        return {"accuracy": correct.sum(), "loss": loss}, None

    def _metrics(
        self, sums: dict[str, float], num_examples: int, predictions: list[Any], data_dir: str
    ) -> dict[str, float]:
        del predictions, data_dir
        return {name: total / num_examples for name, total in sums.items()}


@jax.jit
def _mixup_key(key: Array, step: Array) -> Array:
    return jax.random.fold_in(jax.random.fold_in(key, _MIXUP), step)
