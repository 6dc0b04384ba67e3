"""What our backends in Pallas share: what they refuse, keys and caps they know, devices.

A kernel in Pallas knows a softmax of logits that sees all keys, earlier ones, or those that a mask
of keys leaves; XLA cannot divide it over devices, so `jax.shard_map` does, as `Problem.sharding`
says.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from attention import table
from attention.kernels.inputs import Problem

Array = jax.Array

LANES = 128


def refuse(kernel: str, problem: Problem, value: Array, interpret: str) -> None:
    """Raises ValueError for what `kernel` has no argument for, and where it cannot run.

    interpret: the platform whose kernel XLA is to run, for tests, else ''.
    """
    table.check_needs(kernel, problem.needs)
    platform = interpret or problem.platform
    table.check_kernel(
        kernel,
        platform=platform,
        dtype=problem.query.dtype.name,
        head_size=problem.query.shape[-1],
        value_size=value.shape[-1],
    )
    _check_matmul_precision(kernel, problem.query.dtype, platform)


def _check_matmul_precision(kernel: str, dtype: jnp.dtype, platform: str) -> None:
    """Raises ValueError for a default precision that a kernel's compiler does not know.

    Triton makes float32 products of float32 without the matrix units, in loops that spill 29 kB of
    registers (head size 64, by ptxas): not what anybody means.
    """
    given = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009  (mypy)
    wide = ("highest", "float32")
    known: tuple[str | None, ...] = (None, *_PRECISIONS[platform])
    if (dtype == jnp.float32) == (platform == "tpu"):
        known += wide
    if given not in known:
        raise ValueError(
            f"kernel={kernel!r} cannot multiply {dtype} at jax_default_matmul_precision={given!r}; "
            f"set {', '.join(map(repr, known[1:]))} or none, or use kernel='xla'"
        )


_PRECISIONS = {"tpu": ("default", "bfloat16"), "gpu": ("default", "tensorfloat32")}


def visible_keys(problem: Problem) -> Array | None:
    """Returns the keys that a mask of keys leaves, bool [..., S], None where there is none."""
    shape = (*problem.query.shape[:-3], problem.key.shape[-3])
    keys = problem.mask.keys
    if problem.mask.dense is not None:
        rank = problem.query.ndim
        dense = problem.mask.dense
        dense = dense.reshape((1,) * (rank - dense.ndim) + dense.shape)[..., 0, 0, :].astype(bool)
        keys = dense if keys is None else keys & dense
    return None if keys is None else jnp.broadcast_to(keys.astype(bool), shape)


def soft_cap(problem: Problem) -> float | None:
    """Returns the cap of `+softcap`, which kernels compute by the same formula."""
    cap: float | None = dict(problem.score[0].hyperparameters)["cap"] if problem.score else None
    return cap


def divided(length: int, most: int) -> tuple[int, int]:
    """Returns the size of as few equal blocks as hold `length`, and what they hold together."""
    count = -(-length // most)
    block = -(-length // (count * LANES)) * LANES
    return block, count * block


def on_devices(
    kernel: str,
    local: Callable[[dict[str, Array]], Array],
    problem: Problem,
    arrays: dict[str, Array],
) -> Array:
    """Returns local(arrays), every device on its own batch entries and heads.

    arrays: [..., length, H, D] by name, and "keys" [..., S]. Raises ValueError for a sharding that
    divides anything else.
    """
    sharding = problem.sharding
    if sharding is None or sharding.mesh.size == 1:
        return local(arrays)
    spec = _spec(kernel, sharding, arrays["query"].shape)
    specs = {name: spec for name in arrays}
    if "keys" in arrays:
        specs["keys"] = PartitionSpec(*spec[:-3], None)
    # pallas_call does not say over which axes of the mesh its results vary.
    divided = jax.shard_map(
        local, mesh=sharding.mesh, in_specs=(specs,), out_specs=spec, check_vma=False
    )
    return divided(arrays)


def _spec(kernel: str, sharding: NamedSharding, shape: tuple[int, ...]) -> PartitionSpec:
    """Returns how an array [..., T, H, D] is divided, without the axes that do not divide it.

    Those compute the same, as where a model is initialised with one example. Raises ValueError
    for a sharding of another rank, or one that divides T or D.
    """
    spec = (*sharding.spec, *(None,) * (len(shape) - len(sharding.spec)))
    if len(spec) != len(shape) or spec[-3] is not None or spec[-1] is not None:
        raise ValueError(
            f"kernel={kernel!r} is divided by batch and heads, [..., T, H, D] of shape {shape} by "
            f"PartitionSpec(..., None, heads, None), not by {sharding.spec}"
        )
    kept = []
    for size, axes in zip(shape, spec, strict=True):
        names = (axes,) if isinstance(axes, str) else axes or ()
        parts = math.prod(sharding.mesh.shape[name] for name in names)
        kept.append(None if size % parts else axes)
    return PartitionSpec(*kept)
