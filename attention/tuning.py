"""`attention tune`: tiles of `fused` for one shape, tried by a TPU's compiler or by time.

By the compiler, without a device: the cycles of each kernel, of all batch entries and heads. On a
device: milliseconds of a forward and backward pass in which one kernel has other tiles. The best
tiles are those of one shape, mechanism and chip.
"""

import dataclasses
import math
import pathlib
import statistics
import timeit
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attention import records
from attention.common import accelerators, devices
from attention.compilers import kernel_cycles, topologies
from attention.kernels import inputs
from attention.kernels.gpu import plan_gpu
from attention.kernels.tpu import plan_tpu
from attention.masks import Mask

Sizes = dict[str, int]
_TIMES = 20


@dataclasses.dataclass(frozen=True)
class Problem:
    """The attention that tiles are tried for: shape B, T, H, K, D, and a mixer that learns nothing.

    kernel: a name or a record.
    """

    shape: tuple[int, ...]
    mixer: str = "standard"
    dtype: str = "bfloat16"
    mask: Mask = dataclasses.field(default_factory=Mask)
    kernel: Any = "fused"

    def arrays(self, entries: int = 1, **settings: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Returns the shapes of query, key and value, with so many times the batch entries."""
        batch, length, heads, key_heads, size = self.shape
        return tuple(
            jax.ShapeDtypeStruct((entries * batch, length, n, size), self.dtype, **settings)
            for n in (heads, key_heads, key_heads)
        )

    def program(self, tiles: Mapping[str, Sizes], sharding: NamedSharding | None = None) -> Any:
        """Returns the jitted forward and backward pass with these tiles. Raises ValueError."""
        mixer, kernel = records.mixer(self.mixer), records.with_tiles(self.kernel, tiles)

        def loss(*arrays: jax.Array) -> jax.Array:
            output = inputs.attend(mixer, *arrays, mask=self.mask, kernel=kernel, sharding=sharding)
            return jnp.sum(output.astype(jnp.float32))

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))

    def time(self, tiles: Mapping[str, Sizes]) -> Mapping[str, float]:
        """Returns milliseconds of both passes on the device that is here, for each kernel."""
        program = self.program(tiles)
        # Of one draw: queries that are keys do not change the time.
        arrays = [
            jax.random.normal(jax.random.key(0), array.shape, array.dtype)
            for array in self.arrays()
        ]
        jax.block_until_ready(program(*arrays))
        times = timeit.repeat(
            lambda: jax.block_until_ready(program(*arrays)), number=1, repeat=_TIMES
        )
        return dict.fromkeys(tiles, 1e3 * statistics.median(times))


@dataclasses.dataclass(frozen=True)
class Trial:
    """The sizes of a kernel, {} for its plan's, and the figure; or why they were refused."""

    kernel: str
    sizes: Sizes
    figure: float = math.inf
    refusal: str = ""


# The figure of each kernel with these tiles.
Measure = Callable[[Mapping[str, Sizes]], Mapping[str, float]]


def by_compiler(problem: Problem, where: accelerators.Topology, scratch: str) -> Measure:
    """Returns a measure: cycles on a TPU. scratch: of `topologies.compiling_for`.

    All chips of the topology compute the same, each its batch entries: the compiler has no single
    chip.
    """
    mesh = Mesh(np.array(topologies.tpu_devices(where)).reshape(-1, 1), ("data", "tensor"))
    lying = NamedSharding(mesh, PartitionSpec("data", None, "tensor", None))

    def measure(tiles: Mapping[str, Sizes]) -> Mapping[str, float]:
        for path in pathlib.Path(scratch).glob("*bundles*"):
            path.unlink()
        traced = problem.program(tiles, lying).trace(*problem.arrays(where.devices, sharding=lying))
        traced.lower(lowering_platforms=("tpu",)).compile()
        calls = {call["name"]: call for call in kernel_cycles.pallas_calls(traced.jaxpr)}
        lines = [kernel_cycles.KernelCall(name, 1, 0) for name in calls]
        cycles, _ = kernel_cycles.cycles(lines, calls, where.accelerator, scratch)
        return {name.split("_")[1]: number for name, number in cycles.items()}

    return measure


def trials(problem: Problem, platform: str, measure: Measure, together: bool) -> Iterator[Trial]:
    """Yields what is tried of each kernel, its plan's tiles first.

    together: each kernel has a figure of its own, so all get other tiles at once.
    """
    kernels = plan_tpu.KERNELS if platform == "tpu" else tuple(plan_gpu.TILES)
    for group in [kernels] if together else [(kernel,) for kernel in kernels]:
        for sizes in _candidates(problem.shape[1], platform):
            try:
                figures = measure(dict.fromkeys(group, sizes))
                yield from (Trial(kernel, sizes, figures[kernel]) for kernel in group)
            except (ValueError, jax.errors.JaxRuntimeError) as error:
                if not sizes:
                    raise
                refusal = str(error).splitlines()[0][:90]
                yield from (Trial(kernel, sizes, refusal=refusal) for kernel in group)


def _candidates(length: int, platform: str) -> list[Sizes]:
    """Returns the sizes that are tried for a sequence of this length, {} first."""
    if platform == "tpu":
        rows = [{"rows": rows} for rows in (128, 256, 512)]
        # Half as long as a block is the least that a block can be made of.
        blocks = [n for n in (256, 512, 1024, 2048, 4096) if n < 2 * length]
        return [{}, *rows, *({"queries": n, "keys": n} for n in blocks)]
    pairs = ((128, 64), (64, 64), (128, 32), (64, 32), (32, 32))
    return [{}, *({"queries": n, "keys": m, "warps": w} for n, m in pairs for w in (4, 8))]


def best(tried: list[Trial]) -> dict[str, Sizes]:
    """Returns `tiles`: the sizes of each kernel with the least figure, none for its plan's."""
    # Of equal figures the first counts, which is the plan's.
    winners: dict[str, Trial] = {}
    for trial in sorted(reversed(tried), key=lambda trial: -trial.figure):
        winners[trial.kernel] = trial
    return {kernel: trial.sizes for kernel, trial in winners.items() if trial.sizes}


def platform() -> str:
    """Returns that of the device that is here, 'tpu' or 'gpu'. Raises ValueError for CPUs."""
    name = devices.default_platform()
    if name == "cpu":
        raise ValueError(
            "tune times kernels on a TPU or GPU, and JAX runs on 'cpu' here; give --topology=v5e "
            "to try tiles by the TPU's compiler (pip install 'attnperf[compile-tpu]')"
        )
    return name
