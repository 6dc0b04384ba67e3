"""`flex`: attention by functions of your own, on plain arrays. Needs JAX alone.

    from attention.flex import flex
    flex(query, key, value, score=lambda logits, i, j, leaves: 30 * jnp.tanh(logits / 30))

docs/flex.md has the examples. The functions and the records `Weighting` and `Mask` are those that a
mechanism of the registry is made of (`attention.functions`, `attention.masks`).
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from attention import backends, functions, records, table
from attention.call import Call
from attention.functions import Fitted, Score, Transform, Weighting
from attention.kernels import elementwise, inputs
from attention.kernels.core import SOFTMAX
from attention.masks import Bias, Mask, Masks, PairFunction

__all__ = ["Bias", "Mask", "Weighting", "check", "flex", "merge"]

# The mixers whose weights they are.
_WEIGHTINGS = {
    "softmax": "standard",
    "sigmoid": "sigmoid",
    "softpick": "softpick",
    "stick_breaking": "stick_breaking",
}


@inputs.promoting
def flex(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    score: Callable[[jax.Array, jax.Array, jax.Array, Mapping[str, jax.Array]], jax.Array]
    | None = None,
    weighting: str | Weighting = "softmax",
    value_function: Callable[[jax.Array, Mapping[str, jax.Array]], jax.Array] | None = None,
    output_function: Callable[[jax.Array, Mapping[str, jax.Array]], jax.Array] | None = None,
    mask: str | Mask | jax.Array | PairFunction | None = None,
    bias: jax.Array | Bias | None = None,
    leaves: Mapping[str, tuple[str, jax.Array]] | None = None,
    scale: float | None = None,
    kernel: str | records.Kernel = "xla",
    tiles: Mapping[str, Mapping[str, int]] | None = None,
    sharding: NamedSharding | None = None,
    return_lse: bool = False,
) -> Any:
    """Returns output_function(A·value_function(V)), [..., T, H, Dv] in the inputs' dtype.

    query [..., T, H, D], key [..., S, K, D], value [..., S, K, Dv], K divides H. A: the weights of
    score(scale·QKᵀ) + bias over the keys that the mask shows. docs/flex.md describes the functions,
    masks and leaves. leaves: name to (kind, array), kinds scalar [], head [H], row [..., H, T],
    column [..., H, S] for `score`, channel [..., K, Dv] (no gradient) for the two functions of
    values and outputs. scale: D^-0.5 unless given. kernel: of `attention.backends.KERNELS`, or a
    record. tiles: sizes of the kernel's tiles by pass, where the plan's are not the best: `python
    -m attention tune` finds them. sharding: how heads [..., T, H, D] lie on devices; axes of T
    divide the queries, and every device gathers all keys. A query that sees no key returns 0.

    return_lse: returns the pair of that and the logarithm of each row's mass, float32 [..., H, T]:
    log Σ_s mass(l_ts, 0) with a sink's mass, −∞ in a row without any. It is differentiable.

    Raises ValueError for shapes and functions that do not fit, and for what `kernel` lacks.
    """
    if tiles is not None:
        kernel = records.with_tiles(kernel, tiles)
    call = inputs.make_call(query, key, value, bias=bias, mask=_symbolic(mask))
    named = _checked({} if leaves is None else leaves, call)
    call, made = _with_weighting(call, weighting, named, return_lse)
    channels = {name: array for name, (kind, array) in named.items() if kind == "channel"}
    of_score = {name: array for name, (_, array) in named.items() if name not in channels}
    scores = _scores(score, tuple((name, named[name][0]) for name in of_score))
    elementwise.check(scores, made, None, False)
    transform = _transform(value_function, output_function, tuple(channels))
    mixer = dataclasses.replace(
        records.mixer("standard"),
        mean=functools.partial(_mean, transform, call.query, channels, return_lse),
        weighting=made,
        transform=None if transform is None else lambda dtype: transform,
    )
    functions: Any = {"score": scores, "leaves": (of_score,) * len(scores)}
    functions |= {"channels": channels or None, "with_lse": return_lse}
    result = inputs.solve(mixer, call, scale=scale, kernel=kernel, sharding=sharding, **functions)
    output, log_sums = _pair(result, return_lse)
    output = output.astype(call.query.dtype)
    return output if log_sums is None else (output, _lse(log_sums))


@inputs.promoting
def merge(outputs: Iterable[jax.Array], lses: Iterable[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Returns attention over all keys, as `flex` with return_lse, from parts of the keys.

    outputs [..., T, H, Dv], lses [..., H, T]: those of each part, in lists or along a first axis.
    An output_function is not linear: it belongs after the merging, so leave it out of the parts.
    With R_i, m_i of the parts it is R = Σ e^(m_i − m)·R_i, m = log Σ e^m_i (FlashAttention-2,
    arXiv:2307.08691, section 2.3). Raises ValueError for parts that do not fit each other.
    """
    parts, log_sums = ([jnp.asarray(array) for array in arrays] for arrays in (outputs, lses))
    shapes = [part.shape for part in parts]
    of_rows = [(*shape[:-3], *reversed(shape[-3:-1])) for shape in shapes]
    is_fit = len(set(shapes)) == 1 and len(shapes[0]) >= 3
    if not is_fit or of_rows != [lse.shape for lse in log_sums]:
        raise ValueError(
            f"outputs {shapes} and lses {[lse.shape for lse in log_sums]}: give as many of both, "
            "[..., T, H, Dv] and [..., H, T], each of one shape"
        )
    dtype = jnp.result_type(*parts)
    wide = jnp.promote_types(dtype, jnp.float32)
    stacked = jnp.stack(log_sums).astype(wide)
    top = jax.lax.stop_gradient(jnp.max(stacked, axis=0))
    top = jnp.where(top == -jnp.inf, 0, top)
    masses = jnp.exp(stacked - top)
    total = jnp.sum(masses, axis=0)
    is_nothing = total == 0
    columns = jnp.swapaxes(masses / jnp.where(is_nothing, 1, total), -2, -1)[..., None]
    output = jnp.sum(columns * jnp.stack(parts).astype(wide), axis=0)
    return output.astype(dtype), _lse(functions.log_mass(top, total, is_nothing))


