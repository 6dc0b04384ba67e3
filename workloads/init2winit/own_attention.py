"""Injection into init2winit's own attention module, a copy of flax's (model_lib/attention.py).

Its `MultiHeadDotProductAttention` is no subclass of flax's, and calls its attention function with
one argument more, `attn_temp`, which multiplies the logits. While such a module is called, a clone
of it runs in the same scope, whose function is the variant.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
from flax import linen as nn

from attention import inject
from attention.variant import Variant

Array = jax.Array
_FILE, _CLASS = "init2winit.model_lib.attention", "MultiHeadDotProductAttention"


@contextlib.contextmanager
def injected(variant: Variant, depth: inject.DepthRule) -> Iterator[inject.Injection]:
    """Puts `variant` into every attention module of init2winit called inside; as
    `attention.inject.injected`.

    Raises ValueError for `+qk_norm` in a module that normalises queries and keys itself
    (`normalize_attention`) or has another attention function than its own file's; RuntimeError on
    a clean exit where no such module was called, or one did not call its attention function.
    """
    injection = inject.Injection()

    def intercept(
        call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
    ) -> Any:
        module: Any = context.module
        if context.method_name != "__call__" or not _is_attention(module):
            return call(*args, **kwargs)
        if isinstance(module.attention_fn, _AttentionFunction):
            return call(*args, **kwargs)
        _check(module, variant)
        index = depth("/".join(module.path)) if variant.needs_depth else None
        function = _AttentionFunction(variant, index)
        with inject.attending_by(module, function):
            output = call(*args, **kwargs)
        injection.add(module, function.calls)
        return output

    with nn.intercept_methods(intercept):
        yield injection
    if not injection.calls:
        raise inject.InjectionError(
            f"nothing to inject {variant.name!r} into: no {_FILE}.{_CLASS} was called inside the "
            "context"
        )
    injection.check(variant)


def _is_attention(module: nn.Module) -> bool:
    classes = type(module).__mro__
    return any(base.__name__ == _CLASS and base.__module__ == _FILE for base in classes)


def _check(module: Any, variant: Variant) -> None:
    if module.normalize_attention and "qk_norm" in variant.modifiers:
        raise ValueError(
            f"the model normalises queries and keys itself (normalize_attention=True), so "
            f"{variant.name!r} would do it twice; drop +qk_norm or the model's setting"
        )
    function = module.attention_fn
    if getattr(function, "__module__", "") != _FILE:
        raise ValueError(
            f"the model has an attention function of its own, {function!r}, which {variant.name!r} "
            "would replace; leave it out"
        )


@dataclasses.dataclass
class _AttentionFunction:
    """A variant, called as init2winit's module calls its attention function; counts the calls."""

    variant: Variant
    depth: int | Array | None
    calls: int = 0

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
        self.calls += 1
        return self.variant(
            query,
            key,
            value,
            mask=None if mask is None else mask.astype(bool),
            scale=attn_temp * query.shape[-1] ** -0.5,
            depth=self.depth,
            **settings,
        )
