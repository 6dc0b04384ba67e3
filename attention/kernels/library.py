"""Kernels: who computes the softmax-weighted sum, chosen by name and never silently.

`xla` is our core (float32 sums, every mask, bias and dropout). `jax_xla` and `cudnn` are
jax.nn.dot_product_attention; what they cannot do raises before they are called, and the message
says which kernel can.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from attention import table
from attention.kernels import core
from attention.kernels.masks import Visibility
from attention.mixers import shift

Array = jax.Array


class Problem(NamedTuple):
    """One attention call. query [..., T, H, D], key [..., S, H, D]; see `standard.attend`."""

    query: Array
    key: Array
    scale: float
    bias: Array | None
    mask: Array | None
    is_causal: bool
    visible: Visibility
    dropout: Array | None
    precision: jax.lax.PrecisionLike


class Kernel(NamedTuple):
    """`call(problem, value)` returns the weighted sum of value [..., S, H, Dv].

    span: the widest channel, in nats, whose centred exponentials survive its backward pass.
    """

    call: Callable[[Problem, Array], Array]
    span: float


def _xla(problem: Problem, value: Array) -> Array:
    arrays = _vary_together(
        problem.query, problem.key, value, problem.bias, problem.visible.pairs, problem.dropout
    )
    return core.weighted_sum(core.Settings(problem.scale, problem.precision), *arrays)


def _vary_together(*arrays: Array | None) -> list[Array | None]:
    """Returns the arrays varying over the same axes of a shard_map; elsewhere, as they are.

    A function with a backward pass of its own must return gradients that vary as its inputs do,
    and the gradient of a shared bias or key would vary over the axes of a sharded query.
    """
    axes = frozenset[str]().union(*(_varying(array) for array in arrays if array is not None))
    return [
        None if array is None else _made_varying(array, axes - _varying(array)) for array in arrays
    ]


def _varying(array: Array) -> frozenset[str]:
    """Returns the shard_map axes an array varies over (JAX 0.7 calls them vma)."""
    kind = jax.typeof(array)
    manual = getattr(kind, "manual_axis_type", None)
    return frozenset(getattr(kind, "vma", ()) if manual is None else manual.varying)


def _made_varying(array: Array, axes: frozenset[str]) -> Array:
    if not axes:
        return array
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, tuple(axes), to="varying")
    pvary = getattr(jax.lax, "pvary")  # noqa: B009  (gone from JAX 0.10)
    varying: Array = pvary(array, tuple(axes))
    return varying


def _library(implementation: Literal["xla", "cudnn"], problem: Problem, value: Array) -> Array:
    """Returns jax.nn.dot_product_attention's sum, in the query's dtype."""
    batch = problem.query.shape[:-3]
    heads, queries, keys = problem.query.shape[-2], problem.query.shape[-3], value.shape[-3]

    def merge(array: Array) -> Array:
        return array.reshape((math.prod(batch), *array.shape[-3:]))

    def whole(array: Array | None) -> Array | None:
        # jax#28974: cuDNN wants the last two axes of a bias or mask to be exactly (T, S).
        if array is None:
            return None
        array = array.reshape((1,) * (len(batch) + 3 - array.ndim) + array.shape)
        return merge(jnp.broadcast_to(array, (*batch, heads, queries, keys)))

    bias = problem.bias
    if bias is not None:
        # A row of −∞ is NaN in the library's softmax; of the lowest number it is not.
        bias = jnp.maximum(bias, jnp.finfo(bias.dtype).min)
    result = jax.nn.dot_product_attention(
        merge(problem.query),
        merge(problem.key),
        merge(value.astype(problem.key.dtype)),
        bias=whole(bias),
        mask=None if problem.mask is None else whole(problem.mask.astype(bool)),
        scale=problem.scale,
        is_causal=problem.is_causal,
        implementation=implementation,
    )
    return result.reshape((*batch, queries, heads, result.shape[-1]))


def _jax_xla(problem: Problem, value: Array) -> Array:
    _refuse_what_jax_nn_lacks("jax_xla", problem, value)
    return _library("xla", problem, value)


def _cudnn(problem: Problem, value: Array) -> Array:
    _refuse_what_jax_nn_lacks("cudnn", problem, value)
    table.check_kernel(
        "cudnn",
        platform=jax.default_backend(),
        dtype=problem.query.dtype.name,
        head_size=problem.query.shape[-1],
        value_size=value.shape[-1],
    )
    return _library("cudnn", problem, value)


def _refuse_what_jax_nn_lacks(name: str, problem: Problem, value: Array) -> None:
    """Raises ValueError for what jax.nn.dot_product_attention has no argument for."""
    if problem.dropout is not None:
        raise ValueError(f"kernel={name!r} has no attention dropout; use kernel='xla'")
    if value.shape[-1] != problem.key.shape[-1]:
        raise ValueError(
            f"kernel={name!r} wants the head size of V ({value.shape[-1]}) to be that of Q and "
            f"K ({problem.key.shape[-1]}); use kernel='xla'"
        )
    if problem.precision is not None:
        raise ValueError(
            f"kernel={name!r} takes no matmul precision (got {problem.precision!r}); use "
            "kernel='xla', or set jax_default_matmul_precision"
        )


KERNELS: dict[str, Kernel] = {
    "xla": Kernel(_xla, span=shift.OWN_SPAN),
    "jax_xla": Kernel(_jax_xla, span=shift.LIBRARY_SPAN),
    "cudnn": Kernel(_cudnn, span=shift.LIBRARY_SPAN),
}


def get(name: str) -> Kernel:
    """Returns the kernel called `name`. Raises ValueError that lists the kernels."""
    if name not in KERNELS:
        raise ValueError(table.unknown("kernel", name, KERNELS))
    return KERNELS[name]
