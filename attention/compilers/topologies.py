"""Accelerators to compile for that are not here: the compilers' settings, and TPUs' devices."""

import contextlib
import importlib.util
import math
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from attention.common import accelerators


@contextlib.contextmanager
def compiling_for(where: accelerators.Topology, has_kernels: bool) -> Iterator[str]:
    """Has the compilers that JAX will load compile for a topology; gives a folder for their logs.

    Before JAX is imported. Raises ValueError where the topology's compiler is not installed.
    """
    is_tpu = where.accelerator.platform == "tpu"
    extra, module = ("tpu", "libtpu") if is_tpu else ("gpu", "jax_cuda12_plugin")
    if importlib.util.find_spec(module) is None:
        raise ValueError(
            f"compiling for {where.text} needs the compiler of that platform: "
            f"pip install 'attnperf[compile-{extra}]' ({module} is not installed)"
        )
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ |= _tpu_settings(where, scratch) if is_tpu else _GPU_SETTINGS
        if is_tpu and has_kernels:
            # How many instructions (bundles) each operation became: nothing else times a kernel.
            os.environ["LIBTPU_INIT_ARGS"] = (
                f"--xla_jf_dump_to={scratch} --xla_jf_dump_llo_text=true "
                "--xla_jf_dump_llo_pass_label_regex=final_bundles"
            )
        yield scratch


_GPU_SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "-1",
    # Without a device nothing can be timed; Triton's matmuls are chosen by timing.
    "XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false",
}


def _tpu_settings(where: accelerators.Topology, scratch: str) -> dict[str, str]:
    return {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": where.accelerator.accelerator_type,
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_LOG_DIR": scratch,
        "XLA_FLAGS": "",  # the caller's are for what it runs, such as its number of CPU devices
    }


def tpu_devices(where: accelerators.Topology) -> tuple[Any, ...]:
    """Returns a TPU topology's devices. Raises ValueError if libtpu has no such topology."""
    import jax
    from jax.experimental import topologies

    # libtpu's hosts have 4 or 8 chips; a smaller topology is one host of so many.
    chips = where.shape + (1,) * (3 - len(where.shape))
    settings: dict[str, Any] = {}
    settings |= {"chips_per_host_bounds": chips} if math.prod(where.shape) < 4 else {}
    settings |= {"num_slices": where.slices} if where.slices > 1 else {}
    slice_name = where.text.partition("*")[0]
    try:
        description = topologies.get_topology_desc(slice_name, platform="tpu", **settings)
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        raise ValueError(f"topology {where.text!r}: libtpu has no such slice: {error}") from error
    return tuple(description.devices)
