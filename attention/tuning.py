"""`attention tune`: tiles of `fused` for one shape, tried by a TPU's compiler or by time.

By the compiler, without a device: the cycles of each kernel, of all batch entries and heads. On a
device: milliseconds of a forward and backward pass in which one kernel has other tiles. The best
tiles are those of one shape, mechanism and chip.
"""

import functools
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

from attention.common import accelerators
from attention.compilers import kernel_cycles, topologies
from attention.kernels.gpu import plan_gpu
from attention.kernels.tpu import plan_tpu

Sizes = dict[str, int]
# Attention of query, key and value, with `tiles` and `sharding` as `flex` takes them.
Attend = Callable[..., jax.Array]
# The figure of each kernel with these tiles.
Measure = Callable[[Mapping[str, Sizes]], Mapping[str, float]]
# A kernel, its sizes, {} for the plan's, and the figure, or why they were refused.
Trial = tuple[str, Sizes, float | str]
_TIMES = 20


def _arrays(shape: tuple[int, ...], dtype: str, **lying: Any) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of query, key and value; shape: B, T, H, D or B, T, H, K, D."""
    batch, length, heads, *key_heads, size = shape
    keys = key_heads[0] if key_heads else heads
    return [
        jax.ShapeDtypeStruct((batch, length, n, size), dtype, **lying) for n in (heads, keys, keys)
    ]


def _passes(attend: Attend, tiles: Mapping[str, Sizes]) -> Any:
    """Returns the jitted forward and backward pass with these tiles."""

    def loss(*arrays: jax.Array) -> jax.Array:
        return jnp.sum(attend(*arrays, tiles=tiles).astype(jnp.float32))

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))


def time(
    attend: Attend, shape: tuple[int, ...], dtype: str, tiles: Mapping[str, Sizes]
) -> Mapping[str, float]:
    """Returns milliseconds of both passes on the device that is here; shape: of `_arrays`."""
    passes = _passes(attend, tiles)
    # Of one draw: queries that are keys do not change the time.
    drawn = [jax.random.normal(jax.random.key(0), x.shape, dtype) for x in _arrays(shape, dtype)]
    jax.block_until_ready(passes(*drawn))
    times = timeit.repeat(lambda: jax.block_until_ready(passes(*drawn)), number=1, repeat=_TIMES)
    return dict.fromkeys(tiles, 1e3 * statistics.median(times))


def cycles(
    attend: Attend,
    shape: tuple[int, ...],
    dtype: str,
    where: accelerators.Topology,
    scratch: str,
    tiles: Mapping[str, Sizes],
) -> Mapping[str, float]:
    """Returns cycles on a TPU. shape: of `_arrays`. scratch: of `topologies.compiling_for`.

    All chips of the topology compute the same, each its batch entries: the compiler has no single
    chip.
    """
    mesh = Mesh(np.array(topologies.tpu_devices(where)).reshape(-1, 1), ("data", "tensor"))
    lying = NamedSharding(mesh, PartitionSpec("data", None, "tensor", None))
    for path in pathlib.Path(scratch).glob("*bundles*"):
        path.unlink()
    arrays = _arrays((where.devices * shape[0], *shape[1:]), dtype, sharding=lying)
    traced = _passes(functools.partial(attend, sharding=lying), tiles).trace(*arrays)
    traced.lower(lowering_platforms=("tpu",)).compile()
    return {
        call["name"].split("_")[1]: kernel_cycles.cycles(call, 0, where.accelerator, scratch)
        for call in kernel_cycles.pallas_calls(traced.jaxpr)
    }


def trials(measure: Measure, length: int, platform: str, together: bool) -> Iterator[Trial]:
    """Yields what is tried of each kernel for so long a sequence, its plan's tiles first.

    together: each kernel has a figure of its own, so all get other tiles at once.
    """
    kernels = plan_tpu.KERNELS if platform == "tpu" else tuple(plan_gpu.TILES)
    for group in [kernels] if together else [(kernel,) for kernel in kernels]:
        for sizes in _candidates(length, platform):
            figures: Mapping[str, float | str]
            try:
                figures = measure(dict.fromkeys(group, sizes))
            except (ValueError, jax.errors.JaxRuntimeError) as error:
                if not sizes:
                    raise
                figures = dict.fromkeys(group, str(error).splitlines()[0][:90])
            yield from ((kernel, sizes, figures[kernel]) for kernel in group)


def _candidates(length: int, platform: str) -> list[Sizes]:
    """Returns the sizes that are tried for a sequence of this length, {} first."""
    if platform == "tpu":
        # Half as long as a block is the least that a block can be made of.
        blocks = [n for n in (256, 512, 1024, 2048, 4096) if n < 2 * length]
        squares = ({"queries": n, "keys": n} for n in blocks)
        return [{}, {"rows": 128}, {"rows": 256}, {"rows": 512}, *squares]
    pairs = ((128, 64), (64, 64), (128, 32), (64, 32), (32, 32))
    return [{}, *({"queries": n, "keys": m, "warps": w} for n, m in pairs for w in (4, 8))]


def best(tried: list[Trial]) -> dict[str, Sizes]:
    """Returns `tiles`: the sizes of each kernel with the least figure, none for its plan's."""
    tiles: dict[str, Sizes] = {}
    least: dict[str, float] = {}
    for kernel, sizes, figure in tried:
        # Of equal figures the first counts, which is the plan's.
        if not isinstance(figure, str) and figure < least.get(kernel, math.inf):
            least[kernel], tiles[kernel] = figure, sizes
    return {kernel: sizes for kernel, sizes in tiles.items() if sizes}
