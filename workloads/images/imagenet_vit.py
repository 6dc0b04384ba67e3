"""`imagenet_vit`: ViT-S/16 on ImageNet as AlgoPerf defines it, with its glu, map and post-LN kin.

Sizes, batch and statistics: algoperf/workloads/imagenet_vit/workload.py and
imagenet_resnet/workload.py. 22,122,472 parameters; batch 1024; 167,999 steps; validation error
0.2269 and test error (ImageNet-v2) 0.3481 are AlgoPerf's targets.
"""

from typing import Any

import jax.numpy as jnp

from workloads.base.options import Options
from workloads.images import image_transforms, image_workload, imagenet, vit

_OPTIONS: dict[str, dict[str, bool]] = {
    "imagenet_vit": {},
    "imagenet_vit_glu": {"use_glu": True},
    "imagenet_vit_map": {"use_map": True},
    "imagenet_vit_post_ln": {"use_post_layer_norm": True},
}
_EVAL_BATCH = 2048

DATA = image_workload.Images(
    image_size=224,
    num_classes=imagenet.NUM_CLASSES,
    num_train=imagenet.PARTS["train"].num_examples,
    # 50,000 rounded up to whole evaluation batches, as AlgoPerf does.
    num_eval_train=25 * _EVAL_BATCH,
    num_validation=imagenet.PARTS["validation"].num_examples,
    num_test=imagenet.PARTS["test"].num_examples,
    eval_batch_size=_EVAL_BATCH,
    train_transform=image_transforms.TrainTransform(),
    eval_transform=image_transforms.EvalTransform(),
    mixup_alpha=0.2,
)


def make(name: str, variant: Any, options: Options) -> image_workload.ImageWorkload:
    """Returns the workload; use `workloads.registry.make`."""
    model = vit.ViT(
        num_classes=DATA.num_classes,
        patch_size=16,
        width=384,
        depth=12,
        mlp_dim=1536,
        num_heads=6,
        dtype=jnp.dtype(options.compute_dtype),
        **_OPTIONS[name],
    )
    return image_workload.ImageWorkload(name, DATA, model, variant, options)
