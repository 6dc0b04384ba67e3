"""What the adapters share: which layers ran a variant, the rules of a user, and refusals."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from attention import probe
from attention.call import Call, Memory
from attention.kernels.inputs import layer_number, make_call
from attention.variant import Variant

LayerRule = Callable[[str], int | Array]
CrossRule = bool | Callable[[str], bool]


class InjectionError(RuntimeError, ValueError):
    """A variant did not run in a layer. A ValueError, too, which commands answer in a sentence."""


class NothingCalledError(InjectionError):
    """No attention module was called inside the context."""


@dataclasses.dataclass(eq=False)
class Injection:
    """The layers that ran a variant. `injected` fills it in while Flax modules run in Python.

    calls: how often a module called the variant, by its path
    ("encoderblock_3/MultiHeadDotProductAttention_0"; '' for a module that is the whole model).
    Tracing may call a module more than once, so only 0 and the paths have a meaning. classes: the
    modules' class names, by path. memory: what the layers called so far left. trace: the trace of
    JAX in which they left it.
    """

    calls: dict[str, int] = dataclasses.field(default_factory=dict)
    classes: dict[str, str] = dataclasses.field(default_factory=dict)
    memory: Memory = dataclasses.field(default_factory=dict)
    trace: Any = None

    @property
    def layers(self) -> tuple[str, ...]:
        """The paths of the attention modules that ran the variant, in the order of their calls.

        A layer inside `nn.scan` is one path, whatever the length of the loop. So is a module whose
        parameters several layers share.
        """
        return tuple(path for path, count in self.calls.items() if count)

    def add(self, module: Any, calls: int) -> None:
        """Records that a module has returned, after this many calls of the variant."""
        path = "/".join(module.path)
        self.calls[path] = self.calls.get(path, 0) + calls
        self.classes[path] = type(module).__name__

    def memory_of(self, variant: Variant, layer: int | Array | None, path: str) -> Memory | None:
        """Returns what earlier layers left for a layer, None if the variant has no memory.

        Raises ValueError inside nn.scan or nn.remat, whose layers cannot hand on what they leave.
        """
        if "memory" not in variant.needs:
            return None
        trace = probe.current_trace()
        if isinstance(layer, int) and layer == 0:
            self.memory, self.trace = {}, trace
        elif trace != self.trace or not isinstance(layer, int):
            raise ValueError(
                f"{variant.name!r} hands values from layer to layer, from layer 0 on and not out "
                f"of nn.scan or nn.remat. At path {path!r} the layer's index is {layer}; build the "
                "model without them, and count layers from 0"
            )
        return self.memory

    def check(self, variant: Variant) -> None:
        """Raises RuntimeError if an attention module never called the variant."""
        unused = [path for path, count in self.calls.items() if not count]
        if unused:
            names = ", ".join(f"{self.classes[path]} at {path!r}" for path in unused)
            raise InjectionError(
                f"{variant.name!r} ran in {len(self.layers)} of {len(self.calls)} attention "
                f"modules. These never called their attention_fn: {names}. Their class computes "
                "attention in its own way; have it call self.attention_fn"
            )


def check_rule(variant: Variant, layer: LayerRule | None) -> None:
    """Raises ValueError for a rule that is missing or no function, and for what is no variant."""
    if not isinstance(variant, Variant):
        raise ValueError(f"{variant!r} is no variant; give registry.get({variant!r})")
    if layer is None and "layer" in variant.needs:
        raise ValueError(
            f"{variant.name} needs each layer's index (from 0), and the model does not say it: "
            "give layer=rule, rule(path) -> index, such as "
            "lambda path: int(re.search(r'encoderblock_([0-9]+)', path)[1])"
        )
    if layer is not None and not callable(layer):
        raise ValueError(
            f"layer={layer!r}: give a rule from an attention module's path to its layer's index; "
            "for one index everywhere, lambda path: 0"
        )


def layer_index(variant: Variant, rule: LayerRule | None, path: str) -> int | Array | None:
    """Returns the rule's answer for a module's path, None for a variant that needs no index.

    A rule that fails says at which path. Raises ValueError for an answer that is no index.
    """
    if rule is None or "layer" not in variant.needs:
        return None
    try:
        return layer_number(rule(path))
    except Exception as error:
        error.add_note(f"raised by the layer rule at path {path!r}")
        raise


def example_call(
    variant: Variant,
    heads: int,
    kv_heads: int,
    head_size: int,
    width: int,
    layer: int | None = None,
) -> Call:
    """Returns a call like a layer's, of zeros, for `Variant.leaves`.

    heads, head_size: H and D of queries; kv_heads: K; width: W of x; layer: the layer's index.
    """
    query, keys = (jnp.zeros((1, count, head_size)) for count in (heads, kv_heads))
    x, memory = jnp.zeros((1, width)), variant.empty_memory(keys)
    return make_call(query, keys, keys, x=x, layer=layer, memory=memory)


def check_normalised(normalises: bool, variant: Variant) -> None:
    """Raises ValueError if a model that normalises queries and keys would do it twice."""
    twice = [name for name in ("qk_norm", "qk_rms_norm") if name in variant.modifiers]
    if normalises and twice:
        raise ValueError(
            f"the model already normalises queries and keys, so {variant.name!r} would do it "
            f"twice; drop +{twice[0]} or the model's setting"
        )
