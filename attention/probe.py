"""Observation of every attention call of a model, and gradients on its logits.

Around a model's apply, inside the traced function (as `attention.inject.injected`)::

    with probe.probed(probes) as seen:
        logits = model.apply(...)
    seen.layers  # one Layer per attention call, in the order of the calls

The model computes what it computes without a probe. `probes` are zeros added to the logits of each
call. The loss's gradient with respect to the probes is its gradient on the logits.

Calls of `attention.variant.Variant` are recorded: direct ones, by `attention_fn`, and injected
ones.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as extend

from attention import records
from attention.call import Call
from attention.functions import Leaves, Score, Weighting
from attention.kernels import core
from attention.kernels.inputs import per_query_head
from attention.masks import Bias, Masks, merged

# Compared, not traced: what jit gives back as it is.
_STATIC = {"static": True}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    """One attention call as its softmax gets it: a tree of arrays, so that jit can return it.

    query [..., T, H, D], key [..., S, K, D], value [..., S, K, Dv]: after the modifiers that act on
    them. scale: what QKᵀ is multiplied by, τ included; score: the functions of the logits that act
    then, with their leaves. bias and masks (`attention.masks`) fit [..., H, T, S]; a sink is in
    masks, and last among the logits and weights. path: of the Flax module that called, '' outside
    one; its parameters lie there. span: the widest channel of V, in nats, that LASER's centred form
    would hold here (`attention.mixers.laser_shift`). mixer: its name in the table.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    bias: Bias
    masks: Masks
    leaves: tuple[Leaves, ...]
    scale: float = dataclasses.field(metadata=_STATIC)
    precision: jax.lax.PrecisionLike = dataclasses.field(metadata=_STATIC)
    path: str = dataclasses.field(metadata=_STATIC)
    span: float = dataclasses.field(metadata=_STATIC)
    mixer: str = dataclasses.field(metadata=_STATIC)
    score: tuple[Score, ...] = dataclasses.field(metadata=_STATIC)

    @property
    def shape(self) -> tuple[int, ...]:
        """The logits' shape, [..., H, T, S], with a sink [..., H, T, S + 1]."""
        *batch, queries, heads, _ = self.query.shape
        return (*batch, heads, queries, self.key.shape[-3] + (self.masks.sink is not None))

    @property
    def weighting(self) -> Weighting:
        """How the mixer's logits become weights."""
        return records.mixer(self.mixer).weighting_of(self.key.shape[-3], self.query.dtype)

    def weights(self) -> jax.Array:
        """Returns the mixer's weights, of `shape`, float32, before dropout; 0 where hidden.

        Weights of a row that sees nothing are undefined; `masks` says which rows those are.
        """
        settings = core.CoreSettings(self.scale, self.precision, self.weighting, self.score)
        key, sink = per_query_head(self.query, self.key), core.sink_of(self.masks.sink)
        masks = self.masks.pairs
        return core.weights_of(settings, self.query, key, self.bias, masks, self.leaves, sink)

    def visible(self) -> jax.Array:
        """Returns which weights are of a key that the query sees, or of a sink; bool of `shape`."""
        pairs = jnp.ones((), bool) if self.masks.pairs is None else self.masks.pairs
        (*rows, whole), keys = self.shape, self.key.shape[-3]
        beside = jnp.ones((*rows, whole - keys), bool)
        return jnp.concatenate([jnp.broadcast_to(pairs, (*rows, keys)), beside], axis=-1)


class Probed:
    """The calls so far, `layers`, in order."""

    def __init__(self, probes: Sequence[jax.Array] | None) -> None:
        self.layers: list[Layer] = []
        self.probes = probes
        self.paths: list[str] = []
        self._trace = current_trace()

    def add(self, call: Call, **fields: Any) -> Call:
        """Adds a layer and returns the call whose logits its softmax must use. See `record`."""
        if current_trace() != self._trace:
            raise ValueError(
                "attention inside nn.scan or nn.remat cannot be observed: its arrays exist inside "
                "the loop alone. Build the model with scan_layers=False and remat=False, and "
                "unstack its parameters; enter probe.probed inside jax.grad and jax.vmap"
            )
        masks = merged(call.mask, call.query.shape[-3], call.key.shape[-3])
        self.layers.append(
            Layer(
                call.query,
                call.key,
                call.value,
                call.bias,
                masks._replace(sink=call.sink),
                path=self.paths[-1] if self.paths else "",
                **fields,
            )
        )
        if self.probes is None:
            return call
        added = self.probes[len(self.layers) - 1]
        if call.sink is not None:
            added, of_sink = added[..., :-1], added[..., -1]
            call = call._replace(sink=call.sink[:, None] + of_sink)
        dense = added if call.bias.dense is None else call.bias.dense + added
        return call._replace(bias=call.bias._replace(dense=dense))


def current_trace() -> Any:
    """Returns what tells the trace that JAX is in from others, such as of a loop's body."""
    # jax.core has it up to jax 0.9, jax.extend from 0.10 on.
    place: Any = extend if hasattr(extend, "get_opaque_trace_state") else jax.core
    return place.get_opaque_trace_state(convention="flax")


_ACTIVE: contextvars.ContextVar[Probed | None] = contextvars.ContextVar("probed", default=None)


@contextlib.contextmanager
def probed(probes: Sequence[jax.Array] | None = None) -> Iterator[Probed]:
    """Yields a `Probed`, which gets a `Layer` for each attention call inside the context.

    probes: the arrays of `zero_probes` for the same calls, added to the logits. Without them
    outputs equal those outside, bit for bit. Contexts do not nest.

    Raises ValueError inside another such context, and for layers in `nn.scan` or `nn.remat`.
    """
    if is_on():
        raise ValueError("probe.probed is entered inside another one; enter it once")
    observed = Probed(probes)

    token = _ACTIVE.set(observed)
    try:
        with records.adapter("linen").followed(observed.paths):
            yield observed
    finally:
        _ACTIVE.reset(token)


def is_on() -> bool:
    """Returns whether a probe is active."""
    return _ACTIVE.get() is not None


def record(call: Call, **fields: Any) -> Call:
    """Returns the call that the softmax must use: with its probe in bias and sink, if it has one.

    Called before each softmax. fields: the remaining fields of `Layer`. Returns the call unchanged
    unless a probe is active.
    """
    active = _ACTIVE.get()
    return call if active is None else active.add(call, **fields)


def zero_probes(layers: Sequence[Layer]) -> tuple[jax.Array, ...]:
    """Returns zeros of the layers' logits; the layers may be shapes from `jax.eval_shape`."""
    return tuple(jnp.zeros(layer.shape, core.accumulator(layer.query.dtype)) for layer in layers)
