"""Functions and leaves of a mechanism, for kernels: of logits, weights, values and outputs.

A kernel computes the functions on a tile on the chip, and their derivatives there by jax.vjp. A
tile of logits is float32, [T, S] in the forward pass and [S, T] in the backward pass. So functions
work element by element and by broadcasting: a query's index is [n, 1] and a key's [1, m], or the
reverse.

    score        logits ← f(logits, query_index, key_index, leaves), scaled QKᵀ first
    weighting    weights and masses of logits: A = weights/Σ mass
    transform    F = value(V, c), R = A·F, output(R, c)

Leaves come by their kind: "head" [H], "row" [..., H, T], "column" [..., H, S], which have
gradients, and "channel" [..., K, Dv] (the c above), which have none. No function is told its head:
on a mesh a kernel knows only the heads of its device, and what differs by head is a leaf.

`kernels.elementwise.check` refuses functions that break these rules, by name; `check_weighting`
refuses a weighting that is not what it says.
"""

import contextlib
import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Leaves of a function, by their name.
Leaves = Mapping[str, jax.Array]
KINDS = ("head", "row", "column", "channel")
# A hidden logit, and where a row's maximum begins: above what hides, so that the weights of a row
# that sees nothing are exp(−∞), not exp(0).
HIDDEN, LOWEST = -1e30, -1e20
# How many nats apart values of a channel may lie if a transform is computed on tiles: a backward
# pass divides by 1 + R, not by exp(max − c), so that it is as far as float32 reaches.
TILE_SPAN = 75.0


@dataclasses.dataclass(frozen=True)
class Weighting:
    """How logits l become weights.

    A row's weights are weights(l, s) / Σ mass(l, s). s, [n, 1] or [1, n], is a shift that cancels:
    the row's largest logit so far, or the logarithm of its whole mass. Both functions are
    proportional to e^−s, so that exponentials stay finite. A row whose masses sum to 0 has weights
    of 0. mass None: weights are not divided, and s is None. same: the mass is the weights. floor:
    the least s, 0 if e^−s stands beside e^(l − s). start: the logarithm of a constant mass of every
    row, a number, or the name of a head leaf, which makes it a sink: a key of value 0 with that
    logit.

    scales: whether weights and mass contain the factor e^−s. Where they do not (relu(l)²), s is 0.

    left(l): the logarithm of what a key leaves to earlier ones. Then there is no mass, and s is the
    sum of `left` over the keys after l's.

    jacobian_norm(weights): the Frobenius norm of each row's Jacobian, [..., H, T] for weights
    [..., H, T, S], for diagnostics; None if there is no closed form.
    """

    weights: Callable[..., jax.Array]
    mass: Callable[[jax.Array, Any], jax.Array] | None = None
    same: bool = False
    floor: float | None = None
    start: float | str | None = None
    left: Callable[[jax.Array], jax.Array] | None = None
    jacobian_norm: Callable[[jax.Array], jax.Array] | None = None
    scales: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError for a number that is none, such as an array that could be learned."""
        for name, number in (("floor", self.floor), ("start", self.start)):
            is_name = name == "start" and isinstance(number, str)
            if not (is_name or isinstance(number, numbers.Real | None)):
                raise ValueError(
                    f"{name}={number!r} of a weighting: give a number; what is learned is the name "
                    "of a head leaf, start='sink'"
                )

    @property
    def is_softmax(self) -> bool:
        """Returns whether it is the softmax, which kernels of libraries have, without a sink."""
        return self.weights is self.mass is exponential and self.start is None


class Dropout(NamedTuple):
    """What share of the weights becomes 0, and the seed of each head's, int32 [..., H]."""

    rate: float
    seeds: jax.Array


