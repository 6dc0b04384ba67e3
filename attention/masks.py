"""What a query may look at: symbolic masks and biases, and the arrays that backends make of them.

Shapes: T queries, S keys, H heads. A key is hidden where the mask says so, and where the caller's
bias is at most `HIDING_BIAS` (`Bias.hidden`). `merged` is the one place that puts them together.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

# Of (query_index, key_index), element by element: True where the query sees the key.
PairFunction = Callable[[jax.Array, jax.Array], jax.Array]

# A mask written as a bias: −1e4 (BERT, GPT-NeoX; −9984 in bfloat16), −1e9 and −1e10 (T5), float16's
# minimum −65504, −∞. The weight of such a key is exactly 0 in every dtype, but LASER must also keep
# its value out of the shift. No bias with a meaning of its own is as low: ALiBi's steepest slope,
# 1/2, gets there after 10,000 positions, with a weight of e^−5000.
HIDING_BIAS = -5000.0

# Compared, not traced: what jit gives back as it is.
_STATIC = {"static": True}


class Bias(NamedTuple):
    """What is added to the scaled logits, float32: the sum of its parts. None adds nothing.

    dense broadcasts to [..., H, T, S]; row [..., H, T] and column [..., H, S] need no T×S array.
    """

    dense: jax.Array | None = None
    row: jax.Array | None = None
    column: jax.Array | None = None

    def parts(self) -> Iterator[jax.Array]:
        """Yields arrays that broadcast to [..., H, T, S], whose sum is the bias."""
        if self.dense is not None:
            yield self.dense
        if self.row is not None:
            yield self.row[..., :, None]
        if self.column is not None:
            yield self.column[..., None, :]

    def plus(self, row: jax.Array, column: jax.Array) -> "Bias":
        """Returns the bias with `row` and `column` added to its own."""
        row = row if self.row is None else self.row + row
        column = column if self.column is None else self.column + column
        return Bias(self.dense, row, column)

    def per_head(self, times: int) -> "Bias":
        """Returns the bias with each head's part `times` in a row."""
        return Bias(
            _repeated(self.dense, -3, times),
            _repeated(self.row, -2, times),
            _repeated(self.column, -2, times),
        )

    def hidden(self) -> jax.Array | None:
        """Returns where the bias hides a key, bool, or None where it has no part that can.

        That is the dense part, the columns, or their sum; a positive part does not bring a key
        back. Rows move all logits of a query alike: they hide nothing.
        """
        lowered = jax.tree.map(lambda part: jnp.minimum(part, 0), self._replace(row=None)).whole()
        return None if lowered is None else lowered <= HIDING_BIAS  # NaN hides nothing

    def without_idle_rows(self, is_softmax: bool, has_sink: bool) -> "Bias":
        """Returns the parts that change weights: rows change none of a softmax without a sink.

        A row part of large size would round the logits.
        """
        return self._replace(row=None) if is_softmax and not has_sink else self

    def with_idle_rows(self, log_sums: jax.Array, is_softmax: bool, has_sink: bool) -> jax.Array:
        """Returns logarithms of masses [..., H, T] plus the rows that `without_idle_rows` drops."""
        if self.row is None or self.without_idle_rows(is_softmax, has_sink).row is not None:
            return log_sums
        return log_sums + self.row

    def whole(self) -> jax.Array | None:
        """Returns one array that broadcasts to [..., H, T, S], or None."""
        parts = list(self.parts())
        return functools.reduce(operator.add, parts) if parts else None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask:
    """Which keys a query sees: the intersection of its parts, None or False if there is none.

    causal: query t sees keys 0..t; strict: only keys before t. width: |t − s| < width. segments:
    int [..., T] of queries and [..., S] of keys, equal where one sees the other. keys: bool
    [..., S], True where all queries see the key. dense: bool, broadcasts to [..., H, T, S].
    hidden: bool of the same axes, True where the caller's bias hides a key; `make_call` sets it.
    functions: of (query_index, key_index), True where the query sees the key; `of` makes it. lower:
    int [..., T], query t sees keys from lower[t] on.
    """

    causal: bool = dataclasses.field(default=False, metadata=_STATIC)
    strict: bool = dataclasses.field(default=False, metadata=_STATIC)
    width: int | None = dataclasses.field(default=None, metadata=_STATIC)
    segments: tuple[jax.Array, jax.Array] | None = None
    keys: jax.Array | None = None
    dense: jax.Array | None = None
    hidden: jax.Array | None = None
    functions: tuple[PairFunction, ...] = dataclasses.field(default=(), metadata=_STATIC)
    lower: jax.Array | None = None

    @staticmethod
    def of(function: PairFunction) -> "Mask":
        """Returns the mask that a function of (query_index, key_index) describes.

        The indices are int32 arrays that broadcast to each other. What kernels need to know of
        their tiles is found once for a function and two lengths: keep the function, or this mask.
        """
        return Mask(functions=(function,))

    def __and__(self, other: "Mask | PairFunction") -> "Mask":
        """Returns the intersection. Raises ValueError where both have segments."""
        other = other if isinstance(other, Mask) else Mask.of(other)
        if self.segments is not None and other.segments is not None:
            raise ValueError("both masks have segments; give one of them as a dense mask")
        widths = [width for width in (self.width, other.width) if width is not None]
        return Mask(
            self.causal or other.causal,
            self.strict or other.strict,
            min(widths, default=None),
            other.segments if self.segments is None else self.segments,
            _both(self.keys, other.keys, _intersection),
            _both(self.dense, other.dense, _intersection),
            other.hidden if self.hidden is None else self.hidden,
            tuple(dict.fromkeys(self.functions + other.functions)),
            _both(self.lower, other.lower, jnp.maximum),
        )

    def per_head(self, times: int) -> "Mask":
        """Returns the mask with each head's part `times` in a row."""
        return dataclasses.replace(
            self,
            dense=_repeated(self.dense, -3, times),
            hidden=_repeated(self.hidden, -3, times),
        )

    def parts(self, queries: int, keys: int) -> Iterator[jax.Array]:
        """Yields bool arrays with at least the axes [H, T, S], whose intersection it is."""
        for pairs in (self.dense, None if self.hidden is None else ~self.hidden):
            if pairs is not None:
                yield pairs.reshape((1,) * max(0, 3 - pairs.ndim) + pairs.shape)
        if self.keys is not None:
            yield self.keys[..., None, None, :]
        if self.segments is not None:
            of_queries, of_keys = self.segments
            yield of_queries[..., None, :, None] == of_keys[..., None, None, :]
        if self.lower is not None:
            yield jnp.arange(keys) >= self.lower[..., None, :, None]
        if self.functions:
            rows, columns = (jnp.arange(length, dtype=jnp.int32) for length in (queries, keys))
            yield seen(self.functions, rows[:, None], columns[None])[None]
        if not (self.causal or self.strict) and self.width is None:
            return
        distance = jnp.arange(queries)[:, None] - jnp.arange(keys)
        near = distance > 0 if self.strict else distance >= 0
        if self.width is not None:
            close = jnp.abs(distance) < self.width
            near = near & close if self.causal or self.strict else close
        yield near[None]


