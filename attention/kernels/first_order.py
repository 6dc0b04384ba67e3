"""Refuses derivatives that a kernel does not have: second ones, and forward mode.

A kernel has a first derivative in reverse mode. Without this file JAX would answer a second
derivative with an assertion of Pallas, and forward mode with a message about custom_vjp.
"""

from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Array = jax.Array


def guarded(kernel: str, arrays: Any) -> Any:
    """Returns a tree of arrays unchanged.

    A second derivative through it, or one in forward mode, raises ValueError, which names the
    kernel and another.
    """
    return jax.tree.map(
        lambda array: _once(kernel, array) if jnp.issubdtype(array.dtype, jnp.floating) else array,
        arrays,
    )


def _refuse(*_: Any, kernel: str) -> NoReturn:
    raise ValueError(
        f"kernel={kernel!r} has first derivatives in reverse mode (jax.grad, jax.vjp) alone: for "
        "second derivatives use kernel='xla', and for forward mode (jax.jvp, jax.jacfwd) "
        "kernel='jax_xla'"
    )


# Two identities: one can be differentiated once, the other never.
_once = jax.custom_jvp(lambda kernel, array: array, nondiff_argnums=(0,))
_never = jax.custom_jvp(lambda kernel, array: array, nondiff_argnums=(0,))
# A tangent that reverse mode transposes, and forward mode would have to compute.
_TANGENT = Primitive("first_order_tangent")


@_once.defjvp
def _once_jvp(kernel: str, primals: Any, tangents: Any) -> tuple[Array, Array]:
    return _never(kernel, *primals), _TANGENT.bind(*tangents, kernel=kernel)


_never.defjvp(lambda kernel, *_: _refuse(kernel=kernel))
_TANGENT.def_abstract_eval(lambda tangent, **_: tangent)
_TANGENT.def_impl(_refuse)
ad.deflinear2(_TANGENT, lambda cotangent, _, kernel: [_never(kernel, cotangent)])
batching.defvectorized(_TANGENT)
mlir.register_lowering(_TANGENT, _refuse)
