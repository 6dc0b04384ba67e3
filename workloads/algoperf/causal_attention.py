"""Injection into AlgoPerf's language model, whose attention is not flax's module.

`CausalAttn` (algoperf/workloads/finewebedu_lm/finewebedu_lm_jax/models.py) projects, rotates and
normalises queries and keys, and then weighs the values in one of two ways, by version: two calls of
`jnp.einsum` around a softmax (AlgoPerf 1.0), or `jax.nn.dot_product_attention`. While such a module
is called, the names `jax` and `jnp` of its file stand for objects that hand these calls to the
variant; nothing else of AlgoPerf, of JAX or of the model is touched.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention import inject, probe
from attention.adapters import linen
from attention.kernels.inputs import per_query_head
from attention.masks import merged
from attention.variant import Variant
from workloads.base.injection import Substitute

# AlgoPerf 1.0's logits and its weighted mean of the values.
_LOGITS, _MEAN = "...qhd,...khd->...hqk", "...hqk,...khd->...qhd"
# The calls of one layer, in order, in each version.
_FORMS = (["dot_product_attention"], [_LOGITS, _MEAN])


def injected(
    variant: Variant, layer: inject.LayerRule, class_name: str = "CausalAttn"
) -> inject.Injected:
    """Puts `variant` into every layer of that class called inside; as `attention.inject.injected`.

    Learned leaves lie beside the layer's projections. What the model can take is checked before
    (`workloads.catalog.check_variant`). Raises ValueError if a probe is active. Raises RuntimeError
    on a clean exit if a layer attended in neither of the two forms, or if no layer was called.
    """
    if probe.is_on():
        raise ValueError("this layer's attention cannot be observed; leave diagnostics off")

    def is_layer(module: Any) -> bool:
        return type(module).__name__ == class_name

    return linen.injected_layers(variant, layer, is_layer, _attending, class_name)


@contextlib.contextmanager
def _attending(module: nn.Module, function: linen.InjectedFunction) -> Iterator[None]:
    """Has the layer's own file call the variant. Raises RuntimeError unless it did so once."""
    layer = _Layer(module, function)
    home = importlib.import_module(type(module).__module__)
    nn_module = Substitute(jax.nn, dot_product_attention=layer.dot_product_attention)
    names: dict[str, Any] = {
        "jax": Substitute(jax, nn=nn_module),
        "jnp": Substitute(jnp, einsum=layer.einsum),
    }
    with mock.patch.multiple(home, **names), linen.attending_by(module, function):
        yield
    if layer.calls not in _FORMS:
        raise inject.InjectionError(
            f"{home.__name__}.{type(module).__name__} attends in a form that is not known: neither "
            "by jax.nn.dot_product_attention nor by the two einsums of AlgoPerf 1.0, once each "
            f"(it called {layer.calls or 'none of them'}). Supported versions: docs/algoperf.md"
        )
    function.calls = 1


class _Layer:
    """What one call of one layer asks for; `calls` names it, in order."""

    def __init__(self, module: nn.Module, function: inject.AttentionFunction) -> None:
        self.scope, self.function = module.scope, function
        self.calls: list[str] = []
        self.prepared: Any = None

    def dot_product_attention(
        self, query: jax.Array, key: jax.Array, value: jax.Array, **settings: Any
    ) -> jax.Array:
        """In place of jax.nn's: the variant. TypeError for a setting that no variant takes."""
        self.calls.append("dot_product_attention")
        # It chooses among backends that compute the same; ours is the variant's `kernel`.
        settings.pop("implementation", None)
        return _InScope(self.function, parent=self.scope)(query, key, value, **settings)

    def einsum(self, subscripts: Any, *operands: Any, **settings: Any) -> jax.Array:
        """jnp's, but for the two of attention: logits of other queries, a mean of other values."""
        if subscripts in (_LOGITS, _MEAN):
            self.calls.append(subscripts)
        if subscripts == _LOGITS:
            query, key = operands
            # The values come with the second call; their modifiers act there.
            prepare = functools.partial(self.function.prepare, is_causal=True)
            self.prepared = _InScope(prepare, parent=self.scope)(query, key, key)
            if self.prepared.value is not key:
                raise inject.InjectionError(
                    f"{self.function.variant.name!r} changes the values, which this model hands on "
                    "only after its weights; leave out what changes them"
                )
            key = per_query_head(self.prepared.query, self.prepared.key)
            return jnp.einsum(subscripts, self.prepared.query, key, **settings)
        if subscripts != _MEAN or self.prepared is None:
            return jnp.einsum(subscripts, *operands, **settings)
        weights, value = operands

        def mean(values: jax.Array) -> jax.Array:
            return jnp.einsum(subscripts, weights, values, **settings)

        # The layer is causal, by its name: its mask is in the weights already.
        call = self.prepared._replace(value=value)
        masks = merged(call.mask, weights.shape[-2], value.shape[-3])
        mix = _InScope(self.function.variant.through_host, parent=self.scope)
        return mix(mean, call, masks=masks, sums_to_one=True)


class _InScope(nn.Module):
    """Calls something that learns in the layer's scope, so that its leaves lie there.

    Flax makes learned leaves in compact methods alone, and `CausalAttn` has none.
    """

    called: Callable[..., Any]

    @nn.compact
    def __call__(self, *arrays: Any, **settings: Any) -> Any:
        return self.called(*arrays, **settings)
