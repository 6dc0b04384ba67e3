"""A sink: one more key per head, of value 0, whose logit is learned (gpt-oss, arXiv:2508.10925).

exp(s) joins the softmax's denominator, so that a query may look nowhere: the weights of the keys
and of the sink sum to 1. The logit s, one per head, is added as a bias is: neither scaled, divided
by τ, nor capped; no mask hides it. It starts at 0 and decay pulls it there, which is the "off by
one" softmax; gpt-oss' checkpoints were trained from a start that is not published.

For LASER the sink is one more valid key with value 0: it enters the shift's statistics, and
log(a_sink·exp(0) + Σ a·exp(v)) includes it. Each map of a differential pair has its own head's
sink. Dropout falls on it as on other keys, which only LASER notices, since its value is 0.
Whoever observes the layer sees S + 1 keys, the sink last.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from attention.kernels.inputs import check_broadcasts
from attention.records import Inputs, Leaves, Modifier

Array = jax.Array


class Sink(nn.Module):
    """The sinks' logits, [H] float32, zero at start."""

    @nn.compact
    def __call__(self, heads: int) -> Array:
        scale: Array = self.param("scale", nn.initializers.zeros, (heads,), jnp.float32)
        return scale.astype(jnp.float32)


def apply(inputs: Inputs) -> Inputs:
    """Returns the inputs with one more key, the last: zeros, value 0, bias s; leaf `sink`."""
    queries, (keys, heads) = inputs.query.shape[-3], inputs.key.shape[-3:-1]
    for name, array in (("mask", inputs.mask), ("bias", inputs.bias)):
        check_broadcasts(name, array, (*inputs.query.shape[:-3], heads, queries, keys))
    logits = Sink(name="sink")(heads)
    mask = inputs.mask
    if inputs.is_causal:
        past = jnp.tril(jnp.ones((queries, keys), bool))
        mask = past if mask is None else jnp.asarray(mask).astype(bool) & past
    return inputs._replace(
        key=_with_one_more_key(inputs.key),
        value=_with_one_more_key(inputs.value),
        bias=_with_sink(inputs.bias, logits, keys),
        mask=None if mask is None else _with_last(mask, keys, jnp.ones((), mask.dtype)),
        is_causal=False,
    )


def _with_one_more_key(array: Array) -> Array:
    return jnp.concatenate([array, jnp.zeros_like(array[..., :1, :, :])], axis=-3)


def _with_sink(bias: Array | None, logits: Array, keys: int) -> Array:
    """Returns the bias, float32 [..., H, T or 1, S + 1], the sink's logits in its last column."""
    bias = jnp.zeros((1, 1, keys), jnp.float32) if bias is None else jnp.asarray(bias, jnp.float32)
    bias = bias.reshape((1,) * max(0, 3 - bias.ndim) + bias.shape)
    heads = len(logits)
    bias = jnp.broadcast_to(bias, (*bias.shape[:-3], heads, *bias.shape[-2:]))
    return _with_last(bias, keys, logits[:, None, None])


def _with_last(array: Array, keys: int, last: Array) -> Array:
    """Returns an array that broadcasts to [..., S] with one more column."""
    whole = jnp.broadcast_to(array, (*array.shape[:-1], keys))
    return jnp.concatenate([whole, jnp.broadcast_to(last, (*whole.shape[:-1], 1))], axis=-1)


def formula(
    inputs: Inputs, leaves: Leaves
) -> tuple[Inputs, Callable[[Inputs], tuple[Inputs, Leaves, dict[str, float]]]]:
    """Returns `apply` in float64, and its gradients from those of its result."""
    logits = leaves["sink"]["scale"]
    column = np.broadcast_to(logits[:, None, None], (*inputs.bias.shape[:-1], 1))

    def more(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array, np.zeros_like(array[:1])])

    result = inputs._replace(
        key=more(inputs.key),
        value=more(inputs.value),
        bias=np.concatenate([inputs.bias, column], -1),
        mask=np.concatenate([inputs.mask, np.ones_like(inputs.mask[..., :1])], -1),
    )

    def pullback(bars: Inputs) -> tuple[Inputs, Leaves, dict[str, float]]:
        given = bars._replace(key=bars.key[:-1], value=bars.value[:-1], bias=bars.bias[..., :-1])
        # A sum over queries: a head norm makes its terms cancel, since a sink shrinks the output.
        terms = bars.bias[..., -1]
        gradient = terms.sum(-1)
        size = max(np.linalg.norm(gradient), np.linalg.norm(terms))
        return given, {"sink": {"scale": gradient}}, {"sink": float(size)}

    return result, pullback


MODIFIER = Modifier("inputs", apply, formula, adds_keys=True)
