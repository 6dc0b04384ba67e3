"""Kernels by the real compilers, which need no device.

`pip install -e '.[compile-tpu]'`, or `'.[compile-gpu]'` in another environment.
"""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

tpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler for TPUs, is not installed: pip install -e '.[compile-tpu]'",
)
gpu = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None,
    reason="the compiler for GPUs is not installed: pip install -e '.[compile-gpu]'",
)

# jax.default_backend() is 'cpu' here: that the devices are TPUs is what the sharding says.
COMPILED = """
import dataclasses, re, sys
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
scratch = compiled.memory_analysis().temp_size_in_bytes
logits = len(re.findall(rf"f(?:32|16)\\[[\\d,]*{length},{length}\\]", text))
print(text.count("tpu_custom_call"), logits, scratch)
"""
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[2]),
    "XLA_FLAGS": "",
}
GPU_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "-1",
    "PYTHONPATH": ENVIRONMENT["PYTHONPATH"],
}
GPU_OPTIONS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"


@pytest.mark.parametrize(
    ("name", "dtype", "size", "length"),
    [
        ("laser", "bfloat16", 64, 1024),
        ("laser", "bfloat16", 80, 196),
        ("standard", "bfloat16", 128, 1024),
        ("laser", "bfloat16", 128, 1024),
        ("laser+softcap", "bfloat16", 256, 1024),
        ("laser+window", "bfloat16", 128, 2048),
        ("laser", "bfloat16", 512, 2048),
        ("laser", "float32", 720, 1024),
    ],
)
@pytest.mark.parametrize("kernel", ["splash", "fused"])
@tpu
def test_forward_and_backward_compile_for_a_mesh_of_tpus(kernel, name, dtype, size, length):
    """Two kernels, and no logits in memory: those of 1,024 tokens take 2^23 bytes a device.

    What `fused` keeps of wide heads for the backward pass, in float32, takes as much and more.
    `splash` has a third for dQ where keys are several blocks, but for float32 sums of bfloat16.
    """
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, kernel, name, dtype, str(size), str(length)],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    kernels, logits, scratch = map(int, done.stdout.split())
    assert kernels == (3 if (kernel, size) == ("splash", 720) else 2)
    assert logits == 0
    assert scratch < {("fused", 512): 9e6, ("fused", 720): 2e7}.get((kernel, size), 2**23)


# A mechanism in the smallest model, causal: a loss, and shapes of its parameters and arrays.
HOST = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from attention.verification import check
def problem(variant, array, mesh):
    host = check.Host(variant, 1, True)
    everywhere = NamedSharding(mesh, P())
    arrays = {"query": array, "key": array, "value": array}
    if "x" in variant.needs:
        shape = (*array.shape[:2], 64)
        arrays["x"] = jax.ShapeDtypeStruct(shape, array.dtype, sharding=everywhere)
    params = jax.eval_shape(lambda **a: host.init(jax.random.key(0), **a), **arrays)
    params = jax.tree.map(lambda leaf: leaf.update(sharding=everywhere), params)
    def loss(params, arrays):
        return jnp.sum(host.apply(params, **arrays).astype(jnp.float32) ** 2)
    return loss, params, arrays
"""
# A mechanism's kernels alone, of 4 heads on each of 4 devices; the compiler's dump is in `dump`.
CYCLES = """
import dataclasses, json, pathlib, sys
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh
from attention import registry
from attention.compilers import kernel_cycles
from attention.common import accelerators
length, dump, *names = sys.argv[1:]
devices = np.array(topologies.get_topology_desc("v5e:2x2", platform="tpu").devices)
mesh = Mesh(devices.reshape(4, 1), ("data", "tensor"))
heads = NamedSharding(mesh, P("data", None, "tensor", None))
found = {}
for name in names:
    given = {"width": 256} if "window" in name else {}
    variant = dataclasses.replace(registry.get(name, kernel="fused", **given), sharding=heads)
    array = jax.ShapeDtypeStruct((4, int(length), 4, 128), jnp.bfloat16, sharding=heads)
    loss, params, arrays = problem(variant, array, mesh)
    for path in pathlib.Path(dump).glob("*.txt"):
        path.unlink()
    traced = jax.jit(jax.value_and_grad(loss, (0, 1))).trace(params, arrays)
    traced.lower(lowering_platforms=("tpu",)).compile()
    cycles = {
        call["name"]: kernel_cycles.cycles(call, 0, accelerators.KINDS["v5e"], dump)
        for call in kernel_cycles.pallas_calls(traced.jaxpr)
    }
    assert all(cycles.values()), cycles
    suffix = "_window" if "window" in name else ""
    found[name] = [cycles[f"fused_{part}{suffix}"] / 4 for part in ("forward", "backward")]
