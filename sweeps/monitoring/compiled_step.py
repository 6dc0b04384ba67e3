"""A trial's train step compiled for accelerators that are not here, and what the compiler says.

Runs in a process of its own (`jax_calls`): the compilers read environment variables, which
JAX reads when it is imported, and a compiler that crashes takes no one with it. jax's
`topologies` give devices without hardware; the step is the one that trains, lowered for shapes.
"""

import contextlib
import glob
import importlib.metadata
import importlib.util
import math
import os
import pathlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from attention import table as variants_table
from sweeps.monitoring import hlo
from sweeps.study.trial import Trial
from sweeps.training import accelerators

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
_COPIES = ("copy", "transpose", "copy-start")
_WARNING = "Involuntary full rematerialization"
_BUNDLES = "schedule-analysis_final_bundles"


def compiled(trial: Trial, topology: str, plain: bool = False) -> dict[str, Any]:
    """Returns what the compiler says of the trial's train step on a topology.

    plain: with the host model's own attention.

    {"memory": bytes by part, "peak": bytes, "parts": cycles by part, "kernels": cycles by call,
    "calls": how often each, "hbm", "kernel_hbm", "collectives": bytes, "flops": of its matrix
    products and convolutions, "warnings", "cpu_seconds", "versions"}, of one device and one step;
    {"out_of_memory"}, in the compiler's words, where the memory does not suffice. Raises ValueError
    where the extra is not installed, or mesh and batch do not fit the topology.
    """
    where = accelerators.topology(topology)
    # Kernels of no one platform are XLA's own operations.
    with compiling_for(
        where, has_kernels=bool(variants_table.KERNELS[trial.kernel].platforms)
    ) as scratch:
        from sweeps.training import train_step

        step = train_step.of_trial(trial, plain)
        state, *others = step.abstract_arguments(trial, _devices(where))
        named = {"parameters": state.params, "moments": state.optimizer, "batch": others[0]}
        return compiler_report(lambda: step.traced(state, *others), named, where, scratch)


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


