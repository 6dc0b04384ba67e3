"""What functions of logits, weights, values and outputs may contain (`attention.functions`).

Every backend needs functions that are computed element by element. An entry of the result depends
on the same entry of the arguments and on leaves, not on other queries, keys or channels. A kernel
in Pallas also needs primitives that both compilers (Mosaic for TPUs, Triton for GPUs) have and get
right, in the function and in its derivative, in float32.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.functions import KINDS, Score, Transform, UnfitResultError, Weighting
from attention.masks import PairFunction

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
# Primitives by which a derivative gets the shape of a leaf.
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
    "rev": _ROW,
    "cumsum": "a running sum along keys is the weighting's `left`; of queries, make it a row leaf",
    "dot_general": _ROW,
    "iota": "use the indices that the function is given",
    "checkpoint": "a tile keeps nothing for its derivative: leave jax.checkpoint out",
    "remat2": "a tile keeps nothing for its derivative: leave jax.checkpoint out",
    **{name: _ROW for name in ("reduce_sum", "reduce_max", "reduce_min", "argmax", "reduce_prod")},
    "captured": "what differs by head, row or column is a leaf (of a mask: keys, segments, lower, "
    "or an array of booleans), and a number may be captured",
    "traced": "its gradient would be lost; a score function has it as a leaf of kind scalar",
    "dtype": "give numbers as Python floats, and leave astype out",
    "random_bits": "draw outside, and give a leaf",
    "threefry2x32": "draw outside, and give a leaf",
}


# Refused by every backend: the result has the operand's shape, but its entries depend on others.
_ALONG_AXES = frozenset(
    (
        *("approx_top_k", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "fft", "rev"),
        *("reduce_window", "reduce_window_max", "reduce_window_min", "reduce_window_sum", "sort"),
        *("top_k", "triangular_solve", "pure_callback", "io_callback"),
    )
)
# Queries and keys of a tile that functions are traced for: each order has a shape of its own.
_QUERIES, _KEYS = 16, 24


@functools.lru_cache(256)
def check(
    score: tuple[Score, ...],
    weighting: Weighting,
    transform: Transform | None,
    in_kernel: bool = True,
) -> None:
    """Raises ValueError for a function that breaks a rule, naming it and what it does.

    in_kernel: whether both rules are asked for, or that of every backend. Functions are traced for
    both orders of a tile, for a kernel with their derivatives; nothing is compiled.
    """
    for across in (False, True):
        shapes = {"logits": (_QUERIES, _KEYS), "row": (_QUERIES, 1), "column": (1, _KEYS)}
        shapes = {kind: shape[::-1] if across else shape for kind, shape in shapes.items()}
        shapes["head"] = (1, shapes["logits"][1]) if across else (shapes["logits"][0], 1)
        logits = _array(shapes["logits"])
        for function_of_logits in score:
            for name, kind in function_of_logits.kinds:
                if kind not in shapes or kind == "logits":
                    raise ValueError(f"leaf {name!r} of kind {kind!r}: give {', '.join(KINDS[:3])}")
            arguments: dict[str, Any] = {
                "logits": logits,
                "query_index": _array(shapes["row"], jnp.int32),
                "key_index": _array(shapes["column"], jnp.int32),
                "leaves": {name: _array(shapes[kind]) for name, kind in function_of_logits.kinds},
            }
            _check(function_of_logits.name, function_of_logits.__call__, arguments, in_kernel)
        needs_s = weighting.mass is not None or weighting.left is not None
        of_row: dict[str, Any] = {"s": _array(shapes["row"]) if needs_s else None}
        for part, others in (("weights", of_row), ("mass", of_row), ("left", {})):
            function = getattr(weighting, part)
            if function is not None:
                arguments = {"logits": logits, **others}
                _check(f"the weighting's {part}", function, arguments, in_kernel)
    if transform is not None:
        check_transform(transform, in_kernel)


@functools.lru_cache(256)
def check_mask(pair_functions: tuple[PairFunction, ...], in_kernel: bool = True) -> None:
    """Raises ValueError as `check`, for the functions of a mask."""
    for function in pair_functions:
        if not callable(function):
            raise ValueError(
                f"{function!r} is no function of (query_index, key_index): give one, or a Mask"
            )
        what = f"the mask function {getattr(function, '__qualname__', function)}"
        for across in (False, True):
            shapes = ((1, _QUERIES), (_KEYS, 1)) if across else ((_QUERIES, 1), (1, _KEYS))
            indices = tuple(_array(shape, jnp.int32) for shape in shapes)
            call = "called with (query_index, key_index)"
            program, result = _traced(what, call, function, indices)
            dtype, shape = getattr(result, "dtype", type(result)), getattr(result, "shape", ())
            if dtype != jnp.bool_ or not broadcasts(shape, np.broadcast_shapes(*shapes)):
                raise ValueError(
                    f"{what} returns {dtype}{shape} for indices {shapes[0]} and {shapes[1]}: it "
                    "must return booleans that broadcast to them, True where the query sees the key"
                )
            _check_program(what, program, _ALLOWED if in_kernel else None)


def broadcasts(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Returns whether an array of one shape broadcasts to another."""
    with contextlib.suppress(ValueError):
        return jnp.broadcast_shapes(shape, whole) == whole
    return False


