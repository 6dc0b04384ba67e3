"""`digits_vit`: the ViT of `imagenet_vit`, small, on scikit-learn's digits in ImageNet's format.

A stand-in that a bare machine can train in half a minute: the same model class, loader, loss and
metric. Digits must not be mirrored or cropped, so training views are shifts by up to 3 of 32
pixels, without RandAugment and mixup. 217,226 parameters.
"""

from typing import Any

import jax.numpy as jnp

from workloads import digits, image_transforms, image_workload, vit

DATA = image_workload.Images(
    image_size=digits.IMAGE_SIZE,
    num_classes=digits.NUM_CLASSES,
    num_train=digits.SIZES["train"],
    num_eval_train=400,
    num_validation=digits.SIZES["validation"],
    num_test=digits.SIZES["test"],
    eval_batch_size=400,
    train_transform=image_transforms.ShiftTransform(max_shift=3),
    eval_transform=image_transforms.ShiftTransform(),
    cache=True,
)


def make(name: str, variant: Any, compute_dtype: str) -> image_workload.ImageWorkload:
    """Returns the workload; use `workloads.registry.make`."""
    model = vit.ViT(
        num_classes=DATA.num_classes,
        patch_size=8,
        width=64,
        depth=4,
        mlp_dim=256,
        num_heads=4,
        dtype=jnp.dtype(compute_dtype),
    )
    return image_workload.ImageWorkload(name, DATA, model, variant)
