"""Soft capping of the logits: cap·tanh(logits/cap) (Gemma 2, arXiv:2408.00118, section 2).

As in Gemma's code it acts on the scaled logits (τ included) and before bias and mask, so that no
logit lies outside (−cap, cap) and what is hidden stays hidden. Gemma 2 caps attention at 50.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from attention.records import Leaves, Modifier

Array = jax.Array


def apply(logits: Array, *, cap: float) -> Array:
    """Returns cap·tanh(logits/cap), of the same shape and dtype."""
    return cap * jnp.tanh(logits / cap)


def formula(
    logits: np.ndarray, leaves: Leaves, *, cap: float
) -> tuple[np.ndarray, Callable[[np.ndarray], tuple[np.ndarray, Leaves]]]:
    """Returns `apply` in float64, and its gradient: the slope is 1 − tanh²."""
    del leaves
    share = np.tanh(logits / cap)
    return cap * share, lambda bar: (bar * (1 - share**2), {})


MODIFIER = Modifier("logits", apply, formula)
