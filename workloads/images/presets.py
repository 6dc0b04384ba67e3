"""The image workloads: ViT-S/16 on ImageNet as AlgoPerf defines it, and its small stand-in.

`imagenet_vit` and its glu, map and post-LN forms: sizes, batch and statistics by
algoperf/workloads/imagenet_vit/workload.py and imagenet_resnet/workload.py. 22,122,472 parameters;
batch 1024; 167,999 steps; validation error 0.2269 and test error (ImageNet-v2) 0.3481 are
AlgoPerf's targets.

`digits_vit`: the same model class, loader, loss and metric on scikit-learn's digits in ImageNet's
format, which a bare machine trains in half a minute. Digits must not be mirrored or cropped, so
training views are shifts by up to 1 of 32 pixels, without RandAugment and mixup. Patches of 4 give
64 tokens; two layers of width 64 reach about 3 % test error in 500 steps of batch 32 (20 s on one
CPU core), where four layers on patches of 8 needed twice the time for 4 %. 75,018 parameters.
"""

from typing import Any

import jax.numpy as jnp

from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.base.workload_spec import WorkloadSpec
from workloads.images import digits, imagenet, images, vit
from workloads.images.image_workload import Images, ImageWorkload

_VIT_S_16 = {"patch_size": 16, "width": 384, "depth": 12, "mlp_dim": 1536, "num_heads": 6}
MODELS: dict[str, dict[str, Any]] = {
    "imagenet_vit": _VIT_S_16,
    "imagenet_vit_glu": {**_VIT_S_16, "use_glu": True},
    "imagenet_vit_map": {**_VIT_S_16, "use_map": True},
    "imagenet_vit_post_ln": {**_VIT_S_16, "use_post_layer_norm": True},
    "digits_vit": {"patch_size": 4, "width": 64, "depth": 2, "mlp_dim": 128, "num_heads": 4},
}
_EVAL_BATCH = 2048

IMAGENET = Images(
    image_size=224,
    num_classes=imagenet.NUM_CLASSES,
    sizes=Sizes(
        num_train=imagenet.PARTS["train"].num_examples,
        # 50,000 rounded up to whole evaluation batches, as AlgoPerf does.
        num_eval_train=25 * _EVAL_BATCH,
        num_validation=imagenet.PARTS["validation"].num_examples,
        num_test=imagenet.PARTS["test"].num_examples,
        eval_batch_size=_EVAL_BATCH,
    ),
    train_transform=images.TrainTransform(),
    eval_transform=images.EvalTransform(),
    mixup_alpha=0.2,
)
DIGITS = Images(
    image_size=digits.IMAGE_SIZE,
    num_classes=digits.NUM_CLASSES,
    sizes=Sizes(
        num_train=digits.SIZES["train"],
        num_eval_train=400,
        num_validation=digits.SIZES["validation"],
        num_test=digits.SIZES["test"],
        # Measured on one CPU core, 1200 images: 0.38 s in batches of 16, 1.11 s in one of 400.
        eval_batch_size=16,
    ),
    train_transform=images.ShiftTransform(max_shift=1),
    eval_transform=images.ShiftTransform(),
    cache=True,
)


def make(row: WorkloadSpec, variant: Any, options: Options) -> ImageWorkload:
    """Returns the workload; use `workloads.registry.make`."""
    data = DIGITS if row.embedded else IMAGENET
    model = vit.ViT(
        num_classes=data.num_classes,
        variant=variant,
        dtype=jnp.dtype(options.compute_dtype),
        **MODELS[row.name],
    )
    return ImageWorkload(row, data, model, options)
