"""Image classification as a workload: ViT-S/16 on ImageNet as AlgoPerf has it, and small ones.

`imagenet_vit` and its glu, map and post-LN forms: sizes, batch and statistics by
algoperf/workloads/imagenet_vit/workload.py and imagenet_resnet/workload.py. 22,122,472 parameters;
batch 1024; 167,999 steps; validation error 0.2269 and test error (ImageNet-v2) 0.3481 are
AlgoPerf's targets.

`digits_vit`: the same model class, loader, loss and metric on scikit-learn's digits in ImageNet's
format, which a bare machine trains in half a minute. Digits must not be mirrored or cropped, so
training views are shifts by up to 1 of 32 pixels, without RandAugment and mixup. Patches of 4 give
64 tokens; two layers of width 64 reach about 3 % test error in 500 steps of batch 32 (20 s on one
CPU core), where four layers on patches of 8 needed twice the time for 4 %. 75,018 parameters.

`fashion_vit`: the same on Fashion-MNIST, 28 × 28, without augmentation. Patches of 7 give 16
tokens. The error is near 12 % after 10,000 steps of batch 64, with a standard deviation of 0.2
points over seeds. `fashion_vit_patch4`: patches of 4 give 49 tokens; batch 32.
"""

import dataclasses
import functools
import pkgutil
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads.base import sources, spec
from workloads.base.options import Options
from workloads.base.workload import BaseWorkload, Sizes
from workloads.base.workload_spec import WorkloadSpec
from workloads.images import image_set, imagenet, images, vit

# Purpose of a random draw, folded into the seed's key before the step; training has 1 and 3.
_MIXUP = 2
# AlgoPerf's ImageNet statistics (imagenet_resnet/workload.py), of red, green and blue in [0, 255].
_MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
_STDDEV = (0.229 * 255, 0.224 * 255, 0.225 * 255)


@dataclasses.dataclass(frozen=True)
class Images:
    """What a data set fixes. mixup_alpha 0 is no mixup; cache keeps decoded images in memory, of
    grey ones a single channel, which becomes three on the device. repair: returns the commands
    that make the data; None: ImageNet's own."""

    image_size: int
    num_classes: int
    sizes: Sizes
    train_transform: Any
    eval_transform: Any
    mixup_alpha: float = 0.0
    cache: bool = False
    grey: bool = False
    repair: Callable[[str], str] | None = None


