"""A trial's train step, compiled for accelerators that are not here, and the compiler's figures.

It runs in a process of its own (`jax_calls`). The compilers are set up by environment variables,
which JAX reads when it is imported, and a compiler that crashes ends that process alone. jax's
`topologies` give devices without hardware. The step is the one that trains, lowered for shapes.
"""

import collections
import glob
import importlib.metadata
import importlib.util
import math
import pathlib
import re
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attention import backends
from attention.common import accelerators
from attention.compilers import kernel_cycles, topologies
from sweeps.compilers import hlo
from sweeps.records import output
from sweeps.study.trial import Trial

# A part of the step, and a pattern of where in the traced program its operations come from; the
# first that matches. The optimizer has no module and no derivative.
_PARTS = (
    ("loss", r"loss|logits|\.\.\.w,vw|\.\.\.v,vw|\.\.\.v,\.\.\.w|cross_entropy|ctc|jvp\(\)/"),
    ("projections", r"/(query|key|value|out|qkv)/"),
    ("attention", r"[Aa]ttention(?!_norm)"),
    ("MLP", r"/mlp/|Mlp|FeedForward"),
    ("convolutions", r"Conv|[Ss]ubsampl|embedding/conv"),
    ("other layers", r"jvp\("),
    ("optimizer", r"."),
)
# What the figures depend on.
_LIBRARIES = {
    "tpu": ("jax", "jaxlib", "flax", "libtpu"),
    "cuda": ("jax", "jaxlib", "flax", "jax-cuda12-plugin", "nvidia-cudnn-cu12"),
}
_COPIES = ("copy", "transpose", "copy-start")
# Of every row; null where the memory does not suffice, but for fits and warnings.
FIGURES = (
    "memory_gb",
    "peak_gb",
    "fits",
    "step_ms",
    "xla_ms",
    "kernel_ms",
    "hbm_gb",
    "kernel_hbm_gb",
    "collectives_gb",
    "flops",
    "custom_calls",
    "warnings",
)
_WARNING = re.compile(r"Involuntary full rematerialization.{0,260}")
# XLA's names of the GPUs.
_NAMES = {"h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200"}


def compiled(trial: Trial, topology: str, plain: bool = False) -> dict[str, Any]:
    """Returns the figures of the trial's train step on a topology, as `compiler_report`.

    plain: with the attention that the model has of itself, whatever the variant. Raises ValueError
    where the extra is not installed, or mesh and batch do not fit the topology.
    """
    where = accelerators.topology(topology)
    # Kernels of no one platform are XLA's own operations.
    has_kernels = bool(backends.KERNELS[trial.kernel].platforms)
    with topologies.compiling_for(where, has_kernels) as scratch:
        from sweeps.training import train_step

        step = train_step.of_trial(trial, plain)
        state, *arguments = step.abstract_arguments(trial, _devices(where))
        named = {"parameters": state.params, "moments": state.optimizer, "batch": arguments[0]}
        return compiler_report(lambda: step.traced(state, *arguments), named, where, scratch)


def compiler_report(
    trace: Callable[[], Any],
    named: dict[str, Any],
    where: accelerators.Topology,
    scratch: str,
) -> dict[str, Any]:
    """Returns FIGURES of the traced program that `trace` returns, as `compile` defines them.

    Beside them, unless the memory does not suffice, "parts_ms" and "kernels_ms" (by part of the
    step, by kernel; {} for GPUs), "memory_parts_gb" and "versions". named: trees of sharded shapes
    among its arguments, for the memory. scratch: of `topologies.compiling_for`.
    """
    import jax

    # XLA:GPU's warnings are found nowhere else.
    with output.redirected(pathlib.Path(scratch, "stderr"), (2,)):
        traced = trace()
        try:
            executable = traced.lower().compile()
        except jax.errors.JaxRuntimeError as error:
            return {
                **dict.fromkeys(FIGURES),
                "fits": False,
                "warnings": [_out_of_memory(str(error))],
            }
    module, device = hlo.Module(executable.as_text()), where.accelerator
    pallas_calls = _by_name(kernel_cycles.pallas_calls(traced.jaxpr))
    times, uncounted = _times(module, pallas_calls, device, scratch)
    warnings = _warnings(scratch)
    if module.unread:
        warnings.append(f"loops counted once, or branches not at all: {', '.join(module.unread)}")
    warnings += [f"kernel {name} is NOT counted: no bundles or grid known" for name in uncounted]
    memory = memory_parts(executable, named)
    memory_gb = sum(memory.values()) / 1e9
    return {
        "memory_gb": memory_gb,
        "peak_gb": executable.memory_analysis().peak_memory_in_bytes / 1e9,
        # A TPU's compiler refuses what does not fit.
        "fits": device.platform == "tpu" or memory_gb <= accelerators.GPU_SHARE * device.memory_gb,
        **times,
        **_transfers(module, pallas_calls, device),
        "flops": kernel_cycles.flop_of(traced.jaxpr) / where.devices,
        "warnings": warnings,
        "memory_parts_gb": {part: size / 1e9 for part, size in memory.items()},
        "versions": {
            name: importlib.metadata.version(name) for name in _LIBRARIES[device.platform]
        },
    }


