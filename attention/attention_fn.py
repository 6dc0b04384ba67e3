"""A variant as the `attention_fn` of one Flax layer."""

import inspect
from typing import Any

import jax
from flax import linen as nn

from attention.call import Call, Memory
from attention.kernels.inputs import from_cache, make_call

Array = jax.Array


class AttentionFunction:
    """A variant as one layer's `attention_fn`: with the layer's index, its input and the memory.

    x [..., T, W]: the layer's input. memory: what earlier layers left, and after the call what this
    one leaves too. is_cross: keys and values are made of something else than x. float_masks: the
    model's masks may be floats of 0 and 1, as of `injected`; has_cache: so may those of one query,
    which flax's cache makes. Its signature is flax's in full: flax passes only what it finds there.
    """

    float_masks = False
    has_cache = True

    def __init__(
        self,
        variant: Any,
        layer: int | Array | None = None,
        x: Array | None = None,
        memory: Memory | None = None,
        is_cross: bool = False,
    ) -> None:
        self.variant = variant
        self.memory = memory
        self.about: dict[str, Any] = {"layer": layer, "x": x, "is_cross": is_cross}
        self.calls = 0

    def make_call(self, query: Array, key: Array, value: Array, **masks: Any) -> Call:
        """Returns the call, checked; masks: bias, mask and is_causal as of `Variant.__call__`."""
        mask = masks.get("mask")
        if self.has_cache:
            mask = from_cache(query, mask)
        if self.float_masks and mask is not None:
            mask = mask > 0
        masks["mask"] = mask
        return make_call(query, key, value, memory=self.memory, **masks, **self.about)

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        mask: Array | None = None,
        is_causal: bool = False,
        **settings: Any,
    ) -> Array:
        """Returns the output [..., T, H, Dv]; settings as of `Variant.attend`."""
        self.calls += 1
        call = self.make_call(query, key, value, bias=bias, mask=mask, is_causal=is_causal)
        output, self.memory = self.variant.attend(call, **settings)
        return output

    def prepare(self, query: Array, key: Array, value: Array, *, is_causal: bool = False) -> Call:
        """Returns `Variant.prepare`'s call, for a model that keeps its own softmax."""
        call = self.variant.prepare(self.make_call(query, key, value, is_causal=is_causal))
        self.memory = call.memory
        return call

    __signature__ = inspect.signature(nn.dot_product_attention)
