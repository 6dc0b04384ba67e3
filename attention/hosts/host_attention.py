"""What the softmax inside a host's own attention function sees, and what comes out of it.

A host's own function (AlgoPerf's Conformer scales the query by learned factors inside it) shows
neither. It is linear in the values, so that values of an identity matrix return the probabilities,
whatever it does; the query is followed through the modules that the function calls on it.

The function is run once more for that, by a second clone of its module in a rewound scope (one
that has handed out no names yet), which finds the same parameters; the first call is not touched.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

Array = jax.Array


class HostAttention(NamedTuple):
    """query [..., T, H, D] as the host's last module on it left it; key [..., S, H, D] as given.

    probabilities [..., H, T, S] are those the host computed, in the values'
    dtype, in which the host multiplies them.
    """

    query: Array
    key: Array
    probabilities: Array


class CallRecorder:
    """An attention function that looks into the host's and returns zeros."""

    def __init__(
        self, host: Callable[..., Array], prepare: Callable[[Array, Array], tuple[Array, Array]]
    ) -> None:
        self.host, self.prepare = host, prepare
        self.found: HostAttention | None = None
        self.__signature__ = inspect.signature(nn.dot_product_attention)

    def __call__(self, query: Array, key: Array, value: Array, **settings: Any) -> Array:
        query, key = self.prepare(query, key)
        self.found = recorded(self.host, query, key, value, settings)
        return jnp.zeros((*query.shape[:-1], value.shape[-1]), value.dtype)


def of_module(
    module: nn.MultiHeadDotProductAttention,
    host: Callable[..., Array],
    prepare: Callable[[Array, Array], tuple[Array, Array]],
    args: Any,
    kwargs: Any,
) -> HostAttention | None:
    """Returns the record of `host`, the module's function, in a call with these arguments.

    None where the module did not call its function. `prepare` is what a variant does to query and
    key before. The module's scope stays as it was.
    """
    recorder = CallRecorder(host, prepare)
    assert module.scope is not None
    module.clone(parent=module.scope.rewound(), attention_fn=recorder)(*args, **kwargs)
    return recorder.found


def recorded(
    host: Callable[..., Array], query: Array, key: Array, value: Array, settings: dict[str, Any]
) -> HostAttention:
    """Returns the record of a host's function, called where its learned factors are found.

    `settings` are flax's keyword arguments, of which the host is given those that it takes, and
    no dropout.
    """
    settings = {**settings, "deterministic": True, "dropout_rate": 0.0, "dropout_rng": None}
    accepted = inspect.signature(host).parameters
    settings = {name: given for name, given in settings.items() if name in accepted}
    keys = key.shape[-3]
    identity = jnp.eye(keys, dtype=value.dtype)[:, None, :]
    identity = jnp.broadcast_to(identity, (*key.shape[:-1], keys))
    follower = _Follower(query)
    with nn.intercept_methods(follower.follow):
        weights = host(query, key, identity, **settings)
    return HostAttention(follower.query, key, jnp.swapaxes(weights, -3, -2))


class _Follower:
    """Follows a query through modules: the output of one that was given it takes its place."""

    def __init__(self, query: Array) -> None:
        self.query = query

    def follow(
        self, call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext
    ) -> Any:
        del context
        output = call(*args, **kwargs)
        given = (*args, *kwargs.values())
        same = isinstance(output, jax.Array) and output.shape == self.query.shape
        if same and any(one is self.query for one in given):
            self.query = output
        return output
