"""Injection: a variant put into models that are not ours, unmodified.

`injected` is for Flax Linen models built on `nn.MultiHeadDotProductAttention`. Inside
`injected(variant)` such a module has our function as its `attention_fn` while it is called. The
library of the model is imported by its adapter (`attention/adapters/`), and here only when asked.

Interceptors are not part of jit's cache key: enter the context *inside* the traced function, and
keep one variant per jitted function. A model with `nn.jit` inside keeps the variant of its first
trace: one variant a process, or `jax.clear_caches()` between two.
"""

import contextlib
from typing import Any

from attention import records
from attention.adapters.injection import (
    CrossRule,
    Injection,
    InjectionError,
    LayerRule,
    NothingCalledError,
    check_rule,
)
from attention.variant import AttentionFunction, Variant

__all__ = [
    "AttentionFunction",
    "CrossRule",
    "Injected",
    "Injection",
    "InjectionError",
    "LayerRule",
    "NothingCalledError",
    "assign",
    "injected",
]

Injected = contextlib.AbstractContextManager[Injection]


def injected(
    variant: Variant,
    layer: LayerRule | None = None,
    is_cross: CrossRule | None = None,
    *,
    float_masks: bool = False,
) -> Injected:
    """Puts `variant` into every `nn.MultiHeadDotProductAttention` called inside the context.

    Yields an `Injection`, whose `layers` are the paths of the modules that ran the variant::

        with injected(variant) as injection:
            model.init(key, inputs)
        print(len(injection.layers), "attention layers")

    A jitted function adds its layers while it is traced, and none when its compiled program runs
    again.

    The parameter tree stays the model's for `standard` and `laser`; parts that learn add leaves
    beside the model's projections. The variant replaces flax's default attention function. It
    replaces the one of AlgoPerf's Conformer, too: its query scaler runs after the modifiers, its
    factor `temperature` last. Any other function is wrapped and keeps its softmax.

    layer: gives a layer's index from 0, possibly traced, from the path of its attention module:
    `lambda path: int(re.search(r"encoderblock_([0-9]+)", path)[1])`. `diff`, `diff_laser` and
    `value_residual` need it; other variants do not call it.

    is_cross: whether keys come from another sequence than the queries, for all modules or by path.
    `rope`, `window` and other parts need self-attention. Without this rule a module attends to
    itself if its queries and keys are made of one array.

    float_masks: the model cannot be changed and its masks are floats of 0 and 1, as flax's
    functions make them unless told `dtype=bool`. Otherwise masks of floats are refused.

    Raises RuntimeError on a clean exit if no module was called (as in a flax.nnx model), if a
    module never called its attention function, or if another variant is injected around this one.
    An exception in flight is never masked. Raises ValueError for a model's function or setting that
    a variant cannot serve, and for a variant that needs a rule without one.
    """
    check_rule(variant, layer)
    from attention.adapters import linen

    return linen.injected(variant, layer, is_cross, float_masks)


def assign(
    model: Any, variant: Variant, *, layer: LayerRule | None = None, rngs: Any = None
) -> list[str]:
    """Puts `variant` into every `nnx.MultiHeadAttention` of a built flax.nnx model.

    Returns the layers' paths ("blocks/0/attention"), to compare with the number of the model's
    layers. Call it once, before the optimizer is built: learned leaves become `nnx.Param` of their
    layers, `layer.gate.scale`. A layer that never calls its attention function raises
    InjectionError when it runs.

    layer: as of `injected`. rngs: nnx.Rngs, for leaves whose start is drawn. Layers stacked by
    nnx.vmap, to run in nnx.scan, get leaves stacked alike, on the first axis; a variant that needs
    the layer's index is refused there. `value_residual` is refused when a layer runs in nnx.remat.

    Raises ValueError for a model without such layers, or whose layers have a variant or a function
    of their own. The model is unchanged then.
    """
    check_rule(variant, layer)
    paths: list[str] = records.adapter("nnx").assign(model, variant, layer, rngs)
    return paths