def compiler_report(
    trace: Callable[[], Any],
    named: dict[str, Any],
    where: accelerators.Topology,
    scratch: str,
) -> dict[str, Any]:
    """Returns what the compiler says of the traced program that `trace` returns; see `compiled`.

    named: trees of sharded shapes among its arguments, for "memory". scratch: of `compiling_for`.
    """
    import jax

    with _errors_in(scratch):
        traced = trace()
        try:
            executable = traced.lower().compile()
        except jax.errors.JaxRuntimeError as error:
            return _out_of_memory(str(error))
    text = executable.as_text()
    module = hlo.Module(text)
    counted = list(module.counted())
    calls = [one for one in counted if one.call]
    warnings = _warnings(scratch)
    if module.unknown_loops:
        warnings.append(f"loops counted once: {', '.join(module.unknown_loops)}")
    kernels: dict[str, float] = {}
    pallas_calls = list(_pallas_calls(traced.jaxpr))
    again = {one["name"]: _read_again(one) for one in pallas_calls}
    if where.accelerator.platform == "tpu":
        own = [one for one in calls if one.is_kernel]
        programs = {
            one["name"]: (math.prod(one["grid_mapping"].grid), _products(one["jaxpr"]))
            for one in pallas_calls
        }
        kernels, uncounted = _kernel_cycles(own, programs, where.accelerator, scratch)
        warnings += [
            f"kernel {name} is NOT counted: no bundles or grid known" for name in uncounted
        ]
    return {
        "memory": memory_parts(executable, named),
        "peak": executable.memory_analysis().peak_memory_in_bytes,
        "parts": hlo.totals(counted, _part, lambda one: one.instruction.cycles),
        "kernels": kernels,
        "calls": hlo.totals(calls, lambda one: one.call, lambda one: 1),
        "hbm": sum(_traffic(one, where, again) * one.times for one in counted),
        "kernel_hbm": sum(
            _traffic(one, where, again) * one.times for one in calls if one.is_kernel
        ),
        "collectives": sum(one.collective_bytes * one.times for one in counted),
        "flops": _products(traced.jaxpr) / where.devices,
        "warnings": warnings,
        "cpu_seconds": time.process_time(),
        "versions": _versions(where.accelerator.platform),
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
    import jax
    from jax.experimental import topologies

    if where.accelerator.platform == "cuda":
        shape = "x".join(map(str, where.shape))
        config = _target_config(where.kind)
        description = topologies.get_topology_desc(
            platform="cuda", target_config=config, topology=shape
        )
        return tuple(description.devices)
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


def _target_config(kind: str) -> str:
    """Returns XLA's description of a GPU, with the versions of the libraries that are installed."""
    text = (pathlib.Path(__file__).parents[1] / "targets" / "h100.txtpb").read_text("utf-8")
    if kind == "h200":  # the same chip with another memory
        text = re.sub(r"(memory_bandwidth): \d+", r"\1: 4800000000000", text)
        text = re.sub(r"(device_memory_size): \d+", r"\1: 151397597184", text)
        text = text.replace("NVIDIA H100 80GB HBM3", "NVIDIA H200")
    cudnn = importlib.metadata.version("nvidia-cudnn-cu12").split(".")[:3]
    cuda = importlib.metadata.version("nvidia-cuda-runtime-cu12").split(".")[:2]
    numbers = zip(("major", "minor", "patch"), cudnn, strict=True)
    runtime = zip(("major", "minor"), cuda, strict=True)
    return (
        text.replace("{CUDNN}", ".".join(cudnn))
        .replace("{CUDA}", ".".join([*cuda, "0"]))
        .replace("{CUDNN_VERSION}", " ".join(f"{name}: {value}" for name, value in numbers))
        .replace("{CUDA_VERSION}", " ".join(f"{name}: {value}" for name, value in runtime))
    )


@contextlib.contextmanager
def _errors_in(scratch: str) -> Iterator[None]:
    """Has standard error, from C++ too, go to a file: XLA:GPU's warnings are found nowhere else."""
    kept = os.dup(2)
    file = os.open(f"{scratch}/stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(file)


def _out_of_memory(message: str) -> dict[str, Any]:
    # "Scoped" memory is the chip's own, which a kernel's blocks do not fit: not the step's.
    if "RESOURCE_EXHAUSTED" not in message or "ScopedVmem" in message:
        raise ValueError(f"the compiler refuses the train step: {message.splitlines()[0][:500]}")
    used = re.search(r"([\d.]+[KMGT])\)? (?:of|exceeds available HBM) \(?([\d.]+[KMGT])", message)
    words = f"{used[1]} of {used[2]}" if used else message.splitlines()[0][:200]
    return {"out_of_memory": words}


def _warnings(scratch: str) -> list[str]:
    """Returns what the partitioner warned of, each once, as written to logs or standard error."""
    warnings: dict[str, None] = {}
    for path in [*glob.glob(f"{scratch}/*.log.*"), f"{scratch}/stderr"]:
        for line in pathlib.Path(path).read_text("utf-8", errors="replace").splitlines():
            if _WARNING in line:
                warnings[line[line.index(_WARNING) :][:300]] = None
    return list(warnings)


def _kernel_cycles(
    calls: list[hlo.Counted],
    programs: dict[str, tuple[int, float]],
    device: accelerators.Accelerator,
    scratch: str,
) -> tuple[dict[str, float], list[str]]:
    """Returns cycles by kernel, and the kernels that nothing is known of.

    programs: how many steps a kernel's grid has, and the FLOP of one's matrix products. A kernel's
    cycles: its bundles in all steps, what its products take at the matrix units' peak (which wide
    heads reach before their bundles end), or its operands and results at the memory's bandwidth,
    whichever is most. A loop inside a kernel counts once.
    """
    bundles: dict[str, int] = {}
    for path in pathlib.Path(scratch).glob(f"*{_BUNDLES}*"):
        total = re.search(
            r"total scheduled bundles:\s+(\d+)", path.read_text("utf-8", errors="replace")
        )
        name = re.sub(r"^\d+-|-\d+-" + _BUNDLES + r".*$", "", path.name)
        if total:
            bundles[_kernel_name(name)] = int(total[1])
    clock = device.clock_ghz * 1e9
    cycles: dict[str, float] = {}
    uncounted = []
    for one in calls:
        name = _kernel_name(one.instruction.name)
        if name not in bundles or name not in programs:
            uncounted.append(name)
            continue
        steps, products = programs[name]
        moved = one.all_bytes / (device.bandwidth_gb * 1e9) * clock
        multiplied = steps * products / (device.peak_tflops * 1e12) * clock
        cycles[name] = cycles.get(name, 0.0) + one.times * max(
            steps * bundles[name], multiplied, moved
        )
    return cycles, uncounted


def _kernel_name(instruction: str) -> str:
    """Returns a kernel's name from that of one of its calls, 'splash_mha_fwd.3.clone'."""
    return re.sub(r"(\.(\d+|clone|remat))+$", "", instruction)


def _pallas_calls(jaxpr: Any) -> Iterator[dict[str, Any]]:
    """Yields what each kernel of a traced program was called with."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation.params
        for value in equation.params.values():
            values = value if isinstance(value, tuple | list) else (value,)
            for program in (inner for part in values for inner in _inner(part)):
                yield from _pallas_calls(program)


def _read_again(call: dict[str, Any]) -> float:
    """Returns the bytes that a kernel's programs read beyond its operands once.

    Each reads its blocks, as far as there is an array; of all rows of a causal problem half.
    """
    total = 0.0
    grid = call["grid_mapping"]
    for block in grid.block_mappings[: grid.num_inputs]:
        array = block.array_aval
        sizes = [getattr(one, "block_size", 1) for one in block.block_shape]
        each = math.prod(map(min, sizes, array.shape)) * array.dtype.itemsize
        total += max(0, each * math.prod(grid.grid) - array.size * array.dtype.itemsize)
    return total / 2 if call["name"].endswith("_causal") else total


def _traffic(one: hlo.Counted, where: accelerators.Topology, again: dict[str, float]) -> float:
    """Returns the bytes of main memory an instruction moves; more than once for a GPU's kernels.

    again: of kernels in Triton by name, see `_read_again`. cuDNN's read keys and values (backward:
    queries and cotangents) again for every tile of 128 rows that sees them, half of the tiles where
    it is causal: (T/128 − 1) times their bytes, beside operands and results once. What its cache
    (50 MB) saves is not taken off.
    """
    if where.accelerator.platform == "cuda" and "triton" in one.call:
        name = re.search(r'\bname = "(\w+)"', one.instruction.rest)
        return one.bytes + (again[name[1]] if name else 0.0)
    shape = re.match(r"\w+\[(\d+),(\d+),(\d+),(\d+)\]", one.instruction.result.lstrip("("))
    if where.accelerator.platform != "cuda" or not one.is_kernel or shape is None:
        return one.bytes
    batch, rows, heads, size = map(int, shape.groups())
    more = max(0, math.ceil(rows / 128) - 1) * 2 * (2 * batch * rows * heads * size)
    return one.bytes + more * (0.5 if "CAUSAL" in one.instruction.rest else 1)


def _bytes(tree: Any) -> int:
    """Returns what a tree of sharded shapes takes on one device."""
    import jax

    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _part(one: hlo.Counted) -> str:
    if one.instruction.opcode in _COPIES:
        return "layout copies"
    place = one.instruction.op_name
    return next((part for part, pattern in _PARTS if re.search(pattern, place)), "unnamed")


def _products(jaxpr: Any) -> float:
    """Returns the FLOP of a traced program's matrix products and convolutions, all devices'.

    Loops count as often as they run, both sides of a kernel's conditions as the larger, whatever a
    compiler merges or computes twice is not known here.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2.0 * equation.outvars[0].aval.size * math.prod(shape[d] for d in contracted)
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval
            outputs = kernel.shape[params["dimension_numbers"].rhs_spec[0]]
            total += 2.0 * equation.outvars[0].aval.size * kernel.size / outputs
        elif name == "cond":
            total += max(_products(branch.jaxpr) for branch in params["branches"])
        else:
            times = 1.0
            if name == "scan":
                times = params["length"]
            elif name == "pallas_call":
                times = math.prod(params["grid_mapping"].grid)
            elif name == "shard_map":
                times = params["mesh"].size
            programs = (program for value in params.values() for program in _inner(value))
            total += times * sum(map(_products, programs))
    return total


def _inner(value: Any) -> list[Any]:
    """Returns the programs in a parameter of an equation."""
    value = getattr(value, "jaxpr", value)
    return [value] if hasattr(value, "eqns") else []


def _versions(platform: str) -> dict[str, str]:
    """Returns the versions that the figures depend on."""
    names = ["jax", "jaxlib", "flax"]
    names += ["libtpu"] if platform == "tpu" else ["jax-cuda12-plugin", "nvidia-cudnn-cu12"]
    return {name: importlib.metadata.version(name) for name in names}
