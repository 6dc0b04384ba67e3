"""Observation: what every attention call of a model saw, and a handle on its logits.

Around a model's apply, inside the traced function (as `attention.inject.injected`)::

    with probe.probed(probes) as seen:
        logits = model.apply(...)
    seen.layers  # one Layer per attention call, in the order of the calls

Nothing is computed that the model does not compute, except through a host's own attention function
(`attention.hosts.host_attention`), and nothing is changed. With `probes`, zeros added to the logits
of each call, the loss's gradient with respect to the probes is its gradient on the logits.

Calls that are seen: those of `attention.variant.Variant`, by `attention_fn`, directly, or injected
into a model.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.core import tracers

from attention import records, table
from attention.kernels import core
from attention.kernels.masks import Masks, merged
from attention.records import Applied

Array = jax.Array


# Compared, not traced: what jit gives back as it is.
_STATIC = {"static": True}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    """One attention call, as its softmax saw it; a tree of arrays, so that jit can return it.

    query [..., T, H, D], key [..., S, H, D], value [..., S, H, Dv]: after the modifiers that act on
    them, and what a host's own function does to the query (Differential attention gives both heads
    of a pair the values of both). scale: what QKᵀ is multiplied by, τ included; logits: what
    modifiers do to the logits then. bias and masks (`attention.kernels.masks`) broadcast to
    [..., H, T, S]. host_probabilities [..., H, T, S]: those that a host's own function computed,
    None where the variant computes its own. path: of the Flax module that called, '' outside one;
    its parameters lie there. span: the widest channel of V, in nats, that LASER's centred form
    would hold here (`attention.kernels.shift`). mixer: its name in the table.
    """

    query: Array
    key: Array
    value: Array
    bias: Array | None
    masks: Masks
    host_probabilities: Array | None
    scale: float = dataclasses.field(metadata=_STATIC)
    precision: jax.lax.PrecisionLike = dataclasses.field(metadata=_STATIC)
    path: str = dataclasses.field(metadata=_STATIC)
    span: float = dataclasses.field(metadata=_STATIC)
    mixer: str = dataclasses.field(metadata=_STATIC)
    logits: tuple[Applied, ...] = dataclasses.field(metadata=_STATIC)

    @property
    def shape(self) -> tuple[int, ...]:
        """The logits' shape, [..., H, T, S]."""
        *batch, queries, heads, _ = self.query.shape
        return (*batch, heads, queries, self.key.shape[-3])

    @property
    def weighting(self) -> records.Weighting:
        """How the mixer's logits become weights; ValueError where it is not made of weights."""
        table.check_weights(self.mixer)
        weighting = records.mixer(self.mixer).weighting
        assert weighting is not None
        return weighting

    def weights(self) -> Array:
        """Returns the mixer's weights, [..., H, T, S] float32, before dropout; 0 where hidden.

        Of a row that sees nothing they are anything: `masks` says which those are. Raises
        ValueError for a mixer that does not say its weights.
        """
        if self.host_probabilities is not None:
            return self.host_probabilities.astype(core.accumulator(self.query.dtype))
        settings = core.CoreSettings(self.scale, self.precision, self.weighting, self.logits)
        return core.weights_of(settings, self.query, self.key, self.bias, self.masks.pairs)


class Probed:
    """The calls seen so far, `layers`, in order."""

    def __init__(self, probes: Sequence[Array] | None) -> None:
        self.layers: list[Layer] = []
        self.probes = probes
        self.paths: list[str] = []
        self._trace = tracers.current_trace()

    def add(self, query: Array, key: Array, value: Array, **seen: Any) -> Array | None:
        """Adds a layer and returns the bias that its softmax must use. See `record`."""
        if tracers.current_trace() != self._trace:
            raise ValueError(
                "attention inside nn.scan or nn.remat cannot be observed: its arrays exist inside "
                "the loop alone. Build the model with scan_layers=False and remat=False, and "
                "unstack its parameters; enter probe.probed inside jax.grad and jax.vmap"
            )
        dtype = jnp.result_type(query, key, value)
        query, key, value = (array.astype(dtype) for array in (query, key, value))
        mask, is_causal, bias = seen.pop("mask"), seen.pop("is_causal"), seen["bias"]
        masks = merged(query.shape[-3], key.shape[-3], mask=mask, bias=bias, is_causal=is_causal)
        path = self.paths[-1] if self.paths else ""
        self.layers.append(Layer(query, key, value, masks=masks, path=path, **seen))
        return bias if self.probes is None else self._with_probe(bias)

    def _with_probe(self, bias: Array | None) -> Array:
        assert self.probes is not None
        number, layer = len(self.layers), self.layers[-1]
        if number > len(self.probes):
            raise ValueError(f"{len(self.probes)} probes were given and call {number} has none")
        added = self.probes[number - 1]
        if added.shape != layer.shape:
            raise ValueError(
                f"probe {number - 1} has shape {added.shape}, and the logits at {layer.path!r} "
                f"have {layer.shape}: use probe.zero_probes(layers)"
            )
        if layer.host_probabilities is not None:
            # A wider bias would make the host's softmax wider than it is.
            added = added.astype(layer.query.dtype)
        return added if bias is None else bias + added

    def check(self) -> None:
        """Raises ValueError where probes were left over."""
        if self.probes is not None and len(self.layers) != len(self.probes):
            raise ValueError(f"{len(self.probes)} probes were given for {len(self.layers)} calls")


_ACTIVE: contextvars.ContextVar[Probed | None] = contextvars.ContextVar("probed", default=None)


@contextlib.contextmanager
def probed(probes: Sequence[Array] | None = None) -> Iterator[Probed]:
    """Yields what will hold a `Layer` for each attention call inside the context.

    probes: one array for each call, in order, of `Layer.shape`, added to the logits; see
    `zero_probes`. Without them outputs are those outside, bit for bit. Contexts do not nest.

    Raises ValueError inside another such context, for layers in `nn.scan` or `nn.remat`, and for
    probes that do not fit the calls.
    """
    if is_on():
        raise ValueError("probe.probed is entered inside another one; enter it once")
    seen = Probed(probes)

    def follow(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        seen.paths.append("/".join(context.module.path))
        try:
            return call(*args, **kwargs)
        finally:
            seen.paths.pop()

    token = _ACTIVE.set(seen)
    try:
        with nn.intercept_methods(follow):
            yield seen
    finally:
        _ACTIVE.reset(token)
    seen.check()


def is_on() -> bool:
    """Whether somebody observes."""
    return _ACTIVE.get() is not None


def record(
    query: Array, key: Array, value: Array, *, bias: Array | None, **seen: Any
) -> Array | None:
    """Returns the bias to use: the one given, with this call's probe where there are probes.

    For those who call a softmax; `seen` are the other fields of `Layer` but masks and path, and
    mask and is_causal. Does nothing where nobody observes.
    """
    active = _ACTIVE.get()
    return bias if active is None else active.add(query, key, value, bias=bias, **seen)


def zero_probes(layers: Sequence[Layer]) -> tuple[Array, ...]:
    """Returns zeros of the layers' logits; the layers may be shapes from `jax.eval_shape`."""
    return tuple(jnp.zeros(layer.shape, core.accumulator(layer.query.dtype)) for layer in layers)
