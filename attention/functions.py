"""What a mechanism gives a kernel: functions of logits, weights, values and outputs, and leaves.

A kernel computes them on a tile that lies on the chip, and their derivatives by jax.vjp there. A
tile of logits is float32, queries along one axis and keys along the other: in the order [T, S]
forward and [S, T] backward. So functions are element by element and by broadcasting: a query's
index comes as [n, 1] where a key's is [1, m], or the other way round.

    score        logits ← f(logits, query_index, key_index, leaves), scaled QKᵀ first
    weighting    weights and masses of logits: A = weights/Σ mass
    transform    F = value(V, c), R = A·F, output(R, c)

Leaves come by their kind: "head" [H], "row" [..., H, T], "column" [..., H, S], which have
gradients, and "channel" [..., K, Dv] (the c above), which have none. No function is told its head:
on a mesh a kernel knows only the heads of its device, and what differs by head is a leaf.

`check` refuses, by name, what one of the two compilers (Mosaic for TPUs, Triton for GPUs) lacks or
gets wrong without a word.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
# Leaves of a function, by their name.
Leaves = Mapping[str, Array]
KINDS = ("head", "row", "column", "channel")
# A hidden logit, and where a row's maximum begins: above what hides, so that the weights of a row
# that sees nothing are exp(−∞), not exp(0).
HIDDEN, LOWEST = -1e30, -1e20
# How many nats apart values of a channel may lie where a transform is computed on tiles: a backward
# pass divides by 1 + R, not by exp(max − c), so that it is as far as float32 reaches.
TILE_SPAN = 75.0


@dataclasses.dataclass(frozen=True)
class Weighting:
    """How logits l become weights.

    weights(l, s) and mass(l, s) are both proportional to e^−s, and a row's weights are divided by
    the sum of its masses. s, [n, 1] or [1, n], is the row's largest logit so far, or the logarithm
    of its whole mass: results do not depend on it, their range does. mass None: nothing is divided,
    and s is None. same: the mass is the weights themselves. floor: the least s, 0 where e^−s stands
    beside e^(l − s). start: the logarithm of a mass that every row has beside its keys', a number
    or the name of a head leaf: then it is a key of value 0 with that logit (a sink).

    left(l): the logarithm of what a key leaves to earlier ones. Then there is no mass, and s is the
    sum of `left` over the keys after l's.

    jacobian_norm(weights): the Frobenius norm of each row's Jacobian, [..., H, T] for weights
    [..., H, T, S], for diagnostics; None where there is no closed form.
    """

    weights: Callable[..., Array]
    mass: Callable[[Array, Any], Array] | None = None
    same: bool = False
    floor: float | None = None
    start: float | str | None = None
    left: Callable[[Array], Array] | None = None
    jacobian_norm: Callable[[Array], Array] | None = None


class Dropout(NamedTuple):
    """What share of the weights becomes 0, and the seed of each head's, int32 [..., H]."""

    rate: float
    seeds: Array


def is_kept(rate: float, seed: Any, queries: Array, keys: Array) -> Array:
    """Returns which weights dropout keeps.

    Of each pair of indices a hash is compared with the rate: rounds of MurmurHash3's finaliser of
    each with the seed, then one of their product.
    """

    def mixed(bits: Array, shift: int, factor: int) -> Array:
        return (bits ^ jax.lax.shift_right_logical(bits, jnp.int32(shift))) * jnp.int32(factor)

    rows, columns = (
        mixed(mixed(indices ^ seed, 16, -2048144789), 13, -1028477387)
        for indices in (queries, ~keys)
    )
    bits = mixed(rows * (columns | 1), 15, -2048144789)
    return bits >= jnp.int32(min(round(rate * 2**32), 2**32 - 1) - 2**31)