def seen(functions: tuple[PairFunction, ...], queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Returns which pairs all functions show, bool of the shape to which the indices broadcast."""
    shown = [function(queries, keys) for function in functions]
    shape = jnp.broadcast_shapes(queries.shape, keys.shape)
    return jnp.broadcast_to(functools.reduce(operator.and_, shown), shape)


def check_boolean(name: str, mask: jax.Array) -> None:
    """Raises ValueError unless a mask is of booleans: 0 hides in one of numbers that says where to
    look, and shows in one that is added. A traced one cannot be looked at."""
    dtype = getattr(mask, "dtype", None)
    if dtype != jnp.bool_:
        raise ValueError(
            f"{name} has dtype {dtype}; give booleans, True where a query may look: mask > 0 "
            "of a mask of 0 and 1 (flax's by nn.make_attention_mask(..., dtype=bool) and "
            "nn.make_causal_mask(..., dtype=bool)). What is added to the logits belongs in bias="
        )


def _both(
    first: jax.Array | None,
    second: jax.Array | None,
    together: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array | None:
    """Returns what two parts are `together`, either of which may be None."""
    if first is None or second is None:
        return second if first is None else first
    return together(first, second)


def _intersection(first: jax.Array, second: jax.Array) -> jax.Array:
    for mask in (first, second):
        check_boolean("mask", mask)
    return first & second


def _repeated(array: jax.Array | None, axis: int, times: int) -> jax.Array | None:
    """Returns an array with the entries of a heads' axis repeated, one that has none as it is."""
    if array is None or array.ndim < -axis or array.shape[axis] == 1:
        return array
    return repeated(array, axis, times)


def repeated(array: jax.Array, axis: int, times: int) -> jax.Array:
    """Returns an array with each entry of an axis, counted from the end, `times` in a row.

    jnp.repeat does the same, but asks for the sharding on a mesh with explicit axes.
    """
    place = array.ndim + axis + 1
    before, after = array.shape[:place], array.shape[place:]
    wide = jnp.broadcast_to(jnp.expand_dims(array, place), (*before, times, *after))
    return wide.reshape((*before[:-1], before[-1] * times, *after))


def lying(array: jax.Array, axes: tuple[Any, ...]) -> jax.Array:
    """Returns an array divided over a mesh with explicit axes as `axes` say, of each of its own."""
    sharding = jax.typeof(array).sharding
    if tuple(sharding.spec) == axes:
        return array
    return jax.sharding.reshard(array, NamedSharding(sharding.mesh, PartitionSpec(*axes)))


class Masks(NamedTuple):
    """What is seen, as arrays. None means that everything is, and that there is no sink.

    pairs: bool, broadcasts to [..., H, T, S].
    keys: bool, broadcasts to [..., S, H, 1]: some query of that batch entry and head sees it.
    rows: bool, broadcasts to [..., T, H, 1]: the query sees a key, a sink aside. None, too, where
    every query sees its own key, so that every key is seen.
    sink: the logit of a key of value 0 beside them, as in `attention.call.Call`.
    """

    pairs: jax.Array | None = None
    keys: jax.Array | None = None
    rows: jax.Array | None = None
    sink: jax.Array | None = None


def merged(mask: Mask, queries: int, keys: int) -> Masks:
    """Returns what `queries` rows see of `keys` keys."""
    parts = list(mask.parts(queries, keys))
    if not parts:
        return Masks()
    pairs = functools.reduce(operator.and_, parts)
    is_symbolic = not mask.functions and not jax.tree.leaves(mask)
    sees_itself = queries == keys and not mask.strict and is_symbolic
    return Masks(
        pairs,
        keys=jnp.swapaxes(jnp.any(pairs, axis=-2), -2, -1)[..., None],
        rows=None if sees_itself else jnp.swapaxes(jnp.any(pairs, axis=-1), -2, -1)[..., None],
    )