def _lse(log_sums: jax.Array) -> jax.Array:
    """Returns s with −∞, not ∞, for a row without mass."""
    return jnp.where(log_sums == jnp.inf, -jnp.inf, log_sums)


def _pair(result: Any, with_lse: bool) -> tuple[jax.Array, jax.Array | None]:
    """Returns a backend's sum and s, None without `with_lse`.

    Raises ValueError for a backend of the caller's own that ignores `Problem.with_lse`.
    """
    if not with_lse:
        return result, None
    if not isinstance(result, tuple):
        raise ValueError(
            "return_lse=True: this kernel returns no logarithm of each row's mass; give a record "
            "whose functions return (sum, s) if problem.with_lse, or kernel='xla' or 'fused'"
        )
    return result


def _symbolic(mask: str | Mask | jax.Array | PairFunction | None) -> Mask | jax.Array | None:
    """Returns a mask as `make_call` takes it. Raises ValueError for a word but 'causal'."""
    if callable(mask):
        _check_hash("mask", mask)
        return Mask.of(mask)
    if not isinstance(mask, str):
        return mask
    if mask != "causal":
        raise ValueError(
            f"mask={mask!r}: give 'causal', a Mask, an array of booleans, or a function of "
            "(query_index, key_index)"
        )
    return Mask(causal=True)


def _scores(
    score: Callable[..., jax.Array] | None, kinds: tuple[tuple[str, str], ...]
) -> tuple[Score, ...]:
    """Returns the score function, if there is one; kinds: (name, kind) of each leaf that it reads.

    Raises ValueError for leaves without a function, and for a function without a hash.
    """
    if score is not None:
        _check_hash("score", score)
        return (Score(score, (), kinds, may_hide=True),)
    if kinds:
        raise ValueError(f"leaf {kinds[0][0]!r} is read by a score function: give score=")
    return ()


def _check_hash(name: str, function: Callable[..., Any]) -> None:
    if not isinstance(function, Hashable):
        raise ValueError(
            f"{name}={function!r} has no hash, by which its checks are kept: give a function, or a "
            "frozen dataclass"
        )


def _with_weighting(
    call: Call,
    weighting: str | Weighting,
    leaves: dict[str, tuple[str, jax.Array]],
    with_lse: bool,
) -> tuple[Call, Weighting]:
    """Returns the call with the weighting's mask and sink, and the weighting without the sink.

    Takes the sink's leaf out of `leaves`. Raises ValueError for an unknown weighting, for a sink
    without a head leaf, and for one without a mass if the logarithm of it is asked for.
    """
    if isinstance(weighting, Weighting):
        made = weighting
    elif str(weighting) not in _WEIGHTINGS:
        raise ValueError(
            table.unknown("weighting", str(weighting), _WEIGHTINGS, ", or give a Weighting")
        )
    else:
        mixer = records.mixer(_WEIGHTINGS[weighting])
        made = mixer.weighting_of(call.key.shape[-3], call.query.dtype)
        call = call._replace(mask=call.mask & mixer.mask)
    if with_lse and made.mass is None:
        raise ValueError(
            f"return_lse=True: weighting={weighting!r} divides by no mass, which lse is the "
            "logarithm of; leave it out, or give a Weighting with mass="
        )
    if isinstance(made.start, str):
        kind, array = leaves.pop(made.start, ("", None))
        if kind != "head" or made.weights is not functions.exponential:
            raise ValueError(
                f"start={made.start!r} of a weighting is a sink: give a leaf of that name of kind "
                "head, and the softmax's weighting"
            )
        call = call._replace(sink=jnp.asarray(array, jnp.float32))
        made = dataclasses.replace(made, start=None)
    # Our core has a closed derivative for this record: 1.8 times as fast as by jax.vjp.
    return call, SOFTMAX if made.is_softmax else made


