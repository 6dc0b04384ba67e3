"""Where a run came from: versions, commit, devices. Written beside every trial and study."""

import contextlib
import functools
import importlib.metadata
import math
import os
import pathlib
import platform
import sys
from typing import Any

from attention.common import precision
from sweeps.records import layout
from workloads.base import host_checkout

_LIBRARIES = (
    "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy",
    "tensorflow-datasets", "ml_collections", "sentencepiece", "jiwer", "espeakng-loader",
    # AlgoPerf's pipelines draw and transform with these.
    "tensorflow", "tensorflow-text", "torch",
)  # fmt: skip

# JAX's options that change what a trial computes, or end it, as JAX has them unless a variable such
# as JAX_DEFAULT_PRNG_IMPL says otherwise: a trial's identity does not know the environment.
PINNED = {
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_disable_jit": False,
    "jax_debug_nans": False,
    "jax_debug_infs": False,
    "jax_transfer_guard": "allow",
}
# Variables that are noted, of JAX, XLA and their libraries.
_VARIABLES = ("JAX_", "XLA_", "LIBTPU_", "NVIDIA_TF32", "TF_CUDNN", "CUBLAS_", "NCCL_")

# Properties of AlgoPerf's workloads; ours have them as attributes.
_OF_WORKLOADS = (
    "target_metric_name", "validation_target_value", "test_target_value", "step_hint",
    "num_train_examples", "num_eval_train_examples",
    "num_validation_examples", "num_test_examples",
)  # fmt: skip


@functools.cache  # 15 ms: a study of 100,000 trials asks as often
def versions() -> dict[str, str]:
    """Returns the versions of Python and the libraries that decide a run's numbers."""
    numbers = {"python": platform.python_version()}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            numbers[name] = importlib.metadata.version(name)
    return numbers


@functools.cache
def git_commit() -> str | None:
    """Returns the commit of the running checkout, '-dirty' where it was changed, or None."""
    root = pathlib.Path(__file__).resolve().parents[2]
    snapshot = layout.read_json_if_there(root / "code.json")  # sweeps/records/code_snapshot.py
    if snapshot is not None:
        commit: str | None = snapshot["git_commit"]
        return commit

    revision = host_checkout.revision(root)
    return str(revision) if revision.commit else None


def code() -> dict[str, Any]:
    """Returns what records say of the code: versions and commit."""
    return {"versions": versions(), "git_commit": git_commit()}


def hardware() -> dict[str, Any]:
    """Returns what bit equality depends on: CPUs this process may use, their features, devices."""
    import jax

    devices = jax.devices()
    return {
        "os_platform": platform.platform(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "cpu_model_name": cpu("model name"),
        "cpu_features": cpu("flags"),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "device_kind": devices[0].device_kind,
        "device_count": len(devices),
        "process_count": jax.process_count(),
    }


def cpu(*fields: str) -> str | None:
    """Returns the first of /proc/cpuinfo's fields that is there, None without one."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(fields)), None)


def parameters(workload: Any) -> int:
    """Returns how many parameters the workload's model has, its variant's included.

    Before `init_model_fn` the model is traced, which takes no memory for its parameters.
    """
    import jax

    try:
        shapes = workload.param_shapes
    except ValueError:
        shapes = jax.eval_shape(workload.init_model_fn, jax.random.key(0))[0]
    # ShapeTuple is AlgoPerf's, and ours; `shape` is that of what was traced.
    return sum(
        math.prod(leaf.shape_tuple if hasattr(leaf, "shape_tuple") else leaf.shape)
        for leaf in jax.tree.leaves(shapes)
    )


def meta_data(
    workload: Any, seed: int, data_dir: str, matmul_precision: str = "default"
) -> dict[str, Any]:
    """Returns the content of meta_data_<k>.json: AlgoPerf's keys where it has them."""
    import jax

    count = parameters(workload)  # first: AlgoPerf's layers are counted as its model is traced
    workload_class = type(workload)
    names = {
        name for name in dir(workload_class) if isinstance(getattr(workload_class, name), property)
    }
    properties = {}
    for name in sorted({*names, *_OF_WORKLOADS} - {"param_shapes"}):
        value = None if name.startswith("_") else getattr(workload, name, None)
        if isinstance(value, int | float | str | bool) and value == value:  # JSON has no NaN
            properties[f"workload.{name}"] = value
    commit = git_commit()
    capability = str(getattr(jax.devices()[0], "compute_capability", ""))
    return {
        **properties,
        "parameters": count,
        "matmul_precision": matmul_precision,
        "float32_products": precision.made_of(matmul_precision, jax.default_backend(), capability),
        **hardware(),
        "python_version": platform.python_version(),
        "python_compiler": platform.python_compiler(),
        "versions": versions(),
        "git_commit_hash": commit,  # AlgoPerf's name; it is attnperf's here
        "attnperf_commit": commit,
        "rng_seed": seed,
        "data_dir": data_dir,
        "argv": sys.argv,
        # What may change a result beside what is PINNED.
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_VARIABLES)},
    }