class Score(NamedTuple):
    """A function of logits with its hyperparameters; equal to another that computes the same.

    kinds: (name, kind) of each leaf that it is given.
    """

    function: Callable[..., Array]
    hyperparameters: tuple[tuple[str, Any], ...] = ()
    kinds: tuple[tuple[str, str], ...] = ()

    def __call__(self, logits: Array, queries: Array, keys: Array, leaves: Leaves) -> Array:
        """Returns the logits as it leaves them; leaves in shapes that broadcast to theirs."""
        return self.function(logits, queries, keys, leaves, **dict(self.hyperparameters))


class Transform(NamedTuple):
    """What stands around the weighted sum: output(A·value(V, c), c), float32 [n, Dv].

    c: channel leaves by name, each [1, Dv]; names: theirs. value_slope(v, f, c) and
    output_slope(r, c): the derivatives ∂F/∂V and ∂o/∂R, where those by jax.vjp take longer.
    leaves(value, keys, axis, with_zero): the channel leaves, where they depend on the values: of
    float32 values, over `axis`, which stays, and over the keys that are True (None: all), and a key
    of value 0 where it is there, too. Without it a call gives them. filler: the leaf that takes the
    place of values that no query sees, 0 where it is ''.
    """

    value: Callable[[Array, Leaves], Array]
    output: Callable[[Array, Leaves], Array]
    value_slope: Callable[[Array, Array, Leaves], Array] | None = None
    output_slope: Callable[[Array, Leaves], Array] | None = None
    leaves: Callable[..., dict[str, Array]] | None = None
    names: tuple[str, ...] = ()
    filler: str = ""

    def pull_value(self, cotangent: Array, value: Array, raised: Array, c: Leaves) -> Array:
        """Returns dV from dF, all [n, Dv] float32; `raised`: F."""
        if self.value_slope is not None:
            return cotangent * self.value_slope(value, raised, c)
        return jax.vjp(lambda v: self.value(v, c), value)[1](cotangent)[0]

    def pull_output(self, cotangent: Array, means: Array, c: Leaves) -> Array:
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
        """The kinds of all leaves of score functions, in the order of `flattened`."""
        return tuple(kind for score in self.score for _, kind in sorted(score.kinds))

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the channel leaves, sorted."""
        return () if self.transform is None else tuple(sorted(self.transform.names))

    def flattened(self, leaves: tuple[Leaves, ...]) -> list[Array]:
        """Returns the leaves of all score functions one after the other, by name in each."""
        names = [sorted(name for name, _ in score.kinds) for score in self.score]
        return [named[name] for named, listed in zip(leaves, names, strict=True) for name in listed]

    def chosen(self, value: Array, keys: Array | None, axis: int, with_zero: bool) -> Leaves:
        """Returns the channel leaves of values, as `Transform.leaves`."""
        assert self.transform is not None
        assert self.transform.leaves is not None
        return self.transform.leaves(value, keys, axis, with_zero)

    def of_zero(self, channels: Callable[[], Leaves], shape: tuple[int, ...]) -> Any:
        """Returns F of the value 0, where a row's sum begins with a key of that value, or None."""
        if self.transform is None or not isinstance(self.weighting.start, str):
            return None
        return self.transform.value(jnp.zeros(shape, jnp.float32), channels())

    def scored(self, logits: Array, indices: tuple[Array, Array], leaves: list[Array]) -> Array:
        """Returns the logits after all score functions; leaves as `flattened` lists them."""
        rest = iter(leaves)
        for score in self.score:
            named = {name: next(rest) for name, _ in sorted(score.kinds)}
            logits = score(logits, *indices, named)
        return logits

    def pulled(
        self,
        logits: Array,
        indices: tuple[Array, Array],
        leaves: list[Array],
        seen: Array | None,
        s: Any,
        bar: Array,
        delta: Any,
        kinds: tuple[str, ...] = KINDS,
        kept: Array | None = None,
    ) -> tuple[Array, Array, list[Array]]:
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

        def weighed(logits: Array, changed: list[Array]) -> Any:
            every = list(leaves)
            for n, leaf in zip(moved, changed, strict=True):
                every[n] = leaf
            weighed_tile = weigh(weighting, self.scored(logits, indices, every), s, seen, 0.0)
            return weighed_tile[0] if weighting.same else weighed_tile

        result, pull = jax.vjp(weighed, logits, [leaves[n] for n in moved])
        weights, bars = (result, bar) if weighting.same else (result[0], (bar, lost))
        return weights if kept is None else _where(kept, weights), *pull(bars)


