"""Kernels for TPUs and GPUs that XLA runs on a CPU."""

import dataclasses
import functools

import pytest

from attention.kernels import fused
from attention.kernels.gpu import plan_gpu

HAS_TRITON = hasattr(plan_gpu.triton, "load")
# JAX had other names for what the GPU's kernels need before 0.8, and is to remove it.
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="no Triton")
PLATFORMS = ("tpu", pytest.param("gpu", marks=needs_triton))


def interpreted(platform, module=fused):
    """Returns the record of a module's kernel, with XLA to run it."""
    call = functools.partial(module.weighted_sum, interpret=platform)
    return dataclasses.replace(module.KERNEL, call=call)
