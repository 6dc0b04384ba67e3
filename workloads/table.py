"""The table of workloads: what a driver must know of each without loading JAX.

Adding a workload is one module with a class and one line here. Standard library only.
"""

import dataclasses
import difflib
import os
import pathlib


@dataclasses.dataclass(frozen=True)
class Entry:
    """One workload.

    factory: 'module:function' called with (variant, compute_dtype). metric/mode: what validation
    selects by. Targets are in the metric's unit. parameters: of the standard variant; head_size: D.
    data: the module with `check(data_dir)` and `prepare(data_dir)`; embedded says that `prepare`
    needs no download. stands_in_for: the full-size twin of an embedded workload.
    """

    factory: str
    data: str
    description: str
    metric: str
    mode: str
    batch_size: int
    step_hint: int
    validation_target: float
    test_target: float
    parameters: int
    head_size: int
    embedded: bool = False
    stands_in_for: str = ""
    # Wall time of one update, and where the figure is from: what `sweeps plan` reckons with.
    step_seconds: float | None = None
    step_source: str = ""


def _imagenet(description: str, targets: tuple[float, float], parameters: int) -> Entry:
    return Entry(
        factory="workloads.imagenet_vit:make",
        data="workloads.imagenet",
        description=description,
        metric="accuracy",
        mode="max",
        batch_size=1024,
        step_hint=167_999,
        validation_target=targets[0],
        test_target=targets[1],
        parameters=parameters,
        head_size=64,
        # 69,768 s allowed for 167,999 steps (max_allowed_runtime_sec of the workload).
        step_seconds=0.4153,
        step_source="hours of 8 V100s: AlgoPerf's time budget of 0.415 s a step, an upper bound",
    )


# Targets and step hint: algoperf/workloads/imagenet_vit/{workload.py,imagenet_jax/workload.py}.
WORKLOADS: dict[str, Entry] = {
    "imagenet_vit": _imagenet("ViT-S/16 on ImageNet", (0.77309, 0.6519), 22_122_472),
    "imagenet_vit_glu": _imagenet("ViT-S/16, gated MLP", (0.75738, 0.6359), 50_452_456),
    "imagenet_vit_map": _imagenet("ViT-S/16, attention pooling", (0.77113, 0.6523), 23_896_552),
    "imagenet_vit_post_ln": _imagenet("ViT-S/16, post-LN", (0.75312, 0.6286), 22_121_704),
    "digits_vit": Entry(
        factory="workloads.digits_vit:make",
        data="workloads.digits",
        description="small ViT on scikit-learn's 8x8 digits",
        metric="accuracy",
        mode="max",
        batch_size=32,
        step_hint=500,
        validation_target=0.95,
        test_target=0.95,
        parameters=75_018,
        head_size=16,
        embedded=True,
        stands_in_for="imagenet_vit",
        step_seconds=0.040,
        step_source="hours of one CPU core: 0.040 s a step, measured on a 2-core cloud machine",
    ),
}

COMPUTE_DTYPES = ("float32", "bfloat16")


def entry(name: str) -> Entry:
    """Returns the workload's entry. Raises ValueError listing what exists and the nearest match."""
    if name not in WORKLOADS:
        nearest = difflib.get_close_matches(str(name), WORKLOADS, n=1, cutoff=0.5)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"unknown workload {name!r}. Known: {', '.join(WORKLOADS)}.{hint}")
    return WORKLOADS[name]


def check_compute_dtype(name: str) -> str:
    """Returns the name of a compute dtype. Raises ValueError for any other."""
    if name not in COMPUTE_DTYPES:
        reason = " (LASER in float16 gives NaN at values of size 4)" if name == "float16" else ""
        raise ValueError(
            f"compute_dtype={name!r} is not available{reason}; use {' or '.join(COMPUTE_DTYPES)}"
        )
    return name


def default_data_dir(name: str) -> pathlib.Path:
    """Returns where a workload's data is looked for when no --data_dir is given.

    $ATTNPERF_DATA/<name>, else the user's cache folder: embedded data may always be remade.
    """
    root = os.environ.get("ATTNPERF_DATA")
    if root:
        return pathlib.Path(root) / name
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "attnperf" / "data" / name