class ImageWorkload(BaseWorkload):
    """A ViT on images. Metrics: accuracy (fraction) and loss (nats per example).

    Batches: inputs float32 [B, H, W, 3] normalised; targets [B], or [B, C] with mixup; in
    evaluations weights float32 [B], 0 for what fills up a batch.
    """

    loss_type = spec.LossType.SOFTMAX_CROSS_ENTROPY
    # Fashion-MNIST's evaluations are 188 MB as float32, and are decoded anew in 0.3 s.
    most_kept_bytes = 2**25

    def __init__(self, row: WorkloadSpec, data: Images, variant: Any, options: Options) -> None:
        """row.model: keyword arguments of `vit.ViT`."""
        model = vit.ViT(
            data.num_classes, variant=variant, dtype=jnp.dtype(options.compute_dtype), **row.model
        )
        super().__init__(row, model, variant, options, data.sizes, cache=data.cache)
        self._data = data
        self.train_transform = data.train_transform
        self.eval_transform = data.eval_transform
        self.eval_example_bytes = 12 * data.image_size**2
        self.id_limits = {"targets": data.num_classes}

    def is_output_params(self, param_key: str) -> bool:
        return param_key == "head"

    def _initial_variables(self, key: jax.Array) -> dict[str, Any]:
        size = self._data.image_size
        return self._model.init({"params": key}, jnp.ones((1, size, size, 3)))

    def loss_fn(
        self,
        label_batch: jax.Array,
        logits_batch: jax.Array,
        mask_batch: jax.Array | None = None,
        label_smoothing: Any = 0.0,
    ) -> dict[str, jax.Array]:
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
        repair = self._data.repair(data_dir) if self._data.repair else None
        source = imagenet.open_split(data_dir, split, repair)
        if (source.num_classes or 0) > self._data.num_classes:
            raise source.error(
                f"the data have {source.num_classes} classes, the model of {self} "
                f"{self._data.num_classes}"
            )
        return source

    def _cached_record(self, record: dict[str, Any]) -> dict[str, Any]:
        decoded = images.decoded(record)
        if self._data.grey:
            decoded["image"] = decoded["image"][..., :1].copy()
        return decoded

    def _finish(self, batch: spec.Batch, key: jax.Array | None, step: Any) -> spec.Batch:
        """Normalises on the device (images travel as uint8) and mixes training examples.

        mixup (arXiv:1710.09412) with one weight per batch and the neighbour as partner, as
        AlgoPerf's input_pipeline does.
        """
        mean, stddev = (jnp.asarray(statistic, jnp.float32) for statistic in (_MEAN, _STDDEV))
        inputs = (batch["inputs"].astype(jnp.float32) - mean) / stddev
        targets = batch["targets"]
        alpha = self._data.mixup_alpha
        if key is not None and alpha:
            mixup_key = jax.random.fold_in(jax.random.fold_in(key, _MIXUP), step)
            weight = jax.random.beta(mixup_key, alpha, alpha)
            targets = jax.nn.one_hot(targets, self._data.num_classes)
            inputs, targets = (
                weight * array + (1 - weight) * jnp.roll(array, 1, axis=0)
                for array in (inputs, targets)
            )
        return {**batch, "inputs": inputs, "targets": targets}

    def _evaluated(
        self, params: spec.Parameters, model_state: spec.ModelState, batch: spec.Batch
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        logits = self._eval_logits(params, model_state, batch)
        # The argmax of NaN is class 0.
        right = (jnp.argmax(logits, -1) == batch["targets"]) & ~jnp.isnan(logits).any(-1)
        correct = right * batch["weights"]
        losses = self.loss_fn(batch["targets"], logits, batch["weights"])
        sums = {"loss": losses["summed"], "examples": losses["n_valid_examples"]}
        items = {"values": right, "weights": batch["weights"]}
        return {"accuracy": correct.sum(), **sums}, items

    def _metrics(
        self, sums: dict[str, float], values: np.ndarray, weights: np.ndarray
    ) -> dict[str, float]:
        return {name: sums[name] / sums["examples"] for name in ("accuracy", "loss")}


_EVAL_BATCH = 2048

IMAGENET = Images(
    image_size=images.IMAGE_SIZE,
    num_classes=imagenet.NUM_CLASSES,
    sizes=Sizes(
        num_train=imagenet.SIZES["train"],
        # 50,000 rounded up to whole evaluation batches, as AlgoPerf does.
        num_eval_train=25 * _EVAL_BATCH,
        num_validation=imagenet.SIZES["validation"],
        num_test=imagenet.SIZES["test"],
        eval_batch_size=_EVAL_BATCH,
    ),
    train_transform=images.train_view,
    eval_transform=images.eval_view,
    mixup_alpha=0.2,
)


def make_imagenet(row: WorkloadSpec, variant: Any, options: Options) -> ImageWorkload:
    """Returns a workload on ImageNet; use `workloads.registry.make`."""
    return ImageWorkload(row, IMAGENET, variant, options)


def make(row: WorkloadSpec, variant: Any, options: Options) -> ImageWorkload:
    """Returns a workload on the `ImageSet` that row.data names; use `workloads.registry.make`.

    There is no mixup, and training views are shifts.
    """
    content: image_set.ImageSet = pkgutil.resolve_name(row.data)
    data = Images(
        image_size=content.image_size,
        num_classes=content.num_classes,
        sizes=Sizes(
            num_train=content.sizes["train"],
            num_eval_train=content.num_eval_train,
            num_validation=content.sizes["validation"],
            num_test=content.sizes["test"],
            eval_batch_size=content.eval_batch_size,
        ),
        train_transform=functools.partial(images.shifted_view, max_shift=content.max_shift),
        eval_transform=images.shifted_view,
        cache=True,
        grey=content.grey,
        repair=content.repair,
    )
    return ImageWorkload(row, data, variant, options)