def exponential(logits: Array, s: Array) -> Array:
    """Returns e^(l − s), the softmax's weights and masses."""
    return jnp.exp(logits - s)


def weigh(
    weighting: Weighting, logits: Array, s: Any, seen: Array | None, hidden: float = HIDDEN
) -> tuple[Array, Array | None]:
    """Returns a tile's weights and masses, 0 where a key is not `seen` (None: all are).

    hidden: what takes the place of a hidden logit. Functions other than the softmax's may not bear
    the lowest, of which their derivative may be infinite: 0 where they are differentiated.
    """
    if seen is None:
        seen_alone, shown = (lambda tile: tile), logits
    else:
        seen_alone = functools.partial(_where, seen)
        shown = jnp.where(seen, logits, HIDDEN if weighting.same else hidden)
    weights = weighting.weights(shown, s)
    if weighting.same:
        return weights, weights
    mass = None if weighting.mass is None else seen_alone(weighting.mass(shown, s))
    return seen_alone(weights), mass


def _where(seen: Array, array: Array) -> Array:
    return jnp.where(seen, array, 0.0)


def least(weighting: Weighting, start: Any) -> Any:
    """Returns the least s of a row that begins with the mass e^start, None without a bound."""
    bounds = [bound for bound in (weighting.floor, start) if bound is not None]
    if all(isinstance(bound, float) for bound in bounds):
        return max(bounds, default=None)
    return functools.reduce(jnp.maximum, bounds)


def rows(weighting: Weighting, logits: Array) -> Array:
    """Returns the weights of whole rows, [..., T, S]; hidden logits are the lowest finite number.

    Hidden keys have weight 0. A sink comes as a key here: `weighting.start` is no name.
    """
    seen = ~(logits <= jnp.finfo(logits.dtype).min)  # NaN is not hidden
    shown = jnp.where(seen, logits, 0)
    if weighting.left is not None:
        left = jnp.where(seen, weighting.left(shown), 0)
        # The sum from the end, without the key's own.
        later = jax.lax.cumsum(left, axis=left.ndim - 1, reverse=True) - left
        return jnp.where(seen, weighting.weights(shown, later), 0)
    if weighting.mass is None:
        return jnp.where(seen, weighting.weights(shown, None), 0)
    begin: Any = weighting.start
    bound = least(weighting, begin)
    top = jnp.max(logits, axis=-1, keepdims=True)
    top = top if bound is None else jnp.maximum(top, bound)
    # Of a row that sees nothing.
    top = jax.lax.stop_gradient(jnp.where(top > jnp.finfo(logits.dtype).min, top, 0))
    weights, mass = (
        jnp.where(seen, function(shown, top), 0) for function in (weighting.weights, weighting.mass)
    )
    total = jnp.sum(mass, axis=-1, keepdims=True)
    if begin is not None:
        total = total + jnp.exp(begin - top)
    return weights / jnp.where(total == 0, 1, total)