print(json.dumps(found))
"""
# Documents and a mask by head, on a mesh; what is counted depends on the platform.
MASKED = """
import dataclasses, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from attention import registry
from attention.masks import Mask
from sweeps.compilers import compiled_step
from attention.common import accelerators
platform, size, length = sys.argv[1], *map(int, sys.argv[2:4])
topology = {"tpu": "v5e:2x2", "cuda": "h100:1x1x4"}[platform]
devices = np.array(compiled_step._devices(accelerators.topology(topology)))
mesh = Mesh(devices.reshape(2, 1, 2), ("data", "fsdp", "tensor"))
heads = NamedSharding(mesh, P("data", None, "tensor", None))
attend = dataclasses.replace(registry.get("laser", kernel="fused"), sharding=heads)
array = jax.ShapeDtypeStruct((2, length, 4, size), "bfloat16", sharding=heads)
ids = jax.ShapeDtypeStruct((2, length), "int32", sharding=NamedSharding(mesh, P("data", None)))
pairs = NamedSharding(mesh, P(None, "tensor"))
pairs = jax.ShapeDtypeStruct((4, length, length), bool, sharding=pairs)
def documents(ids):
    return Mask(causal=True, segments=(ids, ids))
def bounds(ids):
    return Mask(causal=True, lower=ids) & Mask.of(lambda i, j: (j % 128 > 0) | (i < j + 99))
for make, given in ((documents, ids), (bounds, ids), (lambda pairs: pairs, pairs)):
    def loss(query, key, value, given):
        return jnp.sum(attend(query, key, value, mask=make(given)).astype(jnp.float32))
    step = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).trace(array, array, array, given)
    text = step.lower(lowering_platforms=(platform,)).compile().as_text()
    print("kernels", text.count("tpu_custom_call") + text.count("__gpu$xla.gpu.triton"))