def _times(
    module: hlo.Module,
    pallas_calls: dict[str, dict[str, Any]],
    device: accelerators.Accelerator,
    scratch: str,
) -> tuple[dict[str, Any], list[str]]:
    """Returns the figures in milliseconds, and the kernels that are not in them."""
    if device.platform != "tpu":
        nothing = dict.fromkeys(("step_ms", "xla_ms", "kernel_ms"))
        return {**nothing, "parts_ms": {}, "kernels_ms": {}}, []
    parts: collections.Counter[str] = collections.Counter()
    cycles: dict[str, float] = {}
    uncounted = []
    for line in module.counted:
        if line.instruction.cycles:
            parts[_part(line.instruction)] += line.instruction.cycles * line.times
        if line.instruction.is_kernel:
            name = kernel_cycles.kernel_name(line.instruction.name)
            call = pallas_calls.get(name)
            of_call = call and kernel_cycles.cycles(call, line.all_bytes, device, scratch)
            if of_call:
                cycles[name] = cycles.get(name, 0.0) + line.times * of_call
            else:
                uncounted.append(name)
    parts_ms, kernels_ms = _in_ms(parts, device), _in_ms(cycles, device)
    xla_ms, kernel_ms = sum(parts_ms.values()), sum(kernels_ms.values())
    return {
        "step_ms": xla_ms + kernel_ms,
        "xla_ms": xla_ms,
        "kernel_ms": kernel_ms,
        "parts_ms": parts_ms,
        "kernels_ms": kernels_ms,
    }, uncounted


def _in_ms(cycles: Mapping[str, float], device: accelerators.Accelerator) -> dict[str, float]:
    return {name: number / device.clock_ghz / 1e6 for name, number in cycles.items()}


def _transfers(
    module: hlo.Module, pallas_calls: dict[str, dict[str, Any]], device: accelerators.Accelerator
) -> dict[str, Any]:
    """Returns the calls of kernels and libraries, and 10⁹ bytes of main memory and collectives."""
    calls: collections.Counter[str] = collections.Counter()
    hbm = kernel_hbm = collectives = 0.0
    for line in module.counted:
        traffic = _traffic(line, device, pallas_calls) * line.times
        hbm += traffic
        collectives += line.collective_bytes * line.times
        if line.instruction.call:
            calls[line.instruction.call] += line.times
        if line.instruction.is_kernel:
            kernel_hbm += traffic
    return {
        "hbm_gb": hbm / 1e9,
        "kernel_hbm_gb": kernel_hbm / 1e9,
        "collectives_gb": collectives / 1e9,
        "custom_calls": dict(calls),
    }


def memory_parts(executable: Any, named: dict[str, Any]) -> dict[str, int]:
    """Returns what a compiled program takes on one device, bytes by part.

    named: trees of sharded shapes among its arguments.
    """
    sizes = {name: _bytes(tree) for name, tree in named.items()}
    memory = executable.memory_analysis()
    return {
        **sizes,
        "other arguments": memory.argument_size_in_bytes - sum(sizes.values()),
        "outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "scratch": memory.temp_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
    }


def _devices(where: accelerators.Topology) -> tuple[Any, ...]:
    if where.accelerator.platform == "cuda":
        from jax.experimental.topologies import get_topology_desc

        description = get_topology_desc(
            platform="cuda",
            target_config=_target_config(where.kind),
            topology="x".join(map(str, where.shape)),
        )
        return tuple(description.devices)
    return topologies.tpu_devices(where)


