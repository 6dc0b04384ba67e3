"""The image workloads. Standard library only.

Targets and step hint: algoperf/workloads/imagenet_vit/{workload.py,imagenet_jax/workload.py}.
"""

from typing import Any

from workloads.base.workload_spec import BOTH_WAYS, ModelSupport, WorkloadSpec

_VIT = ModelSupport(lacks=(BOTH_WAYS,))
_VIT_S_16 = {"patch_size": 16, "width": 384, "depth": 12, "mlp_dim": 1536, "num_heads": 6}
_SMALL = {"width": 64, "depth": 2, "mlp_dim": 128, "num_heads": 4}
_MAP = ModelSupport(lacks=(BOTH_WAYS, ("self", "pools its tokens by attention from a probe")))


def _vit_flops(parameters: int, patches: int, layers: int, width: int) -> dict[str, Any]:
    """Returns a training step's model FLOP per image, forward and backward.

    6 per parameter and patch, and 12·layers·width·patches per patch for QKᵀ and A·V, as for
    Transformers on text (arXiv:2204.02311, appendix B). The head, which sees an image once, counts
    as if it saw every patch: 2 % too many, and 9 % with attention pooling.
    """
    attention = 12 * layers * width * patches**2
    return {
        "flops": 6 * parameters * patches + attention,
        "attention_flops": attention,
        "positions": patches,
    }


def _imagenet(
    name: str, description: str, targets: tuple[float, float], parameters: int, **model: Any
) -> WorkloadSpec:
    return WorkloadSpec(
        name=name,
        factory="workloads.images.image_workload:make_imagenet",
        model={**_VIT_S_16, **model},
        data="workloads.images.imagenet",
        data_name="imagenet_vit",
        description=description,
        metric="accuracy",
        mode="max",
        batch_size=1024,
        step_hint=167_999,
        validation_target=targets[0],
        test_target=targets[1],
        parameters=parameters,
        head_size=64,
        support=_MAP if "use_map" in model else _VIT,
        unit="images",
        train_examples=1_281_167,
        **_vit_flops(parameters, patches=(224 // 16) ** 2, layers=12, width=384),
        # 69,768 s allowed for 167,999 steps (max_allowed_runtime_sec of the workload).
        step_seconds=0.4153,
        step_source="hours of 8 V100s: AlgoPerf's time budget of 0.415 s a step, an upper bound",
    )


def _fashion(
    name: str, patch_size: int, batch_size: int, parameters: int, step_seconds: float
) -> WorkloadSpec:
    patches = (28 // patch_size) ** 2
    return WorkloadSpec(
        name=name,
        factory="workloads.images.image_workload:make",
        model={"patch_size": patch_size, **_SMALL},
        data="workloads.images.fashion:FASHION",
        data_name="fashion_vit",
        description=f"small ViT on Fashion-MNIST, {patches} patches",
        metric="accuracy",
        mode="max",
        batch_size=batch_size,
        step_hint=10_000,
        validation_target=0.88,
        test_target=0.88,
        parameters=parameters,
        head_size=16,
        support=_VIT,
        unit="images",
        train_examples=55_000,
        **_vit_flops(parameters, patches=patches, layers=2, width=64),
        target_source="ours",
        stands_in_for="imagenet_vit",
        step_seconds=step_seconds,
        step_source=f"hours of one CPU core: {step_seconds:.4f} s a step, measured on a 2-core "
        "cloud machine",
    )


SPECS: tuple[WorkloadSpec, ...] = (
    _imagenet("imagenet_vit", "ViT-S/16 on ImageNet", (0.77309, 0.6519), 22_122_472),
    _imagenet(
        "imagenet_vit_glu", "ViT-S/16, gated MLP", (0.75738, 0.6359), 50_452_456, use_glu=True
    ),
    _imagenet(
        "imagenet_vit_map",
        "ViT-S/16, attention pooling",
        (0.77113, 0.6523),
        23_896_552,
        use_map=True,
    ),
    _imagenet(
        "imagenet_vit_post_ln",
        "ViT-S/16, post-LN",
        (0.75312, 0.6286),
        22_121_704,
        use_post_layer_norm=True,
    ),
    WorkloadSpec(
        name="digits_vit",
        factory="workloads.images.image_workload:make",
        model={"patch_size": 4, **_SMALL},
        data="workloads.images.digits:DIGITS",
        description="small ViT on scikit-learn's 8x8 digits",
        metric="accuracy",
        mode="max",
        batch_size=32,
        step_hint=500,
        validation_target=0.95,
        test_target=0.95,
        parameters=75_018,
        head_size=16,
        support=_VIT,
        unit="images",
        train_examples=997,
        **_vit_flops(75_018, patches=(32 // 4) ** 2, layers=2, width=64),
        target_source="ours",
        embedded=True,
        stands_in_for="imagenet_vit",
        step_seconds=0.040,
        step_source="hours of one CPU core: 0.040 s a step, measured on a 2-core cloud machine",
    ),
    _fashion("fashion_vit", patch_size=7, batch_size=64, parameters=81_354, step_seconds=0.014),
    _fashion(
        "fashion_vit_patch4", patch_size=4, batch_size=32, parameters=75_018, step_seconds=0.021
    ),
)
