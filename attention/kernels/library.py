"""Backends of jax.nn.dot_product_attention: XLA's (`jax_xla`) and cuDNN's (`cudnn`).

They know one softmax of scaled logits with a bias and a mask. What they cannot do raises before
they are called, and the message says which backend can.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from attention import backends, masks
from attention.kernels.inputs import Problem
from attention.records import Kernel

# Their backward pass multiplies exp(max − c) by the raw cotangent, in masked entries too.
SPAN = 60.0


def _call(name: str, problem: Problem, value: jax.Array) -> jax.Array:
    """Returns jax.nn.dot_product_attention's sum, in the query's dtype."""
    backends.check_needs(name, problem.needs)
    backends.check_kernel(
        name,
        platform=problem.platform,
        dtype=problem.query.dtype.name,
        head_size=problem.query.shape[-1],
        value_size=value.shape[-1],
    )
    batch = problem.query.shape[:-3]
    heads, queries, keys = problem.query.shape[-2], problem.query.shape[-3], value.shape[-3]

    def merge(array: jax.Array) -> jax.Array:
        return array.reshape((math.prod(batch), *array.shape[-3:]))

    def whole(array: jax.Array | None) -> jax.Array | None:
        # jax#28974: cuDNN wants the last two axes of a bias or mask to be exactly (T, S).
        if array is None:
            return None
        array = array.reshape((1,) * (len(batch) + 3 - array.ndim) + array.shape)
        return merge(jnp.broadcast_to(array, (*batch, heads, queries, keys)))

    mask = problem.mask
    # The library knows causality; what goes with it needs the whole mask.
    is_causal = mask.causal and not (mask.strict or mask.width is not None)
    mask = dataclasses.replace(mask, causal=mask.causal and not is_causal, hidden=None)
    pairs = masks.merged(mask, queries, keys).pairs
    bias = problem.bias.without_idle_rows(is_softmax=True, has_sink=False).whole()
    if bias is not None:
        # A row of −∞ is NaN in the library's softmax; of the lowest number it is not.
        bias = jnp.maximum(bias, jnp.finfo(bias.dtype).min)
    result = jax.nn.dot_product_attention(
        merge(problem.query),
        merge(problem.key),
        merge(value.astype(problem.key.dtype)),
        bias=whole(bias),
        mask=whole(pairs),
        scale=problem.scale,
        is_causal=is_causal,
        implementation="cudnn" if name == "cudnn" else "xla",
    )
    return result.reshape((*batch, queries, heads, result.shape[-1]))


JAX_XLA = Kernel(functools.partial(_call, "jax_xla"), span=SPAN, float32_sums=False)
CUDNN = Kernel(functools.partial(_call, "cudnn"), span=SPAN, float32_sums=False)
