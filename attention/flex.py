"""`flex`: attention by functions of your own, on plain arrays. Needs JAX alone.

    from attention.flex import flex
    flex(query, key, value, score=lambda logits, i, j, leaves: 30 * jnp.tanh(logits / 30))

docs/flex.md has the examples. The functions and the records `Weighting` and `Mask` are those that a
mechanism of the registry is made of (`attention.functions`, `attention.masks`).
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from attention import backends, functions, records, table
from attention.call import Call
from attention.functions import KINDS, Fitted, Score, Transform, Weighting
from attention.kernels import elementwise, inputs
from attention.kernels.core import SOFTMAX
from attention.kernels.inputs import Problem
from attention.masks import Bias, Mask, Masks, PairFunction
from attention.records import Kernel

__all__ = ["Bias", "Mask", "Weighting", "check", "flex"]

Array = jax.Array
# The mixers whose weights they are.
_WEIGHTINGS = {
    "softmax": "standard",
    "sigmoid": "sigmoid",
    "softpick": "softpick",
    "stick_breaking": "stick_breaking",
}


@inputs.promoting
def flex(
    query: Array,
    key: Array,
    value: Array,
    *,
    score: Callable[[Array, Array, Array, Mapping[str, Array]], Array] | None = None,
    weighting: str | Weighting = "softmax",
    value_function: Callable[[Array, Mapping[str, Array]], Array] | None = None,
    output_function: Callable[[Array, Mapping[str, Array]], Array] | None = None,
    mask: str | Mask | Array | PairFunction | None = None,
    bias: Array | Bias | None = None,
    leaves: Mapping[str, tuple[str, Array]] | None = None,
    scale: float | None = None,
    kernel: str | Kernel = "xla",
    tiles: Mapping[str, Mapping[str, int]] | None = None,
    sharding: NamedSharding | None = None,
) -> Array:
    """Returns output_function(A·value_function(V)), [..., T, H, Dv] in the inputs' dtype.

    query [..., T, H, D], key [..., S, K, D], value [..., S, K, Dv], K divides H. A: the weights of
    score(scale·QKᵀ) + bias over the keys that the mask shows. docs/flex.md describes the functions,
    masks and leaves. leaves: name to (kind, array), kinds scalar [], head [H], row [..., H, T],
    column [..., H, S] for `score`, channel [..., K, Dv] (no gradient) for the two functions of
    values and outputs. scale: D^-0.5 unless given. kernel: of `attention.backends.KERNELS`, or a
    record. tiles: sizes of the kernel's tiles by pass, where the plan's are not the best: `python
    -m attention tune` finds them. sharding: how heads [..., T, H, D] lie on devices; axes of T
    divide the queries, and every device gathers all keys. A query that sees no key returns 0.

    Raises ValueError for shapes and functions that do not fit, and for what `kernel` lacks.
    """
    for name, function in (("score", score), ("mask", mask)):
        if callable(function) and not isinstance(function, Hashable):
            raise ValueError(
                f"{name}={function!r} has no hash, by which its checks are kept: give a function, "
                "or a frozen dataclass"
            )
    if isinstance(mask, str):
        if mask != "causal":
            raise ValueError(
                f"mask={mask!r}: give 'causal', a Mask, an array of booleans, or a function of "
                "(query_index, key_index)"
            )
        mask = Mask(causal=True)
    elif callable(mask):
        mask = Mask.of(mask)
    if tiles is not None:
        kernel = records.with_tiles(kernel, tiles)
    call = inputs.make_call(query, key, value, bias=bias, mask=mask)
    leaves = {} if leaves is None else leaves
    if not isinstance(leaves, Mapping) or any(not isinstance(name, str) for name in leaves):
        raise ValueError(f"leaves={leaves!r}: give a mapping from names to (kind, array)")
    named = {name: _leaf(name, leaf, call) for name, leaf in leaves.items()}
    call, made = _with_weighting(call, weighting, named)
    channels = {name: array for name, (kind, array) in named.items() if kind == "channel"}
    of_score = {name: array for name, (_, array) in named.items() if name not in channels}
    if of_score and score is None:
        raise ValueError(f"leaf {next(iter(of_score))!r} is read by a score function: give score=")
    kinds = tuple((name, named[name][0]) for name in of_score)
    scores = () if score is None else (Score(score, (), kinds, may_hide=True),)
    elementwise.check(scores, made, None, False)
    transform = _transform(value_function, output_function, tuple(channels))
    mixer = dataclasses.replace(
        records.mixer("standard"),
        mean=functools.partial(_mean, transform, call.query, channels),
        weighting=made,
        transform=None if transform is None else lambda dtype: transform,
    )
    output = inputs.solve(
        mixer,
        call,
        scale=scale,
        score=scores,
        leaves=() if score is None else (of_score,),
        channels=channels or None,
        kernel=kernel,
        sharding=sharding,
    )
    return output.astype(call.query.dtype)


def _with_weighting(
    call: Call, weighting: str | Weighting, leaves: dict[str, tuple[str, Array]]
) -> tuple[Call, Weighting]:
    """Returns the call with the weighting's mask and sink, and the weighting without the sink.

    Takes the sink's leaf out of `leaves`. Raises ValueError for an unknown weighting, and for a
    sink without a head leaf.
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
    value_function: Callable[[Array, Mapping[str, Array]], Array] | None,
    output_function: Callable[[Array, Mapping[str, Array]], Array] | None,
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
    query: Array,
    channels: Mapping[str, Array],
    weighted_sum: Callable[..., Array],
    value: Array,
    masks: Masks,
    **_: Any,
) -> Array:
    """Returns the output by a backend that has no functions inside, as `Mixer.mean`."""
    if transform is None:
        output = weighted_sum(value)
    else:
        heads = {
            name: inputs.per_query_head(query, leaf[..., None, :, :]).astype(jnp.float32)
            for name, leaf in jax.lax.stop_gradient(dict(channels)).items()
        }
        wide = value.astype(jnp.promote_types(value.dtype, jnp.float32))
        terms = [wide] if masks.sink is None else [wide, jnp.zeros_like(wide[..., :1, :, :])]
        sums = weighted_sum(*(transform.value(term, heads) for term in terms))
        output = transform.output(sums, heads)
    # A row that sees a sink alone gets what the functions make of the value 0.
    if masks.rows is None or masks.sink is not None:
        return output
    return jnp.where(masks.rows, output, 0)