def _target_config(kind: str) -> str:
    """Returns XLA's description of a GPU, with the versions of the libraries that are installed.

    An H200 is the same chip with another memory.
    """
    text = (pathlib.Path(__file__).parents[1] / "targets" / "h100.txtpb").read_text("utf-8")
    cudnn = importlib.metadata.version("nvidia-cudnn-cu12").split(".")
    cuda = importlib.metadata.version("nvidia-cuda-runtime-cu12").split(".")
    device = accelerators.KINDS[kind]
    return string.Template(text).substitute(
        name=_NAMES[kind],
        bandwidth=round(device.bandwidth_gb * 1e9),
        memory=round(device.memory_gb * 1e9),
        cudnn_major=cudnn[0],
        cudnn_minor=cudnn[1],
        cudnn_patch=cudnn[2],
        cuda_major=cuda[0],
        cuda_minor=cuda[1],
    )


def _out_of_memory(message: str) -> str:
    """Returns how much memory is lacking, in the compiler's words. Raises ValueError if none is."""
    # "Scoped" memory is the chip's own, which a kernel's blocks do not fit: not the step's.
    if "RESOURCE_EXHAUSTED" not in message or "ScopedVmem" in message:
        raise ValueError(f"the compiler refuses the train step: {message.splitlines()[0][:500]}")
    used = re.search(r"([\d.]+[KMGT])\)? (?:of|exceeds available HBM) \(?([\d.]+[KMGT])", message)
    return f"{used[1]} of {used[2]}" if used else message.splitlines()[0][:200]


def _warnings(scratch: str) -> list[str]:
    """Returns what the partitioner warned of, each once, as written to logs or standard error."""
    warnings: dict[str, None] = {}
    for path in [*glob.glob(f"{scratch}/*.log.*"), f"{scratch}/stderr"]:
        text = pathlib.Path(path).read_text("utf-8", errors="replace")
        warnings |= dict.fromkeys(_WARNING.findall(text))
    return list(warnings)


def _by_name(calls: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns kernels' calls by name, without names that different kernels share: the compiler's
    dump cannot tell them apart."""
    named: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for call in calls:
        named[call["name"]].append(call)

    def are_one(same: list[dict[str, Any]]) -> bool:
        # A printed kernel takes 0.2 s: where layers are scanned a name has one.
        return len(same) == 1 or len({f"{c['grid_mapping'].grid}{c['jaxpr']}" for c in same}) == 1

    return {name: same[-1] for name, same in named.items() if are_one(same)}


def _read_again(call: dict[str, Any]) -> float:
    """Returns the bytes that a kernel's programs read, less those of its operands.

    Each program reads its blocks as far as the array goes. A causal problem reads half of them.
    """
    total = 0.0
    grid = call["grid_mapping"]
    for block in grid.block_mappings[: grid.num_inputs]:
        array = block.array_aval
        sizes = [getattr(size, "block_size", 1) for size in block.block_shape]
        read = math.prod(map(min, sizes, array.shape)) * math.prod(grid.grid)
        total += max(0, read - array.size) * array.dtype.itemsize
    return total / 2 if call["name"].endswith("_causal") else total


def _traffic(
    line: hlo.Counted,
    device: accelerators.Accelerator,
    pallas_calls: dict[str, dict[str, Any]],
) -> float:
    """Returns the bytes of main memory that an instruction moves.

    A GPU's kernels read some operands more than once. Triton's: see `_read_again`. cuDNN's read
    keys and values (backward: queries and cotangents) for every tile of 128 rows that sees them,
    which is half of the tiles of a causal problem: (T/128 − 1) times their bytes are added. What
    the cache (50 MB) saves is not subtracted.
    """
    instruction = line.instruction
    if device.platform != "cuda" or not instruction.is_kernel:
        return line.bytes
    if "triton" in instruction.call:
        name = instruction.attribute(r'\bname = "(\w+)"')
        return line.bytes + (_read_again(pallas_calls[name]) if name else 0.0)
    shape = re.match(r"\w+\[(\d+),(\d+),(\d+),(\d+)\]", instruction.result.lstrip("("))
    if shape is None:
        return line.bytes
    batch, rows, heads, size = map(int, shape.groups())
    more = max(0, math.ceil(rows / 128) - 1) * 2 * (2 * batch * rows * heads * size)
    return line.bytes + more * (0.5 if "CAUSAL" in instruction.attributes else 1)


def _bytes(tree: Any) -> int:
    """Returns what a tree of sharded shapes takes on one device."""
    import jax

    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _part(instruction: hlo.Instruction) -> str:
    if instruction.opcode in _COPIES:
        return "layout copies"
    return next(
        (part for part, pattern in _PARTS if re.search(pattern, instruction.op_name)), "unnamed"
    )
