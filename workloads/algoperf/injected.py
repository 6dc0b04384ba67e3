"""An AlgoPerf workload object whose model runs with an attention variant."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from flax import linen as nn

from attention import inject
from attention.variant import Variant
from workloads import algoperf_specs, catalog
from workloads.algoperf import causal_attention, supported, tiny_sizes

_MODEL_METHODS = ("init_model_fn", "model_fn")


def with_variant(workload: Any, variant: Variant) -> Any:
    """Returns `workload` itself, its class now a subclass that trains with `variant`.

    `init_model_fn`, `model_fn`, and what else calls the model (`supported.InjectionPoint`) run
    inside `attention.inject.injected` (`causal_attention.injected` for finewebedu_lm); everything
    else is AlgoPerf's own. The object gains the attributes `attention` (the variant's name) and
    `attention_tau`, and in `init_model_fn` the attribute `attention_layers` (how many ran the
    variant), which AlgoPerf writes to meta_data_0.json as `workload.attention…`
    (algoperf/logger_utils.py). `init_model_fn` raises ValueError for a model with another number
    of attention layers than AlgoPerf's has.

    One object has one variant for good: submissions jit their step with the workload as a static
    argument, which JAX tells apart by identity, and a variant is no part of that key. Raises
    ValueError for an object with a variant, one whose model was made already, one with an
    equality of its own, a workload that is not supported, and a variant that it cannot take.
    """
    name = supported.name_of_class(type(workload).__name__)
    entry = supported.SUPPORTED[name]
    catalog.check_variant(algoperf_specs.PREFIX + name, variant.name)
    _check_unused(workload, variant)
    members: dict[str, Any] = {
        "attention": variant.name,
        "attention_tau": variant.hyperparameters.get("tau", 1.0),
    }
    inside = causal_attention.injected if entry.own_attention else inject.injected
    contexts = {
        **dict.fromkeys((*_MODEL_METHODS, *entry.traced), inside),
        **dict.fromkeys(entry.jitted, _injected_while_tracing),
    }
    base = type(workload)
    for name, context in contexts.items():
        members[name] = _entering(getattr(base, name), variant, entry, context)
    workload.__class__ = tiny_sizes.subclass(base, members)
    return workload


def _check_unused(workload: Any, variant: Variant) -> None:
    before = getattr(workload, "attention", None)
    if before is not None:
        raise ValueError(
            f"this workload object has the variant {before!r} already; make a new object for "
            f"{variant.name!r}"
        )
    if getattr(workload, "_param_shapes", None) is not None:
        raise ValueError(
            "this workload object has made its model already, and compiled functions may hold it "
            "without the variant; call with_variant on a new object"
        )
    if type(workload).__hash__ is not object.__hash__:
        raise ValueError(
            f"{type(workload).__name__} defines its own equality, so two objects with different "
            "variants could share a compiled function"
        )


def _entering(
    method: Callable[..., Any],
    variant: Variant,
    entry: supported.InjectionPoint,
    context: Callable[..., contextlib.AbstractContextManager[Any]],
) -> Callable[..., Any]:
    """Returns a method of the workload's class, run inside the context."""

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with context(variant, depth=entry.depth) as injection:
            output = method(self, *args, **kwargs)
        if method.__name__ == "init_model_fn":
            causal_attention.check_layers(
                variant, injection.layers, entry.layers, f"AlgoPerf's {entry.class_name}"
            )
            self.attention_layers = len(injection.layers)
        return output

    return run


@contextlib.contextmanager
def _injected_while_tracing(variant: Variant, depth: inject.DepthRule) -> Iterator[None]:
    """Enters `injected` around each call of a whole model, of which there may be none.

    A jitted method calls the model only while it is traced; `injected` would take the calls after
    that for a model without attention.
    """
    inside = False

    def intercept(
        call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
    ) -> Any:
        nonlocal inside
        # A model's own `setup` is a method of it too, and calls no attention; its `__call__` calls
        # other methods of it (WMT's `encode` and `decode`), which are inside already.
        if inside or context.module.path or context.method_name == "setup":
            return call(*args, **kwargs)
        inside = True
        try:
            with inject.injected(variant, depth=depth):
                return call(*args, **kwargs)
        finally:
            inside = False

    with nn.intercept_methods(intercept):
        yield