def is_kept(rate: float, seed: Any, queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Returns which weights dropout keeps.

    A hash of each pair of indices is compared with the rate: `scrambled` of either index with the
    seed, then half a round of their product.
    """
    rows, columns = scrambled(queries ^ seed), scrambled(~keys ^ seed)
    bits = _half_round(rows * (columns | 1), 15, -2048144789)
    return bits >= jnp.int32(min(round(rate * 2**32), 2**32 - 1) - 2**31)


def scrambled(bits: jax.Array) -> jax.Array:
    """Returns int32 bits after both multiplications of MurmurHash3's finaliser.

    Appleby, public domain. The finaliser's last exclusive or is left out.
    """
    return _half_round(_half_round(bits, 16, -2048144789), 13, -1028477387)


def _half_round(bits: jax.Array, shift: int, factor: int) -> jax.Array:
    return (bits ^ jax.lax.shift_right_logical(bits, jnp.int32(shift))) * jnp.int32(factor)


class Score(NamedTuple):
    """A function of logits with its hyperparameters; equal to another that computes the same.

    kinds: (name, kind) of each leaf that it is given. may_hide: it may return −∞.
    """

    function: Callable[..., jax.Array]
    hyperparameters: tuple[tuple[str, Any], ...] = ()
    kinds: tuple[tuple[str, str], ...] = ()
    may_hide: bool = False

    def __call__(
        self, logits: jax.Array, queries: jax.Array, keys: jax.Array, leaves: Leaves
    ) -> jax.Array:
        """Returns the logits as it leaves them; leaves in shapes that broadcast to theirs."""
        result = self.function(logits, queries, keys, leaves, **dict(self.hyperparameters))
        return fitted(self.name, result, logits)

    @property
    def name(self) -> str:
        """Returns the function in words, for messages."""
        return f"the score function {getattr(self.function, '__qualname__', self.function)}"


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A function whose result has the shape and dtype of its first argument.

    what: the function in words, for messages.
    """

    what: str
    function: Callable[..., Any]

    def __call__(self, array: jax.Array, *arguments: Any) -> jax.Array:
        """Returns `fitted` of the function's result."""
        return fitted(self.what, self.function(array, *arguments), array)


class UnfitResultError(ValueError):
    """A function returns what is no array of real numbers of the shape that it must have."""


def fitted(what: str, result: Any, like: jax.Array) -> jax.Array:
    """Returns a function's result, broadcast to the shape of `like` and in its dtype.

    Raises UnfitResultError, naming the function, unless it is a real number or an array of real
    numbers that broadcasts to that shape.
    """
    is_number = isinstance(result, numbers.Real) and not isinstance(result, bool)
    dtype = np.dtype(float) if is_number else getattr(result, "dtype", None)
    if dtype is not None and (
        jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    ):
        with contextlib.suppress(ValueError):  # of shapes that do not broadcast
            whole = jnp.broadcast_to(jnp.asarray(result).astype(like.dtype), like.shape)
            if jax.typeof(whole) == jax.typeof(like):
                return whole
            # It lies on a mesh as its argument does, on which it may not depend.
            zeros = jnp.zeros_like(like)
            return whole + jnp.where(jnp.isnan(like), zeros, zeros)
    kind = type(result).__name__ if dtype is None else f"{dtype}{getattr(result, 'shape', ())}"
    raise UnfitResultError(
        f"{what} returns {kind} for {like.dtype}{like.shape}: it must return real numbers of the "
        "same shape, whichever axis comes first, or that broadcast to it (True and False belong in "
        "mask=)"
    )


class Transform(NamedTuple):
    """What stands around the weighted sum: output(A·value(V, c), c), float32 [n, Dv].

    c: channel leaves by name, each [1, Dv]; names: theirs. value_slope(v, f, c) and
    output_slope(r, c): the derivatives ∂F/∂V and ∂o/∂R, where those by jax.vjp take longer.
    leaves(value, keys, axis, with_zero): the channel leaves, if they depend on the values: of
    float32 values, over `axis`, which stays, and over the keys that are True (None: all), and a key
    of value 0 if it is there, too. Without it a call gives them. filler: the leaf that takes the
    place of values that no query sees, 0 if it is ''.
    """

    value: Callable[[jax.Array, Leaves], jax.Array]
    output: Callable[[jax.Array, Leaves], jax.Array]
    value_slope: Callable[[jax.Array, jax.Array, Leaves], jax.Array] | None = None
    output_slope: Callable[[jax.Array, Leaves], jax.Array] | None = None
    leaves: Callable[..., dict[str, jax.Array]] | None = None
    names: tuple[str, ...] = ()
    filler: str = ""

    def pull_value(
        self, cotangent: jax.Array, value: jax.Array, raised: jax.Array, c: Leaves
    ) -> jax.Array:
        """Returns dV from dF, all [n, Dv] float32; `raised`: F."""
        if self.value_slope is not None:
            return cotangent * self.value_slope(value, raised, c)
        return jax.vjp(lambda v: self.value(v, c), value)[1](cotangent)[0]

    def pull_output(self, cotangent: jax.Array, means: jax.Array, c: Leaves) -> jax.Array:
        """Returns dR from the output's cotangent, [n, Dv] float32."""
        if self.output_slope is not None:
            return cotangent * self.output_slope(means, c)
        return jax.vjp(lambda r: self.output(r, c), means)[1](cotangent)[0]


@dataclasses.dataclass(frozen=True)
class Functions:
    """All that a mechanism gives a kernel, compiled in."""

    score: tuple[Score, ...]
    weighting: Weighting
    transform: Transform | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Returns the kinds of all leaves of score functions, in the order of `flattened`."""
        return tuple(kind for score in self.score for _, kind in sorted(score.kinds))

    @property
    def channels(self) -> tuple[str, ...]:
        """Returns the names of the channel leaves, sorted."""
        return () if self.transform is None else tuple(sorted(self.transform.names))

    def flattened(self, leaves: tuple[Leaves, ...]) -> list[jax.Array]:
        """Returns the leaves of all score functions one after the other, by name in each."""
        names = [sorted(name for name, _ in score.kinds) for score in self.score]
        return [named[name] for named, listed in zip(leaves, names, strict=True) for name in listed]

    def of_zero(self, channels: Callable[[], Leaves], shape: tuple[int, ...]) -> Any:
        """Returns F of the value 0, if a row's sum begins with a key of that value, or None."""
        if self.transform is None or not isinstance(self.weighting.start, str):
            return None
        return self.transform.value(jnp.zeros(shape, jnp.float32), channels())

    def scored(
        self, logits: jax.Array, indices: tuple[jax.Array, jax.Array], leaves: list[jax.Array]
    ) -> jax.Array:
        """Returns the logits after all score functions; leaves as `flattened` lists them."""
        rest = iter(leaves)
        for score in self.score:
            logits = score(logits, *indices, {name: next(rest) for name, _ in sorted(score.kinds)})
        return logits

    def weigh(
        self, logits: jax.Array, s: Any, visible: jax.Array | None, hidden: float = HIDDEN
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns a tile's weights and masses, 0 where a key is not `visible` (None: all are), or a
        score function made its logit −∞.

        hidden: what takes the place of a hidden logit: 0 where functions are differentiated, whose
        derivative of the lowest number may be infinite.
        """
        weighting = self.weighting
        if weighting.same and weighting.weights is exponential:  # 0 of either
            weights = exponential(
                logits if visible is None else jnp.where(visible, logits, HIDDEN), s
            )
            return weights, weights
        if self.score:
            scored = logits > -jnp.inf
            visible = scored if visible is None else visible & scored
        shown = logits if visible is None else jnp.where(visible, logits, hidden)
        of_visible = (lambda tile: tile) if visible is None else functools.partial(_where, visible)
        weights = of_visible(weighting.weights(shown, s))
        if weighting.same or weighting.mass is None:
            return weights, weights if weighting.same else None
        return weights, of_visible(weighting.mass(shown, s))

    def pulled(
        self,
        logits: jax.Array,
        indices: tuple[jax.Array, jax.Array],
        leaves: list[jax.Array],
        visible: jax.Array | None,
        s: Any,
        bar: jax.Array,
        delta: Any,
        kinds: tuple[str, ...] = KINDS,
        kept: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
        """Returns a tile's weights, the gradient of its scaled logits, and of leaves of `kinds`.

        bar: the gradient of the weights by their product with F alone, G·Fᵀ; delta: δ; kept: the
        weights that dropout leaves, None: all.
        """
        bar = bar if kept is None else _where(kept, bar)
        moved = [n for n, kind in enumerate(self.kinds) if kind in kinds]
        weighting, lost = self.weighting, None
        if weighting.same:
            bar = bar - delta
        elif weighting.mass is not None:
            lost = jnp.broadcast_to(-delta, bar.shape)

        def weighed(logits: jax.Array, changed: list[jax.Array]) -> Any:
            every = list(leaves)
            for n, leaf in zip(moved, changed, strict=True):
                every[n] = leaf
            weighed_tile = self.weigh(self.scored(logits, indices, every), s, visible, 0.0)
            return weighed_tile[0] if weighting.same else weighed_tile

        result, pull = jax.vjp(weighed, logits, [leaves[n] for n in moved])
        weights, bars = (result, bar) if weighting.same else (result[0], (bar, lost))
        return weights if kept is None else _where(kept, weights), *pull(bars)


def exponential(logits: jax.Array, s: jax.Array) -> jax.Array:
    """Returns e^(l − s), the softmax's weights and masses."""
    return jnp.exp(logits - s)


@functools.lru_cache(256)
def with_factor(weighting: Weighting) -> Weighting:
    """Returns the same weighting with the factor e^−s in weights and mass, as kernels want it."""
    if weighting.scales or weighting.mass is None:
        return weighting

    def times_factor(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return lambda logits, s: function(logits, jnp.zeros_like(s)) * jnp.exp(-s)

    weights, mass = times_factor(weighting.weights), times_factor(weighting.mass)
    return dataclasses.replace(weighting, weights=weights, mass=mass)


def _where(visible: jax.Array, array: jax.Array) -> jax.Array:
    return jnp.where(visible, array, 0.0)


@functools.lru_cache(256)
def check_weighting(weighting: Weighting) -> None:
    """Raises ValueError if a weighting is not what it says, by its values for a few logits.

    Weights and masses that scale are proportional to e^−s, and those that are the `same` are equal.
    It may be called while JAX traces.
    """
    if weighting.same and weighting.mass is None:
        raise ValueError(
            f"{_part(weighting, 'weights')} are its mass, too, by same=True: give mass=weights"
        )
    if weighting.mass is None or weighting.weights is weighting.mass is exponential:
        return
    close = functools.partial(np.allclose, rtol=1e-4, atol=0, equal_nan=True)
    values = [_on_few_logits(weighting, s) for s in (4.0, 5.0)]
    for name, low, high in zip(("weights", "mass"), *values, strict=True):
        if weighting.scales and not close(low, high * math.e):
            raise ValueError(
                f"{_part(weighting, name)} lacks the factor e^−s, by which backends keep rows in "
                "range: multiply weights and mass by jnp.exp(-s), or, for functions of the logits "
                "alone, give Weighting(..., scales=False)"
            )
    if weighting.same and not close(*values[0]):
        raise ValueError(f"{_part(weighting, 'mass')} is not its weights: leave same=True out")


def _part(weighting: Weighting, name: str) -> str:
    function = getattr(weighting, name)
    return f"the weighting's {name} ({getattr(function, '__qualname__', function)})"


def _on_few_logits(weighting: Weighting, s: float) -> list[Any]:
    """Returns the weights and masses of eight logits, [1, 8] each. Raises ValueError."""
    results = []
    for name in ("weights", "mass"):
        with jax.ensure_compile_time_eval(), jax.disable_jit(False):
            logits = jnp.asarray([[-8, -3, -1, -0.3, 0.3, 1, 3, 8]], jnp.float32)
            # By jit, since within vmap a custom_jvp gives a tracer even here.
            result = jax.jit(getattr(weighting, name))(logits, jnp.full((1, 1), s))
            result = fitted(_part(weighting, name), result, logits)
        if isinstance(result, jax.core.Tracer):
            raise ValueError(
                f"{_part(weighting, name)} captures an array that JAX traces (by jit, grad or "
                "vmap): it may capture numbers; what is learned is a leaf of a score function"
            )
        results.append(np.asarray(result))
    return results


def least(weighting: Weighting, start: Any) -> Any:
    """Returns the least s of a row that begins with the mass e^start, None without a bound."""
    if not weighting.scales:
        return 0.0
    bounds = [bound for bound in (weighting.floor, start) if bound is not None]
    if all(isinstance(bound, float) for bound in bounds):
        return max(bounds, default=None)
    return functools.reduce(jnp.maximum, bounds)


def log_mass(top: jax.Array, total: jax.Array, is_nothing: jax.Array) -> jax.Array:
    """Returns s = top + log total of each row, ∞ where it has no mass; all [..., T, 1]."""
    return jnp.where(is_nothing, jnp.inf, top + jnp.log(jnp.where(is_nothing, 1, total)))


def rows(
    weighting: Weighting, logits: jax.Array, with_lse: bool = False
) -> tuple[jax.Array, jax.Array | None]:
    """Returns the weights of whole rows, [..., T, S], and `with_lse` their `log_mass`.

    Hidden logits are the lowest finite number, and those keys have weight 0. A sink comes as a key
    here: `weighting.start` is no name.
    """
    visible = ~(logits <= jnp.finfo(logits.dtype).min)  # NaN is not hidden
    shown = jnp.where(visible, logits, 0)
    if weighting.left is not None:
        left = jnp.where(visible, weighting.left(shown), 0)
        # The sum from the end, without the key's own.
        later = jax.lax.cumsum(left, axis=left.ndim - 1, reverse=True) - left
        return jnp.where(visible, weighting.weights(shown, later), 0), None
    if weighting.mass is None:
        return jnp.where(visible, weighting.weights(shown, None), 0), None
    begin: Any = weighting.start
    bound = least(weighting, begin)
    top = jnp.max(logits, axis=-1, keepdims=True)
    top = top if bound is None else jnp.maximum(top, bound)
    # 0 in a row that sees nothing.
    is_used = weighting.scales & (top > jnp.finfo(logits.dtype).min)
    top = jax.lax.stop_gradient(jnp.where(is_used, top, 0))
    weights, mass = (
        jnp.where(visible, function(shown, top), 0)
        for function in (weighting.weights, weighting.mass)
    )
    total = jnp.sum(mass, axis=-1, keepdims=True)
    if begin is not None:
        total = total + jnp.exp(begin - top)
    # In units of the total's power of two: the derivative of a quotient has its square.
    unit = jnp.ldexp(jnp.ones_like(total), -jnp.frexp(jax.lax.stop_gradient(total))[1])
    is_nothing = jnp.abs(total) < jnp.finfo(total.dtype).tiny
    divided = weights * unit / jnp.where(is_nothing, jnp.inf, total * unit)
    return divided, log_mass(top, total, is_nothing) if with_lse else None