def check(
    query: Array, key: Array, value: Array, *, kernel: str = "fused", **settings: Any
) -> None:
    """Raises ValueError for what `flex` refuses with this kernel on every device; needs no device.

    Arguments are those of `flex`; arrays may be jax.ShapeDtypeStruct. Nothing is compiled.
    """
    made, limits = records.kernel(kernel), backends.KERNELS[kernel]

    def refuse(
        problem: Problem, value: Array, transform: Transform | None = None, *_: Any, **__: Any
    ) -> Array:
        backends.check_needs(kernel, problem.needs)
        made.check(problem, transform)
        backends.check_kernel(
            kernel,
            platform=(*limits.platforms, problem.platform)[0],
            dtype=problem.query.dtype.name,
            head_size=problem.query.shape[-1],
            value_size=value.shape[-1],
        )
        return jnp.zeros((*problem.query.shape[:-1], value.shape[-1]), value.dtype)

    transformed = None if made.transformed is None else refuse
    checking = dataclasses.replace(made, call=refuse, transformed=transformed)
    jax.eval_shape(functools.partial(flex, kernel=checking, **settings), query, key, value)


def _same(array: Array, c: Mapping[str, Array]) -> Array:
    return array


def _leaf(name: str, leaf: Any, call: Call) -> tuple[str, Array]:
    """Returns the kind and array of a leaf, a scalar as a number for each head.

    Raises ValueError unless it is (kind, array) and fits the call.
    """
    kinds = ("scalar", *KINDS)
    if not (isinstance(leaf, tuple) and len(leaf) == 2 and leaf[0] in kinds):
        raise ValueError(f"leaf {name!r}: give (kind, array), the kind one of {', '.join(kinds)}")
    kind, array = leaf
    *batch, queries, heads, _ = call.query.shape
    keys, of_keys, wide = call.value.shape[-3:]
    shapes = {
        "scalar": (),
        "head": (heads,),
        "row": (*batch, heads, queries),
        "column": (*batch, heads, keys),
        "channel": (*batch, of_keys, wide),
    }
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
    if kind == "scalar":
        return "head", jnp.broadcast_to(array, (heads,))
    return kind, array
