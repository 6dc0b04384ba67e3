"""A sink: one more key per head, of value 0, with a logit of its own (gpt-oss, arXiv:2508.10925).

exp(s) joins the softmax's denominator, so that a query may look nowhere: the weights of the keys
and of the sink sum to 1. The logit s, one per head, is added as a bias is: neither scaled, divided
by τ, nor capped; no mask hides it. It starts at 0 and decay pulls it there, which is the "off by
one" softmax; gpt-oss' checkpoints were trained from a start that is not published. With
learned=False it stays 0: that softmax itself (softmax1).

For LASER the sink is one more valid key with value 0: it enters the shift's statistics, and
log(a_sink·exp(0) + Σ a·exp(v)) includes it. Each map of a differential pair has its own head's
sink. Dropout falls on it as on other keys, which only LASER notices, since its value is 0.
Whoever observes the layer sees S + 1 keys, the sink last.
"""

import jax
import jax.numpy as jnp

from attention.call import Call
from attention.masks import Bias, Mask
from attention.records import Leaf, Leaves, Modifier

Array = jax.Array
_PATH = "sink/scale"


def leaves(call: Call, *, learned: bool) -> tuple[Leaf, ...]:
    """Returns the sinks' logits, [H], zero at start."""
    return (Leaf(_PATH, call.query.shape[-2:-1], is_learned=learned),)


def apply(call: Call, leaves: Leaves, *, learned: bool) -> Call:
    """Returns the call with one more key, the last: zeros, value 0, bias s, seen by all queries."""
    del learned
    logits, keys = leaves[_PATH], call.key.shape[-3]
    bias = call.bias.whole()
    bias = jnp.zeros((1, 1, keys), jnp.float32) if bias is None else bias.astype(jnp.float32)
    bias = bias.reshape((1,) * max(0, 3 - bias.ndim) + bias.shape)
    bias = jnp.broadcast_to(bias, (*bias.shape[:-3], len(logits), bias.shape[-2], keys))
    sinks = jnp.broadcast_to(logits[:, None, None].astype(bias.dtype), (*bias.shape[:-1], 1))
    return call._replace(
        key=_with_one_more_key(call.key),
        value=_with_one_more_key(call.value),
        bias=Bias(jnp.concatenate([bias, sinks], axis=-1)),
        mask=call.mask & Mask(appended=1),
    )


def _with_one_more_key(array: Array) -> Array:
    return jnp.concatenate([array, jnp.zeros_like(array[..., :1, :, :])], axis=-3)


def formula(call: Call, leaves: Leaves, *, learned: bool) -> Call:
    """Returns `apply` in float64."""
    del learned
    column = jnp.broadcast_to(leaves[_PATH][:, None, None], (*call.bias.shape[:-1], 1))

    def more(array: Array) -> Array:
        return jnp.pad(array, ((0, 1), (0, 0), (0, 0)))

    return call._replace(
        key=more(call.key),
        value=more(call.value),
        bias=jnp.concatenate([call.bias, column], -1),
        mask=jnp.pad(call.mask, ((0, 0), (0, 0), (0, 1)), constant_values=True),
    )


# Last: the others must see the model's own keys alone.
MODIFIER = Modifier("inputs", apply, formula, leaves, precedence=100)
