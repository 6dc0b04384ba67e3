"""Kernels of jax.nn.dot_product_attention: XLA's way (`jax_xla`) and cuDNN's (`cudnn`).

They know one softmax of scaled logits with a bias and a mask. What they cannot do raises before
they are called, and the message says which kernel can.
"""

import functools
import math
from typing import Literal

import jax
import jax.numpy as jnp

from attention import table
from attention.kernels import inputs
from attention.kernels.core import SOFTMAX
from attention.kernels.inputs import Problem
from attention.records import Kernel

Array = jax.Array

# Their backward pass multiplies exp(max − c) by the raw cotangent, in masked entries too.
SPAN = 60.0


def _call(name: str, problem: Problem, value: Array) -> Array:
    _refuse_what_jax_nn_lacks(name, problem)
    table.check_kernel(
        name,
        platform=problem.platform,
        dtype=problem.query.dtype.name,
        head_size=problem.query.shape[-1],
        value_size=value.shape[-1],
    )
    return _library("cudnn" if name == "cudnn" else "xla", problem, value)


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


def _refuse_what_jax_nn_lacks(name: str, problem: Problem) -> None:
    """Raises ValueError for what jax.nn.dot_product_attention has no argument for."""
    if problem.weighting is not SOFTMAX or problem.logits:
        raise ValueError(f"kernel={name!r} knows the plain softmax alone; use kernel='xla'")
    inputs.refuse_dropout_and_precision(name, problem)


JAX_XLA = Kernel(functools.partial(_call, "jax_xla"), span=SPAN, float32_sums=False)
CUDNN = Kernel(functools.partial(_call, "cudnn"), span=SPAN, float32_sums=False)