def check_transform(transform: Transform, in_kernel: bool) -> None:
    """Raises ValueError as `check`, for the functions of values and outputs."""
    tile = _array((_QUERIES, _KEYS))
    leaves = {name: _array((1, _KEYS)) for name in transform.names}
    for part, function in (("value", transform.value), ("output", transform.output)):
        _check(f"the {part} function", function, {part: tile, "leaves": leaves}, in_kernel)


def _array(shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _check(
    what: str, function: Callable[..., jax.Array], arguments: dict[str, Any], in_kernel: bool
) -> None:
    """Raises ValueError where a function breaks a rule; the first of its arguments is a tile."""
    tile, *_ = values = tuple(arguments.values())

    def pulled(*values: Any) -> Any:
        """The derivatives by the tile and by leaves, not by indices, which are integers."""
        result, pull = jax.vjp(function, *values)
        return [bar for bar in jax.tree.leaves(pull(result)) if bar.dtype != jax.dtypes.float0]

    call = f"called with ({', '.join(arguments)}) for a tile {tile.shape}"
    if "leaves" in arguments:
        call += f" and leaves: {', '.join(sorted(arguments['leaves'])) or 'none'}"
    program, result = _traced(what, call, function, values)
    shape, dtype = getattr(result, "shape", None), getattr(result, "dtype", np.dtype(object))
    if shape != tile.shape or not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            f"{what} returns {dtype}{shape} for a tile float32{tile.shape}: it must return a tile "
            "of the same shape, whether queries or keys are along the first axis"
        )
    # JAX itself differentiates a transform outside a kernel, by what it captures, too.
    excused = "" if in_kernel or "logits" in arguments else "traced"
    _check_program(what, program, _ALLOWED if in_kernel else None, excused)
    if in_kernel:
        derivative, _ = _traced(what, call, pulled, values)
        _check_program(f"the derivative of {what}", derivative, _ALLOWED | _SUMS)


def _traced(
    what: str, call: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Returns the traced function and the shape of its result. Raises ValueError where it fails."""
    try:
        program, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    except UnfitResultError:
        raise
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise ValueError(
            f"{what} asks for the value of an array (an if, float() or a NumPy function): write "
            "jnp.where, and functions of jax.numpy"
        ) from error
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ValueError(
            f"{what} cannot be traced: {error!r}, {call}; an array from outside is a leaf"
        ) from error
    return program, shape


def _check_program(
    what: str, program: Any, allowed: frozenset[str] | None, excused: str = ""
) -> None:
    """Raises ValueError for the first thing in a traced function that breaks a rule."""
    for name, problem in _refused(program, allowed):
        if name != excused:
            raise ValueError(f"{what} {problem}: {_INSTEAD.get(name, _ELSE)}")


_ELSE = "functions are computed element by element, in kernels by what both compilers have"


def _refused(program: Any, allowed: frozenset[str] | None) -> Iterator[tuple[str, str]]:
    """Yields (name, what it does) of all that breaks a rule: of kernels, whose primitives are
    `allowed`, or of every backend (None)."""
    jaxpr = getattr(program, "jaxpr", program)
    captured = [*getattr(program, "consts", ())]
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        captured += [operand.val for operand in equation.invars if hasattr(operand, "val")]
        parts = jax.tree.leaves(list(equation.params.values()))
        inner = [part for part in parts if hasattr(part, "eqns") or hasattr(part, "jaxpr")]
        if name not in allowed if allowed is not None else _couples(equation, bool(inner)):
            yield name, f"uses {name}"
        for output in equation.outvars if allowed is not None else ():
            if jnp.issubdtype(output.aval.dtype, jnp.floating) and output.aval.dtype != jnp.float32:
                yield "dtype", f"computes in {output.aval.dtype}, and kernels in float32"
        for part in inner:
            yield from _refused(part, allowed)
    for array in captured:
        if jnp.ndim(array):
            yield "captured", f"captures an array of shape {jnp.shape(array)}"
        elif isinstance(array, jax.core.Tracer):
            yield "traced", "captures a number that JAX traces (by jit, grad or vmap)"


def _couples(equation: Any, has_programs: bool) -> bool:
    """Returns whether an entry of an equation's result may depend on other entries of its operands.

    has_programs: it runs programs that are looked at by themselves; only a scan over arrays couples
    them.
    """
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        # What it runs over has one axis more outside than inside.
        body = params["jaxpr"].in_avals
        return any(
            outer.aval.ndim > inner.ndim for outer, inner in zip(equation.invars, body, strict=True)
        )
    if has_programs or name == "broadcast_in_dim":
        return False
    shapes = {operand.aval.shape for operand in equation.invars}
    with contextlib.suppress(ValueError):  # of shapes that do not broadcast
        together = np.broadcast_shapes(*shapes)
        is_kept = all(output.aval.shape == together for output in equation.outvars)
        return name in _ALONG_AXES or not is_kept
    return True
