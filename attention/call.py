"""One attention call: the record that travels through a variant.

Axes: B batch (any number of axes), T queries, S keys, H query heads, K key heads (K divides H),
D head size, Dv head size of the values, W width of the block.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from jax import Array

from attention.masks import Bias, Mask

# What earlier layers left, by the modifier that reads it; in the carry where layers are scanned.
Memory = Mapping[str, Array]


@dataclasses.dataclass(frozen=True)
class LayerIndex:
    """A layer's index from 0, possibly traced, and how many layers there are, None if unknown."""

    index: int | Array
    count: int | None = None


class Call(NamedTuple):
    """What an attention call is given, and what modifiers make of it.

    query [..., T, H, D], key [..., S, K, D], value [..., S, K, Dv]. x [..., T, W]: the block's
    input, on the queries' side. memory: what earlier layers left, {} in the first. bias: added to
    the scaled logits. mask: which keys a query sees. sink [H], or [..., H, T] if it is probed:
    the logit of one more key, of value 0, that all queries see. temperature: logits are divided by
    it. is_cross: keys and values come from another sequence than the queries.

    In formulas: float64, without a batch axis, key and value with H heads; mask is bool [H, T, S],
    bias float64 [H, T, S].
    """

    query: Any
    key: Any
    value: Any
    x: Any = None
    layer: LayerIndex | None = None
    memory: Memory | None = None
    bias: Any = Bias()
    mask: Any = Mask()
    sink: Any = None
    temperature: float = 1.0
    is_cross: bool = False
