"""The arguments of an attention call: checked, brought to one form, and given to a backend."""

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from attention import functions, masks, records
from attention.call import Call, LayerIndex, Memory
from attention.common import devices
from attention.kernels import elementwise

Function = TypeVar("Function", bound=Callable[..., Any])


class Problem(NamedTuple):
    """One attention call as a backend gets it: query [..., T, H, D], key [..., S, H, D], checked.

    bias, mask, sink: as in `attention.call.Call`; masks: the first two as arrays. of_zero: what the
    sink's value 0 becomes if values are transformed, broadcasts to [..., 1, H, Dv]. dropout: the
    multiplier of the weights, [..., H, T, S], of S + 1 with a sink. leaves: of each function in
    `score`. Backends with `transforms` get K key heads, no mask arrays, and dropout as a rate and
    seeds. with_lse: a backend returns also s, the logarithm of rows' mass, float32 [..., H, T],
    ∞ in a row without mass.
    """

    query: jax.Array
    key: jax.Array
    scale: float
    bias: masks.Bias
    mask: masks.Mask
    masks: masks.Masks
    dropout: jax.Array | functions.Dropout | None
    precision: jax.lax.PrecisionLike
    weighting: functions.Weighting
    score: tuple[functions.Score, ...]
    leaves: tuple[functions.Leaves, ...]
    sharding: NamedSharding | None
    sink: jax.Array | None = None
    of_zero: jax.Array | None = None
    with_lse: bool = False

    @property
    def platform(self) -> str:
        """Returns what will compute, 'cpu', 'gpu' or 'tpu': the sharding's devices or JAX's own."""
        if self.sharding is None:
            return devices.default_platform()
        platform: str = self.device.platform
        return "gpu" if platform in ("cuda", "rocm") else platform

    @property
    def device(self) -> jax.Device:
        """Returns one of the devices that will compute."""
        return jax.devices()[0] if self.sharding is None else self.sharding.mesh.devices.flat[0]

    @property
    def context(self) -> Any:
        """Returns the axes of the mesh that divide the queries, None if they are whole."""
        if self.sharding is None:
            return None
        axes = fitting(self.sharding, self.query.shape)[-3]
        return None if parts(self.sharding, axes) == 1 else axes

    @property
    def needs(self) -> tuple[str, ...]:
        """Returns what a backend must offer, by the names of `backends.KERNEL_NEEDS`."""
        softcap = records.modifier("softcap").apply
        is_capped = len(self.score) == 1 and self.score[0].function == softcap
        dense = self.mask.dense
        by_query = dense is not None and (1, 1, 1, *dense.shape)[-3:-1] != (1, 1)
        asked = {
            "weighting": not self.weighting.is_softmax,
            "running_sum": self.weighting.left is not None,
            "bias": self.bias.dense is not None,
            "bias_vectors": self.bias.row is not None or self.bias.column is not None,
            "mask_by_query": by_query,
            "segments": self.mask.segments is not None,
            "mask_function": bool(self.mask.functions),
            "lower_bounds": self.mask.lower is not None,
            "strict": self.mask.strict,
            "window": self.mask.width is not None,
            "sink": self.sink is not None,
            "softcap": is_capped,
            "score": bool(self.score) and not is_capped,
            "dropout": self.dropout is not None,
            "precision": self.precision is not None,
            "context": self.context is not None,
            "lse": self.with_lse,
        }
        return tuple(name for name, is_needed in asked.items() if is_needed)


def parts(sharding: NamedSharding, axes: Any) -> int:
    """Returns among how many devices axes of the mesh, a name, names or None, divide an array."""
    names = (axes,) if isinstance(axes, str) else axes or ()
    return math.prod(sharding.mesh.shape[name] for name in names)


