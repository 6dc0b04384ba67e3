"""Variants in models of flax.nnx, built on `nnx.MultiHeadAttention`, unmodified.

NNX has no interceptors. A layer with a variant has another class, made of its own, whose call gives
the variant x and the learned leaves. The variant is the layer's `attention_fn`: a part of its graph
definition, and so of the keys of nnx.jit.
"""

import dataclasses
import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from attention.adapters.injection import (
    Injection,
    InjectionError,
    LayerRule,
    check_normalised,
    example_call,
    layer_index,
)
from attention.adapters.linen import InjectedFunction, attending_by, inputs_of
from attention.variant import AttentionFunction, Variant


class AttentionLeaves(nnx.Module):
    """Learned leaves of a mixer or modifier in a layer: nnx.Param, float32."""


@dataclasses.dataclass(frozen=True)
class Assigned:
    """What a layer runs: the variant, the layer's index, and what the model's layers hand on.

    is_last: no later layer reads the memory.
    """

    variant: Variant
    index: int | None
    injection: Injection | None
    is_last: bool
    leaves: tuple[str, ...]

    def run(self, layer: Any, call: Any, args: Any, kwargs: Any) -> Any:
        """Returns the output of a layer's own `call`, by the variant.

        Raises InjectionError if the layer never calls its attention_fn.
        """
        memory = None
        if self.injection is not None:
            memory = self.injection.memory_of(self.variant, self.index, type(layer).__name__)
        function = InjectedFunction(self.variant, self.index, memory=memory)
        function.inputs = inputs_of(call, args, kwargs)
        decode = kwargs.get("decode")
        function.has_cache = bool(layer.decode if decode is None else decode)
        leaves = {
            path: operator.attrgetter(path.replace("/", "."))(layer)[...] for path in self.leaves
        }
        with attending_by(layer, functools.partial(function, leaves=leaves)):
            output = call(*args, **kwargs)
        if not function.calls:
            raise InjectionError(
                f"{type(layer).__name__} never called its attention_fn, so {self.variant.name!r} "
                "did not run: have its __call__ use self.attention_fn"
            )
        if self.injection is not None:
            self.injection.memory = {} if self.is_last else function.memory or {}
            self.injection.trace = None if self.is_last else self.injection.trace
        return output


def assign(
    model: nnx.Module, variant: Variant, rule: LayerRule | None, rngs: nnx.Rngs | None
) -> list[str]:
    """Puts a variant into a model's layers, as `attention.inject.assign` says."""
    if not isinstance(model, nnx.Module):
        raise ValueError(
            f"{type(model).__name__} is no module of flax.nnx; give inject.assign a built "
            "nnx.Module, or use inject.injected(variant) for a model of flax.linen"
        )
    if rngs is not None and not (isinstance(rngs, nnx.Rngs) and {"params", "default"} & {*rngs}):
        raise ValueError(f"rngs={rngs!r}: give nnx.Rngs(seed), with a stream params or default")
    # Each once, also where several paths share it.
    layers: dict[str, Any] = {
        "/".join(map(str, path)): node
        for path, node in nnx.iter_graph(model)
        if isinstance(node, nnx.MultiHeadAttention)
    }
    if not layers:
        raise InjectionError(
            f"nothing to assign {variant.name!r} to: {type(model).__name__} has no "
            "nnx.MultiHeadAttention. Build its attention on that module, or call variant.attend"
        )
    for path, layer in layers.items():
        _check_layer(layer, variant, path)
    indices = {path: _index(variant, rule, path) for path in layers}
    leaves = {
        path: _leaves(layer, variant, indices[path], path, rngs) for path, layer in layers.items()
    }
    injection = Injection() if "memory" in variant.needs else None
    for path, layer in layers.items():
        for leaf, start in leaves[path].items():
            module, name = leaf.split("/")
            if getattr(layer, module, None) is None:
                setattr(layer, module, AttentionLeaves())
            setattr(getattr(layer, module), name, nnx.Param(start))
        is_last = indices[path] == max(index or 0 for index in indices.values())
        layer.attention_fn = Assigned(variant, indices[path], injection, is_last, (*leaves[path],))
        object.__setattr__(layer, "__class__", _attending(type(layer)))  # type: ignore[arg-type]
    return list(layers)


@functools.cache
def _attending(base: Any) -> type:
    """Returns a class of layers that run what is assigned to them, and are `base` otherwise."""

    @functools.wraps(base.__call__)
    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        running = layer.attention_fn
        if not isinstance(running, Assigned):
            return base.__call__(layer, *args, **kwargs)
        return running.run(layer, functools.partial(base.__call__, layer), args, kwargs)

    # A class of its own layout would not fit a layer that exists: one base, no mixin.
    return type(base)(base.__name__, (base,), {"__call__": call, "__module__": base.__module__})


def _check_layer(layer: Any, variant: Variant, path: str) -> None:
    """Raises ValueError for a layer that has a variant, or an attention function of its own."""
    check_normalised(layer.normalize_qk, variant)
    function = layer.attention_fn
    if function is nnx.dot_product_attention:
        return
    function = getattr(function, "func", function)
    built = function.variant if isinstance(function, Assigned | AttentionFunction) else function
    has = f"{built.name!r}" if isinstance(built, Variant) else f"attention_fn={built}"
    raise ValueError(
        f"the layer at path {path!r} already has {has}, so {variant.name!r} cannot be assigned to "
        "it. Build the model anew with flax's own attention_fn and assign once; nnx.update(new, "
        "nnx.state(old, nnx.Param)) carries its weights over"
    )


def _index(variant: Variant, rule: LayerRule | None, path: str) -> int | None:
    """Returns a layer's index by the user's rule. Raises ValueError for a traced one."""
    index = layer_index(variant, rule, path)
    if isinstance(index, int | None):
        return index
    raise ValueError(f"the layer rule gives a traced index at path {path!r}; give an int")


def _leaves(
    layer: Any, variant: Variant, index: int | None, path: str, rngs: nnx.Rngs | None
) -> dict[str, jax.Array]:
    """Returns a layer's learned leaves at their start, of stacked layers with their axes in front.

    Raises ValueError for stacked layers that need an index, and for leaves that are drawn without
    `rngs` or have the name of something in the layer.
    """
    # Of one layer [W, H, D]; layers made by nnx.vmap, to run in nnx.scan, have one more axis.
    stacked = tuple(layer.query.kernel.shape[:-3])
    if stacked and "layer" in variant.needs:
        raise ValueError(
            f"{variant.name} needs each layer's index, and at path {path!r} {math.prod(stacked)} "
            "layers are one stacked module (nnx.scan), which has no index of each: build them as "
            "a list of layers"
        )
    kv_heads = getattr(layer, "num_kv_heads", layer.num_heads)
    call = example_call(
        variant, layer.num_heads, kv_heads, layer.head_dim, layer.in_features, index
    )
    count = math.prod(stacked)
    keys = [None] * count if rngs is None else jax.random.split(rngs.params(), count)
    starts = [variant.leaves(call, key) for key in keys]
    for leaf in starts[0]:
        # Without normalize_qk flax's own query_ln is None.
        if getattr(layer, leaf.split("/")[0], None) is not None:
            raise ValueError(
                f"{type(layer).__name__} at path {path!r} already has {leaf.split('/')[0]!r}, "
                f"where {variant.name!r} would put a learned leaf: drop that part of the variant "
                "or rename the model's attribute"
            )
    return jax.tree.map(lambda *leaf: jnp.stack(leaf).reshape(stacked + leaf[0].shape), *starts)