# Primitives that both compilers take, in a function and in its derivative (measured on a tile of
# 256 × 256 for TPU v5e and H100).
_ALLOWED = frozenset(
    (
        *("abs", "add", "add_any", "and", "broadcast_in_dim", "clamp", "convert_element_type"),
        *("copy", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "div", "eq"),
        *("exp", "exp2", "floor", "ge", "gt", "integer_pow", "is_finite", "jit", "le", "log"),
        *("log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "one_minus_square"),
        *("or", "pjit", "pow"),
        *("rem", "select_n", "sign", "sqrt", "rsqrt", "square", "stop_gradient", "sub", "tanh"),
        *("xor", "shift_left", "shift_right_logical", "shift_right_arithmetic"),
    )
)
# With them a derivative comes back to the shape of a leaf.
_SUMS = frozenset(["reduce_sum", "reshape", "squeeze"])
_ROW = (
    "a function sees a tile, not a whole row: what a row needs is the weighting's mass, or a leaf"
)
_INSTEAD = {
    "cond": "write jnp.where, which computes both",
    "while": "write a loop in Python, which is unrolled",
    "scan": "write a loop in Python, which is unrolled",
    "erf": "jax.nn.gelu(x) with its default tanh needs none; Triton has no erf",
    "erfc": "jax.nn.gelu(x, approximate=True) needs none",
    "erf_inv": "neither compiler has it",
    "expm1": "write jnp.tanh(x / 2) * (jnp.exp(x) + 1), which is as exact",
    "cbrt": "write jnp.exp(jnp.log(x) / 3) for x > 0",
    "sinh": "write (jnp.exp(x) - jnp.exp(-x)) / 2",
    "cosh": "write (jnp.exp(x) + jnp.exp(-x)) / 2",
    "asinh": "write jnp.log(x + jnp.sqrt(x * x + 1))",
    "atan": "neither derivative nor series is there: use tanh",
    "atan2": "neither derivative nor series is there: use tanh",
    "sin": "on a GPU it spills registers: make its values a row or column leaf",
    "cos": "on a GPU it spills registers: make its values a row or column leaf",
    "round": "write jnp.floor(x + 0.5)",
    "gather": "write jnp.where over the cases, or make it a row or column leaf",
    "dynamic_slice": "write jnp.where over the cases, or make it a row or column leaf",
    "slice": "a function is computed element by element",
    "concatenate": "a function is computed element by element",
    "pad": "a function is computed element by element",
    "sort": _ROW,
    "cumsum": "a running sum along keys is the weighting's `left`; of queries, make it a row leaf",
    "dot_general": _ROW,
    "iota": "use the indices that the function is given",
    "checkpoint": "a tile keeps nothing for its derivative: leave jax.checkpoint out",
    "remat2": "a tile keeps nothing for its derivative: leave jax.checkpoint out",
    **{name: _ROW for name in ("reduce_sum", "reduce_max", "reduce_min", "argmax", "reduce_prod")},
    "captured": "what differs by head, row or column is a leaf, and a number may be captured",
    "dtype": "give numbers as Python floats, and leave astype out",
    "random_bits": "draw outside, and give a leaf",
    "threefry2x32": "draw outside, and give a leaf",
}


# Queries and keys of a tile that functions are traced for: each order has a shape of its own.
_QUERIES, _KEYS = 16, 24


@functools.lru_cache(256)
def check(score: tuple[Score, ...], weighting: Weighting, transform: Transform | None) -> None:
    """Raises ValueError where a function cannot go into a kernel, naming what it does there.

    Functions are traced for both orders of a tile, with their derivatives; nothing is compiled.
    """
    for across in (False, True):
        shapes = {"logits": (_QUERIES, _KEYS), "row": (_QUERIES, 1), "column": (1, _KEYS)}
        shapes = {kind: shape[::-1] if across else shape for kind, shape in shapes.items()}
        shapes["head"] = (1, shapes["logits"][1]) if across else (shapes["logits"][0], 1)
        indices = [_array(shapes[kind], jnp.int32) for kind in ("row", "column")]
        logits = _array(shapes["logits"])
        for function_of_logits in score:
            for name, kind in function_of_logits.kinds:
                if kind not in shapes or kind == "logits":
                    raise ValueError(f"leaf {name!r} of kind {kind!r}: give {', '.join(KINDS[:3])}")
            leaves = {name: _array(shapes[kind]) for name, kind in function_of_logits.kinds}
            _check_function(
                _name_of(function_of_logits.function),
                function_of_logits.__call__,
                (logits, *indices, leaves),
            )
        needs_s = weighting.mass is not None or weighting.left is not None
        s = _array(shapes["row"]) if needs_s else None
        for part in ("weights", "mass"):
            function = getattr(weighting, part)
            if function is not None:
                _check_function(f"the weighting's {part}", function, (logits, s))
        if weighting.left is not None:
            _check_function("the weighting's left", weighting.left, (logits,))
    if transform is not None:
        tile = _array((_QUERIES, _KEYS))
        c = {name: _array((1, _KEYS)) for name in transform.names}
        _check_function("the value function", transform.value, (tile, c))
        _check_function("the output function", transform.output, (tile, c))


def _array(shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", repr(function))
    return f"the score function {name}"


def _check_function(what: str, function: Callable[..., Array], arguments: tuple[Any, ...]) -> None:
    """Raises ValueError unless a function of the tile arguments[0] fits into a kernel."""
    tile = arguments[0]

    def pulled(tile: Array, *others: Any) -> Any:
        """The derivatives by the tile and by leaves, not by indices, which are integers."""
        floats, structure = jax.tree.flatten(others)
        moved = [n for n, array in enumerate(floats) if jnp.issubdtype(array.dtype, jnp.floating)]

        def of_floats(tile: Array, *changed: Array) -> Array:
            every = list(floats)
            for place, array in zip(moved, changed, strict=True):
                every[place] = array
            return function(tile, *jax.tree.unflatten(structure, every))

        result, pull = jax.vjp(of_floats, tile, *(floats[n] for n in moved))
        return pull(result)

    program, result = _traced(what, function, arguments)
    shape, dtype = getattr(result, "shape", None), getattr(result, "dtype", None)
    if shape != tile.shape or dtype != jnp.float32:
        raise ValueError(
            f"{what} returns {dtype}{shape} for a tile float32{tile.shape}: it must return a tile "
            "of the same shape in float32, whether queries or keys are along the first axis"
        )
    _check_program(what, program, _ALLOWED)
    _check_program(
        f"the derivative of {what}", _traced(what, pulled, arguments)[0], _ALLOWED | _SUMS
    )


def _traced(what: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """Returns the traced function and the shape of its result. Raises ValueError where it fails."""
    try:
        program, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise ValueError(
            f"{what} asks for the value of an array (an if, float() or a NumPy function): write "
            "jnp.where, and functions of jax.numpy"
        ) from error
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ValueError(f"{what} cannot be traced: {error!r}") from error
    return program, shape


def _check_program(what: str, program: Any, allowed: frozenset[str]) -> None:
    """Raises ValueError for the first thing in a traced function that cannot be in a kernel."""
    for name, problem in _refused(program, allowed):
        raise ValueError(f"{what} {problem}: {_INSTEAD.get(name, _ELSE)}")


_ELSE = "kernels compute element by element, with functions that both compilers have"


def _refused(program: Any, allowed: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yields (name, what it does) of all that cannot be in a kernel."""
    jaxpr = getattr(program, "jaxpr", program)
    captured = [*getattr(program, "consts", ())]
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        captured += [operand.val for operand in equation.invars if hasattr(operand, "val")]
        if name not in allowed:
            yield name, f"uses {name}"
        for output in equation.outvars:
            if jnp.issubdtype(output.aval.dtype, jnp.floating) and output.aval.dtype != jnp.float32:
                yield "dtype", f"computes in {output.aval.dtype}, and kernels in float32"
        for inner in jax.tree.leaves(list(equation.params.values())):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from _refused(inner, allowed)
    for array in captured:
        if jnp.ndim(array):
            yield "captured", f"captures an array of shape {jnp.shape(array)}; give it as a leaf"