"""


def spills(folder):
    """Returns (kernel, bytes that ptxas says it stores and loads for want of registers) of the PTX
    that XLA dumped."""
    import nvidia.cuda_nvcc

    assembler = pathlib.Path(nvidia.cuda_nvcc.__path__[0], "bin", "ptxas")
    found = []
    for path in folder.glob("*.ptx"):
        if "entry fused_" in path.read_text():
            command = [assembler, "-v", "-arch=sm_90a", path, "-o", "/dev/null"]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
            kernel = re.search(r"properties for (fused_\w+)", said)[1]
            found.append((kernel, [int(n) for n in re.findall(r"(\d+) bytes spill", said)]))
    return found


@pytest.mark.parametrize(
    ("platform", "size", "length"),
    [
        pytest.param("tpu", 64, 200, marks=tpu),
        pytest.param("tpu", 128, 4096, marks=tpu),
        pytest.param("tpu", 512, 1024, marks=tpu),
        pytest.param("cuda", 64, 200, marks=gpu),
        pytest.param("cuda", 128, 1000, marks=gpu),
    ],
)
def test_masks_compile_for_a_mesh(platform, size, length, tmp_path):
    """Documents, a function with lower bounds, and a mask by head; by ptxas nothing is spilled."""
    options = f"{GPU_OPTIONS} --xla_dump_to={tmp_path}" if platform == "cuda" else ""
    environment = GPU_ENVIRONMENT if platform == "cuda" else ENVIRONMENT
    done = subprocess.run(
        [sys.executable, "-c", MASKED, platform, str(size), str(length)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment, "XLA_FLAGS": options},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts = [int(line.split()[1]) for line in done.stdout.splitlines() if "kernels" in line]
    assert counts == [2 if platform == "tpu" else 3] * 3
    if platform == "cuda":
        found = spills(tmp_path)
        assert len(found) == 9
        assert not any(sum(spilled) for _, spilled in found), found


# Cycles of a head and batch entry, forward and backward: measured, and the most allowed.
LIMITS = {
    1024: {
        "standard": (3_700, 6_400),
        "standard+softcap": (3_850, 6_650),
        "standard+alibi": (3_950, 6_650),
        "standard+fox": (3_750, 6_650),
        "standard+sink": (3_800, 6_650),
        "sigmoid": (2_700, 6_400),
        "softpick": (3_950, 6_400),
        "laser": (4_260, 6_750),
    },
    4096: {
        "standard": (59_200, 90_500),
        "standard+window": (13_300, 21_300),
    },
}


@tpu
@pytest.mark.parametrize("length", LIMITS)
def test_cycles_by_the_compiler(length, tmp_path):
    """bfloat16, head size 128, causal; they repeat to the digit."""
    options = f"--xla_jf_dump_to={tmp_path} --xla_jf_dump_llo_text=true"
    options += " --xla_jf_dump_llo_pass_label_regex=final_bundles"
    done = subprocess.run(
        [sys.executable, "-c", HOST + CYCLES, str(length), str(tmp_path), *LIMITS[length]],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT, "LIBTPU_INIT_ARGS": options},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    cycles = json.loads(done.stdout.splitlines()[-1])
    print(cycles)
    for name, limits in LIMITS[length].items():
        assert all(one <= most for one, most in zip(cycles[name], limits, strict=True)), cycles


@tpu
def test_tune_by_the_compiler():
    """The plan's tiles have the cycles above; the best are not worse than any."""
    command = [sys.executable, "-m", "attention", "tune", "1,1024,1,128", "--topology=v5e"]
    environment = {**os.environ, "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    _, *rows, best = done.stdout.splitlines()
    cycles = [(row.split()[0], float(row.split()[-1].replace(",", ""))) for row in rows]
    for number, kernel in enumerate(("forward", "backward")):
        figures = [figure for name, figure in cycles if name == kernel]
        assert len(figures) == 7
        assert figures[0] <= LIMITS[1024]["standard"][number]
        assert (kernel in best) == (min(figures) < figures[0])


# The kernels' scratch on an H100.
COMPILED_FOR_GPU = """
import dataclasses, sys
import numpy as np
from jax.sharding import Mesh
from attention import registry
from sweeps.compilers import compiled_step
from attention.common import accelerators
name, dtype, precision = sys.argv[1:4]
size, length = map(int, sys.argv[4:])
devices = np.array(compiled_step._devices(accelerators.topology("h100:1x1x4")))
mesh = Mesh(devices.reshape(2, 1, 2), ("data", "fsdp", "tensor"))
heads = NamedSharding(mesh, P(("data", "fsdp"), None, "tensor", None))
variant = dataclasses.replace(registry.get(name, kernel="fused"), sharding=heads)
array = jax.ShapeDtypeStruct((4, length, 4, size), dtype, sharding=heads)
loss, params, arrays = problem(variant, array, mesh)
with jax.default_matmul_precision(precision):
    step = jax.jit(jax.value_and_grad(loss, (0, 1)))
    compiled = step.trace(params, arrays).lower(lowering_platforms=("cuda",)).compile()
print(compiled.memory_analysis().temp_size_in_bytes)
"""


@pytest.mark.parametrize(
    ("name", "dtype", "precision", "size", "length"),
    [
        ("standard", "bfloat16", "default", 64, 1024),
        ("laser", "bfloat16", "default", 64, 1024),
        ("laser", "float32", "default", 64, 196),
        ("laser", "bfloat16", "default", 80, 196),
        ("standard", "bfloat16", "default", 128, 1024),
        ("laser", "bfloat16", "default", 128, 1024),
        ("softpick", "bfloat16", "default", 64, 1024),
        ("standard+alibi", "bfloat16", "default", 64, 1024),
        ("sigmoid", "bfloat16", "default", 128, 1024),
        ("laser+sink", "bfloat16", "default", 128, 1024),
        ("laser+fox", "bfloat16", "default", 128, 1024),
        ("laser+window", "bfloat16", "default", 128, 4096),
        ("laser+softcap", "bfloat16", "highest", 128, 1024),
        ("laser", "float32", "tensorfloat32", 128, 1000),
        ("laser", "bfloat16", "default", 256, 1024),
        ("laser", "bfloat16", "default", 512, 1),
        ("laser", "float32", "default", 512, 300),
    ],
)
@gpu
def test_three_kernels_compile_for_h100(name, dtype, precision, size, length, tmp_path):
    """No logits in memory, and no register spilled at head sizes of 64 and 128."""
    sizes = [str(size), str(length)]
    done = subprocess.run(
        [sys.executable, "-c", HOST + COMPILED_FOR_GPU, name, dtype, precision, *sizes],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            **GPU_ENVIRONMENT,
            "XLA_FLAGS": f"{GPU_OPTIONS} --xla_dump_to={tmp_path}",
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found, scratch = spills(tmp_path), int(done.stdout)
    parts = sorted(kernel.removesuffix("_causal") for kernel, _ in found)
    assert parts == ["fused_by_key", "fused_by_query", "fused_forward"]
    if size in (64, 128):
        assert not any(sum(spilled) for _, spilled in found), found
    logits = 4 * length * length * 4
    # cuBLAS has a workspace of 32 MiB for the product of FoX's gates.
    assert scratch - (32 << 20) * ("fox" in name) < logits or length < 1000