def _transform(
    value_function: Callable[[jax.Array, Mapping[str, jax.Array]], jax.Array] | None,
    output_function: Callable[[jax.Array, Mapping[str, jax.Array]], jax.Array] | None,
    channels: tuple[str, ...],
) -> Transform | None:
    """Returns the checked functions of values and outputs, None without any.

    Raises ValueError for a function that is not element by element, and for channel leaves without
    a function that reads them.
    """
    if value_function is None and output_function is None:
        if channels:
            raise ValueError(
                f"leaf {channels[0]!r} is of kind channel, which value_function and "
                "output_function read: give one of them"
            )
        return None
    transform = Transform(
        Fitted("the value function", value_function or _same),
        Fitted("the output function", output_function or _same),
        names=channels,
    )
    # Not by `check`, which keeps its arguments: this may capture what JAX traces.
    elementwise.check_transform(transform, False)
    return transform


def _mean(
    transform: Transform | None,
    query: jax.Array,
    channels: Mapping[str, jax.Array],
    with_lse: bool,
    weighted_sum: Callable[..., Any],
    value: jax.Array,
    masks: Masks,
    **_: Any,
) -> Any:
    """Returns the output, and s `with_lse`, by a backend that has no functions inside."""
    if transform is None:
        output, log_sums = _pair(weighted_sum(value), with_lse)
    else:
        heads = {
            name: inputs.per_query_head(query, leaf[..., None, :, :]).astype(jnp.float32)
            for name, leaf in jax.lax.stop_gradient(dict(channels)).items()
        }
        wide = value.astype(jnp.promote_types(value.dtype, jnp.float32))
        terms = [wide] if masks.sink is None else [wide, jnp.zeros_like(wide[..., :1, :, :])]
        sums, log_sums = _pair(
            weighted_sum(*(transform.value(term, heads) for term in terms)), with_lse
        )
        output = transform.output(sums, heads)
    # A row that sees a sink alone gets what the functions make of the value 0.
    if not (masks.rows is None or masks.sink is not None):
        output = jnp.where(masks.rows, output, 0)
    return (output, log_sums) if with_lse else output


def check(
    query: jax.Array, key: jax.Array, value: jax.Array, *, kernel: str = "fused", **settings: Any
) -> None:
    """Raises ValueError for what `flex` refuses with this kernel on every device; needs no device.

    Arguments are those of `flex`; arrays may be jax.ShapeDtypeStruct. Nothing is compiled.
    """
    made, limits = records.kernel(kernel), backends.KERNELS[kernel]

    def refuse(
        problem: inputs.Problem,
        value: jax.Array,
        transform: Transform | None = None,
        *_: Any,
        **__: Any,
    ) -> Any:
        backends.check_needs(kernel, problem.needs)
        made.check(problem, transform)
        backends.check_kernel(
            kernel,
            platform=(*limits.platforms, problem.platform)[0],
            dtype=problem.query.dtype.name,
            head_size=problem.query.shape[-1],
            value_size=value.shape[-1],
        )
        output = jnp.zeros((*problem.query.shape[:-1], value.shape[-1]), value.dtype)
        log_sums = jnp.swapaxes(jnp.zeros(problem.query.shape[:-1]), -2, -1)
        return (output, log_sums) if problem.with_lse else output

    checking = dataclasses.replace(made, call=refuse)
    jax.eval_shape(functools.partial(flex, kernel=checking, **settings), query, key, value)


def _same(array: jax.Array, c: Mapping[str, jax.Array]) -> jax.Array:
    return array


def _checked(leaves: Mapping[str, Any], call: Call) -> dict[str, tuple[str, jax.Array]]:
    """Returns the kinds and arrays of leaves by name, a scalar as a number for each head.

    Raises ValueError unless each is (kind, array) and fits the call.
    """
    if not isinstance(leaves, Mapping) or any(not isinstance(name, str) for name in leaves):
        raise ValueError(f"leaves={leaves!r}: give a mapping from names to (kind, array)")
    *batch, queries, heads, _ = call.query.shape
    keys, of_keys, wide = call.value.shape[-3:]
    shapes = {
        "scalar": (),
        "head": (heads,),
        "row": (*batch, heads, queries),
        "column": (*batch, heads, keys),
        "channel": (*batch, of_keys, wide),
    }
    checked = {}
    for name, leaf in leaves.items():
        if not (isinstance(leaf, tuple) and len(leaf) == 2 and leaf[0] in shapes):
            raise ValueError(
                f"leaf {name!r}: give (kind, array), the kind one of {', '.join(shapes)}"
            )
        kind, array = leaf
        try:
            array = jnp.asarray(array)
        except (TypeError, ValueError) as error:
            raise ValueError(f"leaf {name!r} is no array: {array!r}") from error
        if array.shape != shapes[kind]:
            raise ValueError(
                f"leaf {name!r} of kind {kind} has shape {array.shape}; give {shapes[kind]}"
            )
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"leaf {name!r} has dtype {array.dtype}; give floating-point numbers")
        is_scalar = kind == "scalar"
        checked[name] = ("head", jnp.broadcast_to(array, (heads,))) if is_scalar else (kind, array)
    return checked