def fitting(sharding: NamedSharding, shape: tuple[int, ...]) -> PartitionSpec:
    """Returns how an array [..., T, H, D] is divided, without axes that cannot divide it.

    Devices along such an axis compute the same, as when one example initialises a model. Raises
    ValueError for another sharding, one of another rank, or one that divides D.
    """
    if not isinstance(sharding, NamedSharding):
        raise ValueError(f"sharding={sharding!r}: give NamedSharding(mesh, PartitionSpec(...))")
    spec = (*sharding.spec, *(None,) * (len(shape) - len(sharding.spec)))
    if len(spec) != len(shape) or spec[-1] is not None:
        raise ValueError(
            f"heads [..., T, H, D] of shape {shape} are divided by batch, queries and heads: give "
            f"sharding=NamedSharding(mesh, PartitionSpec(..., queries, heads, None)), not "
            f"{sharding.spec}"
        )
    pairs = zip(shape, spec, strict=True)
    return PartitionSpec(*(None if size % parts(sharding, axes) else axes for size, axes in pairs))


def promoting(function: Function) -> Function:
    """Returns a function that mixes dtypes and ranks as it likes under strict settings of JAX.

    A user's numpy_rank_promotion='raise' and numpy_dtype_promotion='strict' hold for the user's own
    code.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]


@promoting
def attend(
    mixer: records.Mixer,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    bias: jax.Array | masks.Bias | None = None,
    mask: jax.Array | masks.Mask | None = None,
    is_causal: bool = False,
    **settings: Any,
) -> jax.Array:
    """Returns the output of a mixer that learns nothing, [..., T, H, Dv] in the inputs' dtype.

    query [..., T, H, D], key [..., S, K, D], value [..., S, K, Dv]. bias, mask (True where a query
    may look): broadcast to [..., H, T, S]; or `masks.Bias` and `masks.Mask`. is_causal: query t
    sees keys 0..t. settings, all optional, as of `solve`. Raises ValueError for what does not fit,
    and for what the backend cannot do.
    """
    call = make_call(query, key, value, bias=bias, mask=mask, is_causal=is_causal)
    call = call._replace(mask=call.mask & mixer.mask)
    return solve(mixer, call, **settings).astype(call.query.dtype)


def solve(
    mixer: records.Mixer,
    call: Call,
    *,
    scale: float | jax.Array | None = None,
    score: tuple[functions.Score, ...] = (),
    leaves: tuple[functions.Leaves, ...] = (),
    channels: functions.Leaves | None = None,
    kernel: str | records.Kernel = "xla",
    precision: jax.lax.PrecisionLike = None,
    sharding: NamedSharding | None = None,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = True,
    with_lse: bool = False,
) -> Any:
    """Returns the mixer's mean, [..., T, H, Dv], in the dtype of the backend's sums.

    scale: multiplies QKᵀ, D^-0.5 unless given. score: functions of the scaled logits before bias
    and mask; leaves: of each. channels: leaves that the mixer's transform does not make. kernel: of
    `backends.KERNELS`, or a record. sharding: of [..., T, H, D], for kernels that XLA cannot
    divide. broadcast_dropout: one mask for all batch entries and heads, as in flax. with_lse: as of
    `Problem`, for a mixer whose `mean` hands on (mean, s). Raises ValueError for what the backend
    cannot do.
    """
    chosen = kernel if isinstance(kernel, records.Kernel) else records.kernel(kernel)
    query, factor = scaled(call.query, scale)
    key, value, visible = _keys_and_values(mixer, call._replace(query=query), not chosen.transforms)
    weighting = mixer.weighting_of(key.shape[-3], query.dtype)
    functions.check_weighting(weighting)
    columns = key.shape[-3] + (call.sink is not None)
    dropout = _dropout(query, columns, dropout_rng, dropout_rate, broadcast_dropout, chosen)
    problem = Problem(
        *(query, key, factor / call.temperature, call.bias, call.mask, visible, dropout),
        *(precision, weighting, score, leaves, sharding, call.sink),
        with_lse=with_lse,
    )
    if problem.context is not None and not chosen.transforms:
        problem, value = _with_keys_gathered(problem, value)
    if chosen.transforms and mixer.transform is not None:
        return chosen.call(problem, value, mixer.transform(query.dtype), channels)

    def weighted_sum(values: jax.Array, of_zero: jax.Array | None = None) -> jax.Array:
        return chosen.call(problem._replace(of_zero=of_zero), values)

    return mixer.mean(
        weighted_sum,
        value,
        problem.masks,
        dtype=query.dtype,
        span=chosen.span,
        sums_to_one=problem.dropout is None,
    )


def _with_keys_gathered(problem: Problem, value: jax.Array) -> tuple[Problem, jax.Array]:
    """Returns the problem and the value as XLA divides them: by queries, with all keys everywhere.

    Left to itself XLA may gather queries, or logits [..., H, T, S].
    """
    assert problem.sharding is not None
    spec = fitting(problem.sharding, problem.query.shape)
    whole = PartitionSpec(*spec[:-3], None, *spec[-2:])
    place = functools.partial(NamedSharding, problem.sharding.mesh)
    query = jax.lax.with_sharding_constraint(problem.query, place(spec))
    # First as they lie: then their gradients are scattered, not summed whole on each device.
    key, value = (
        jax.lax.with_sharding_constraint(
            jax.lax.with_sharding_constraint(array, place(fitting(problem.sharding, array.shape))),
            place(whole),
        )
        for array in (problem.key, value)
    )
    return problem._replace(query=query, key=key), value


def _keys_and_values(
    mixer: records.Mixer, call: Call, is_plain: bool
) -> tuple[jax.Array, jax.Array, masks.Masks]:
    """Returns the key, the value and the masks as a backend gets them.

    is_plain: the backend has no `transforms`, so it gets a key head for each query head, masks as
    arrays, and 0 for keys that no query sees.
    """
    query, key, value = call.query, call.key, call.value
    if mixer.splits:
        value = value.astype(jnp.promote_types(value.dtype, jnp.float32))
    if is_plain or mixer.values is not None:
        key, value = (per_query_head(query, array) for array in (key, value))
    value = value if mixer.values is None else mixer.values(value)
    visible = masks.Masks()
    if is_plain:
        visible = masks.merged(call.mask, query.shape[-3], key.shape[-3])
    if visible.keys is not None and visible.rows is not None:  # 0 times ∞ would be NaN
        key, value = (jnp.where(visible.keys, array, 0) for array in (key, value))
    return key, value, visible._replace(sink=call.sink)


def scaled(query: jax.Array, scale: float | jax.Array | None) -> tuple[jax.Array, float]:
    """Returns the query and the number that QKᵀ is multiplied by, D^-0.5 unless given.

    Raises ValueError for a number that is not finite.
    """
    if scale is None:
        return query, float(query.shape[-1] ** -0.5)
    if not isinstance(scale, numbers.Real):
        # A learned or traced scale cannot be compiled in; on the query it is the same product.
        return (query * scale).astype(query.dtype), 1.0
    if not math.isfinite(scale):
        raise ValueError(f"scale={scale!r}: logits are multiplied by it, so it must be finite")
    return query, float(scale)


def make_call(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    x: jax.Array | None = None,
    layer: LayerIndex | int | jax.Array | None = None,
    memory: Memory | None = None,
    bias: jax.Array | masks.Bias | None = None,
    mask: jax.Array | masks.Mask | None = None,
    is_causal: bool = False,
    is_cross: bool = False,
) -> Call:
    """Returns the checked call, query, key and value in one dtype.

    Shapes: query [..., T, H, D], key [..., S, K, D], value [..., S, K, Dv], K divides H; x
    [..., T, W]. Raises ValueError where shapes or dtypes do not fit, naming the argument.
    """
    query, key, value = (jnp.asarray(array) for array in (query, key, value))
    _check_shapes(query, key, value)
    dtype = jnp.result_type(query, key, value)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"attention works on floating-point arrays; got {dtype}")
    query, key, value = (array.astype(dtype) for array in (query, key, value))
    if not isinstance(is_causal, bool | np.bool_):
        raise ValueError(f"is_causal={is_causal!r}: give True or False")
    x = None if x is None else jnp.asarray(x, dtype)
    if x is not None and (x.ndim < 2 or x.shape[:-1] != query.shape[:-2]):
        raise ValueError(
            f"x has shape {x.shape}: it is the block's input, one row for each query, so its axes "
            f"before the last are {query.shape[:-2]}"
        )
    queries, keys, heads = query.shape[-3], key.shape[-3], query.shape[-2]
    shape = (*query.shape[:-3], heads, queries, keys)
    symbolic = mask if isinstance(mask, masks.Mask) else masks.Mask(dense=mask)
    _check_mask(symbolic, query.shape[:-3], queries, keys, shape)
    added = bias if isinstance(bias, masks.Bias) else masks.Bias(bias)
    for part in jax.tree.leaves(tuple(added)):
        check_array("bias", part, shape)
    for part in added.parts():
        check_broadcasts("bias", part, shape)
    added = jax.tree.map(jnp.asarray, added)  # NumPy's float64 becomes float32
    symbolic = jax.tree.map(jnp.asarray, symbolic)
    symbolic = symbolic & masks.Mask(causal=bool(is_causal), hidden=added.hidden())
    index = layer if layer is None or isinstance(layer, LayerIndex) else LayerIndex(layer)
    if index is not None:
        index = dataclasses.replace(index, index=layer_number(index.index))
    return Call(query, key, value, x, index, memory, added, symbolic, is_cross=is_cross)


def from_cache(query: jax.Array, mask: Any) -> Any:
    """Returns a mask as booleans where flax's cache has made float32 of them, else as it is.

    flax decodes one query at a time, and combines masks in float32 (`nn.combine_masks`), whatever
    theirs were.
    """
    is_combined = query.shape[-3] == 1 and getattr(mask, "dtype", None) == jnp.float32
    return mask > 0 if is_combined else mask


def layer_number(index: Any) -> int | jax.Array:
    """Returns a layer's index, an int if it is known.

    Raises ValueError unless it is one integer, from 0 if it is known.
    """
    is_known = not isinstance(index, jax.core.Tracer)
    array = np.asarray(index) if is_known else index
    is_integer = not array.ndim and jnp.issubdtype(array.dtype, jnp.integer)
    if not is_integer or (is_known and array < 0):
        raise ValueError(
            f"layer={index!r}, of dtype {array.dtype} and shape {array.shape}: it is the layer's "
            "index, one integer from 0"
        )
    return int(array) if is_known else index


def _check_mask(
    mask: masks.Mask, batch: tuple[int, ...], queries: int, keys: int, shape: tuple[int, ...]
) -> None:
    """Raises ValueError if a part of a symbolic mask does not fit the call."""
    check_broadcasts("mask", mask.dense, shape)
    if mask.segments is not None and len(mask.segments) != 2:
        raise ValueError("mask.segments: give two arrays, the ids of queries and of keys")
    elementwise.check_mask(mask.functions, in_kernel=False)
    query_ids, key_ids = mask.segments or (None, None)
    for name, array, length in (
        ("mask.lower", mask.lower, queries),
        ("mask.keys", mask.keys, keys),
        ("mask.segments[0]", query_ids, queries),
        ("mask.segments[1]", key_ids, keys),
    ):
        if array is None:
            continue
        check_array(name, array, (*batch, length))
        if tuple(array.shape) not in ((*batch, length), (length,)):
            raise ValueError(f"{name} has shape {array.shape}; it must be {(*batch, length)}")
        if name == "mask.keys":
            masks.check_boolean(name, array)
        elif not jnp.issubdtype(array.dtype, jnp.integer):
            raise ValueError(f"{name} has dtype {array.dtype}: give integers")
    width = 1 if mask.width is None else mask.width
    if not isinstance(width, numbers.Integral) or width < 1:
        raise ValueError(
            f"mask.width={width!r}: a query sees keys fewer than it away; give an integer from 1"
        )


def per_query_head(query: jax.Array, array: jax.Array) -> jax.Array:
    """Returns keys or values with a head for each of the query's, [..., S, H, D].

    Heads of grouped attention, K of them, each serve H/K heads of the query in a row, as in
    jax.nn.dot_product_attention.
    """
    heads, groups = query.shape[-2], array.shape[-2]
    if heads == groups:
        return array
    array = masks.repeated(array, -2, heads // groups)
    # Fewer heads than devices are whole on each device of a mesh with explicit axes.
    *axes, _, last = jax.typeof(array).sharding.spec
    return masks.lying(array, (*axes, jax.typeof(query).sharding.spec[-2], last))


def _check_shapes(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    for name, array in (("query", query), ("key", key), ("value", value)):
        if array.ndim < 3:
            raise ValueError(f"{name} has shape {array.shape}; axes must be [..., length, H, D]")
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    heads = query.shape[-2]
    for is_wrong, why in (
        (
            not query.shape[-1] or not key.shape[-3],
            "the head size and the number of keys must be at least 1",
        ),
        (query.shape[-1] != key.shape[-1], "head sizes of query and key differ (last axis)"),
        (key.shape[:-1] != value.shape[:-1], "key and value differ before the last axis"),
        (query.shape[:-3] != key.shape[:-3], "batch axes of query and key differ"),
        (
            not key.shape[-2] or heads % key.shape[-2],
            f"{heads} heads of queries and {key.shape[-2]} of keys or values: give as many, or a "
            f"number that divides {heads} (grouped heads)",
        ),
    ):
        if is_wrong:
            raise ValueError(f"{shapes}: {why}")


def varying(array: jax.Array) -> frozenset[str]:
    """Returns the shard_map axes an array varies over (JAX 0.7 calls them vma)."""
    kind = jax.typeof(array)
    manual = getattr(kind, "manual_axis_type", None)
    return frozenset(getattr(kind, "vma", ()) if manual is None else manual.varying)


def check_array(name: str, array: Any, shape: tuple[int, ...]) -> None:
    """Raises ValueError for what is no array; shape: what its own must broadcast to."""
    if not hasattr(array, "ndim"):
        raise ValueError(f"{name}={array!r} is no array; give one that broadcasts to {shape}")


def check_broadcasts(name: str, array: jax.Array | None, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless a `mask` or `bias` is an array that broadcasts to `shape`."""
    if array is None:
        return
    check_array(name, array, shape)
    if not elementwise.broadcasts(array.shape, shape):
        raise ValueError(f"{name} of shape {array.shape} does not broadcast to {shape}")
    if name == "mask":
        masks.check_boolean(name, array)
    elif not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(
            f"bias has dtype {array.dtype}; give floating-point numbers (a boolean belongs in mask)"
        )


