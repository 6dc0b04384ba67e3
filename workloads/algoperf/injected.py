"""An AlgoPerf workload object whose model runs with an attention variant."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from attention import inject
from attention.variant import Variant
from workloads import algoperf_specs, catalog
from workloads.algoperf import causal_attention
from workloads.base import injection


def with_variant(workload: Any, name: str, variant: Variant) -> Any:
    """Returns the new object `workload` itself, its class a subclass that trains with `variant`.

    name: AlgoPerf's name of the workload. `init_model_fn`, `model_fn`, and what else calls the
    model (`algoperf_specs.InjectionPoint`) run inside `attention.inject.injected`
    (`causal_attention.injected` for finewebedu_lm); everything else is AlgoPerf's own. The object
    gains the attributes `attention` (the variant's name) and
    `attention_tau`, and in `init_model_fn` the attribute `attention_layers` (how many ran the
    variant), which AlgoPerf writes to meta_data_0.json as `workload.attention…`
    (algoperf/logger_utils.py). `init_model_fn` raises ValueError for a model with another number
    of attention layers than AlgoPerf's has.

    One object has one variant for good: submissions jit their step with the workload as a static
    argument, which JAX tells apart by identity, and a variant is no part of that key. Raises
    ValueError for a variant that the workload cannot take.
    """
    catalog.check_variant(algoperf_specs.PREFIX + name, variant.name)
    point = algoperf_specs.INJECTION_POINTS[name]
    # AlgoPerf's masks are floats of 0 and 1.
    inside: Callable[..., Any] = functools.partial(inject.injected, float_masks=True)
    inside = causal_attention.injected if point.causal else inside
    contexts = {
        **dict.fromkeys(("init_model_fn", "model_fn", *point.traced), inside),
        **dict.fromkeys(point.jitted, _injected_while_tracing),
    }
    members: dict[str, Any] = {
        "attention": variant.name,
        "attention_tau": variant.hyperparameters.get("tau", 1.0),
    }
    base: Any = type(workload)

    def check(workload: Any, ran: tuple[str, ...]) -> None:
        injection.check_layers(variant.name, ran, point.layers, f"AlgoPerf's {base.__name__}")
        workload.attention_layers = len(ran)

    for method, context in contexts.items():
        enter = functools.partial(context, variant, layer=point.layer)
        members[method] = injection.run_inside(getattr(base, method), enter, check)
    about = {"__module__": base.__module__, "__doc__": base.__doc__}
    workload.__class__ = type(base)(base.__name__, (base,), {**about, **members})
    return workload


@contextlib.contextmanager
def _injected_while_tracing(variant: Variant, layer: inject.LayerRule) -> Iterator[None]:
    """Enters `injected` for a jitted method, which calls the model only while it is traced.

    Later calls run no attention module; `injected` alone would refuse that.
    """
    inside = inject.injected(variant, layer=layer, float_masks=True)
    with contextlib.suppress(inject.NothingCalledError), inside:
        yield
