"""Kernels for TPUs by the real compiler for TPUs, which needs none: `pip install -e '.[tpu]'`."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason="libtpu, the compiler for TPUs, is not installed: pip install -e '.[tpu]'",
    ),
]

# jax.default_backend() is 'cpu' here: that the devices are TPUs is what the sharding says.
COMPILED = """
import dataclasses, sys
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from attention import registry
devices = np.array(topologies.get_topology_desc("v5e:2x2", platform="tpu").devices)
kernel, name, dtype = sys.argv[1:4]
size, length = map(int, sys.argv[4:])
mesh = Mesh(devices.reshape(2, 1, 2), ("data", "fsdp", "tensor"))
heads = NamedSharding(mesh, P(("data", "fsdp"), None, "tensor", None))
attend = dataclasses.replace(registry.get(name, kernel=kernel), sharding=heads)
def loss(query, key, value):
    return jnp.sum(attend(query, key, value, is_causal=True).astype(jnp.float32))
array = jax.ShapeDtypeStruct((2, length, 4, size), dtype, sharding=heads)
step = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
compiled = step.trace(array, array, array).lower(lowering_platforms=("tpu",)).compile()
text = compiled.as_text()
print(text.count("tpu_custom_call"), compiled.memory_analysis().temp_size_in_bytes)
"""
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[2]),
}


@pytest.mark.parametrize(
    ("name", "dtype", "size", "length"),
    [
        ("laser", "bfloat16", 64, 1024),
        ("laser", "bfloat16", 80, 196),
        ("standard", "bfloat16", 128, 1024),
        ("laser", "bfloat16", 128, 1024),
        ("laser+softcap", "bfloat16", 256, 1024),
        ("laser", "bfloat16", 512, 2048),
        ("laser", "float32", 720, 1024),
    ],
)
@pytest.mark.parametrize("kernel", ["splash", "fused"])
def test_forward_and_backward_compile_for_a_mesh_of_tpus(kernel, name, dtype, size, length):
    """Two kernels, and no logits in memory: those of 1,024 tokens take 2^23 bytes a device."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, kernel, name, dtype, str(size), str(length)],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    kernels, scratch = map(int, done.stdout.split())
    assert kernels == 2
    assert scratch < 2**23