def _dropout(
    query: jax.Array,
    columns: int,
    rng: jax.Array | None,
    rate: float,
    broadcast: bool,
    kernel: records.Kernel,
) -> jax.Array | functions.Dropout | None:
    """Returns the multiplier 0 or 1/(1 − rate) of each weight, or None without dropout.

    query [..., T, H, D]; columns: keys and a sink. A kernel with `transforms` gets the rate and
    the seeds of its own draws (`functions.is_kept`).
    """
    if not isinstance(rate, numbers.Real) or not 0.0 <= float(rate) < 1.0:
        raise ValueError(f"dropout_rate={rate!r}: attention dropout is a Python number in [0, 1)")
    if rate == 0.0:
        return None
    if rng is None:
        raise ValueError(f"dropout_rate={rate} needs a dropout_rng")
    shape = (*query.shape[:-3], query.shape[-2], query.shape[-3], columns)
    if kernel.transforms:
        seeds = jax.random.bits(rng, (1,) if broadcast else shape[:-2], jnp.uint32)
        seeds = jax.lax.bitcast_convert_type(seeds, jnp.int32)
        return functions.Dropout(rate, jnp.broadcast_to(seeds, shape[:-2]))
    if broadcast:
        shape = (1,) * (len(shape) - 2) + shape[-2:]
    keep = jax.random.bernoulli(rng, 1.0 - rate, shape)
    return keep.astype(jnp.promote_types(query.dtype, jnp.float32)) / (1.0 - rate)
