"""Injection into init2winit's own attention module, a copy of flax's (model_lib/attention.py).

Its `MultiHeadDotProductAttention` is no subclass of flax's, and calls its attention function with
one argument more, `attn_temp`, which multiplies the logits. While such a module is called, a clone
of it runs in the same scope, whose function is the variant.
"""

import dataclasses
from typing import Any

from jax import Array

from attention import inject
from attention.variant import Variant
from workloads.algoperf import causal_attention

_FILE, _CLASS = "init2winit.model_lib.attention", "MultiHeadDotProductAttention"


def injected(variant: Variant, layer: inject.LayerRule) -> causal_attention.Injected:
    """Puts `variant` into every attention module of init2winit called inside; as
    `attention.inject.injected`.

    Raises ValueError for `+qk_norm` in a module that normalises queries and keys itself
    (`normalize_attention`) or has another attention function than its own file's; RuntimeError on
    a clean exit where no such module was called, or one did not call its attention function.
    """

    def attending(module: Any, function: inject.AttentionFunction) -> Any:
        _check(module, variant)
        return inject.attending_by(module, _AttentionFunction(function))

    return causal_attention.injected_layers(
        variant, layer, _is_attention, attending, f"{_FILE}.{_CLASS}"
    )


def _is_attention(module: Any) -> bool:
    """Whether a module is to be injected into; its `__call__` calls that of its base class."""
    is_attention = any(
        base.__name__ == _CLASS and base.__module__ == _FILE for base in type(module).__mro__
    )
    return is_attention and not isinstance(module.attention_fn, _AttentionFunction)


def _check(module: Any, variant: Variant) -> None:
    inject.check_normalised(module.normalize_attention, variant)
    function = module.attention_fn
    if getattr(function, "__module__", "") != _FILE:
        raise ValueError(
            f"the model has an attention function of its own, {function!r}, which {variant.name!r} "
            "would replace; leave it out"
        )


@dataclasses.dataclass
class _AttentionFunction:
    """A variant, called as init2winit's module calls its attention function."""

    function: inject.AttentionFunction

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        *,
        mask: Array | None = None,
        attn_temp: float = 1.0,
        **settings: Any,
    ) -> Array:
        return self.function(
            query,
            key,
            value,
            mask=None if mask is None else mask.astype(bool),
            scale=attn_temp * query.shape[-1] ** -0.5,
            **settings,
        )
