"""A sink: one more key per head, of value 0, with a logit of its own (gpt-oss, arXiv:2508.10925).

exp(s) joins the softmax's denominator, so that a query may look nowhere: the weights of the keys
and of the sink sum to 1. The logit s, one per head, is added as a bias is: neither scaled, divided
by τ, nor capped; no mask hides it. It starts at 0 and decay pulls it there, which is the "off by
one" softmax; gpt-oss' checkpoints were trained from a start that is not published. With
learned=False it stays 0: that softmax itself (softmax1).

For LASER the sink is one more valid key with value 0: it enters the shift's statistics, and
log(a_sink·exp(0) + Σ a·exp(v)) includes it. Each map of a differential pair has its own head's
sink. Dropout falls on it as on other keys, which only LASER notices, since its value is 0.
Whoever observes the layer sees S + 1 weights, the sink's last.
"""

import jax.numpy as jnp
from jax import Array

from attention.call import Call
from attention.records import Leaf, Leaves, Modifier

_PATH = "sink/scale"


def leaves(call: Call, *, learned: bool) -> tuple[Leaf, ...]:
    """Returns the sinks' logits, [H], zero at start."""
    return (Leaf(_PATH, call.query.shape[-2:-1], is_learned=learned),)


def apply(call: Call, leaves: Leaves, *, learned: bool) -> Call:
    """Returns the call with the sinks' logits."""
    return call._replace(sink=leaves[_PATH])


def formula(call: Call, leaves: Leaves, *, learned: bool) -> Call:
    """Returns `apply` in float64."""
    column = jnp.broadcast_to(leaves[_PATH][:, None, None], (*call.bias.shape[:-1], 1))

    def more(array: Array) -> Array:
        return jnp.pad(array, ((0, 1), (0, 0), (0, 0)))

    return call._replace(
        key=more(call.key),
        value=more(call.value),
        bias=jnp.concatenate([call.bias, column], -1),
        mask=jnp.pad(call.mask, ((0, 0), (0, 0), (0, 1)), constant_values=True),
    )


# Last: in the formula the others must see the model's own keys alone.
MODIFIER = Modifier("inputs", apply, formula, leaves, precedence=100)
