"""The arguments of an attention call: checked, brought to one form, and given to a kernel."""

import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from attention import devices, records
from attention.kernels import masks
from attention.records import Applied, Weighting

Array = jax.Array


class Settings(TypedDict, total=False):
    """The keyword arguments of every mixer's `attend`.

    scale: what QKᵀ is multiplied by, D^-0.5 unless given. bias, mask (True where a query may
    look): broadcast to [..., H, T, S]. is_causal: query t sees keys 0..t. dropout_rate: of the
    weights; needs dropout_rng; broadcast_dropout (the default) draws one mask for all batch entries
    and heads, as flax does. precision: of matrix products. kernel: `table.KERNELS`, 'xla' unless
    given. logits: functions applied to the scaled logits, before bias and mask. sharding: how
    [..., T, H, D] lies on the devices, for kernels that XLA cannot divide over them.
    """

    scale: float | Array | None
    bias: Array | None
    mask: Array | None
    is_causal: bool
    dropout_rng: Array | None
    dropout_rate: float
    broadcast_dropout: bool
    precision: jax.lax.PrecisionLike
    kernel: str
    logits: tuple[Applied, ...]
    sharding: NamedSharding | None


class Problem(NamedTuple):
    """One attention call as a kernel gets it: query [..., T, H, D], key [..., S, H, D], checked;
    the rest as in `Settings`. `dropout` is the multiplier of the weights, [..., H, T, S]."""

    query: Array
    key: Array
    scale: float
    bias: Array | None
    mask: Array | None
    is_causal: bool
    masks: masks.Masks
    dropout: Array | None
    precision: jax.lax.PrecisionLike
    weighting: Weighting
    logits: tuple[Applied, ...]
    sharding: NamedSharding | None

    @property
    def platform(self) -> str:
        """What will compute, 'cpu', 'gpu' or 'tpu': the sharding's devices, which need not be here,
        or JAX's own."""
        if self.sharding is None:
            return devices.default_platform()
        platform: str = self.device.platform
        return "gpu" if platform in ("cuda", "rocm") else platform

    @property
    def device(self) -> jax.Device:
        """One of the devices that will compute."""
        return jax.devices()[0] if self.sharding is None else self.sharding.mesh.devices.flat[0]


def through_kernel(
    mean: Callable[..., Array],
    weighting: Weighting,
    query: Array,
    key: Array,
    value: Array,
    *,
    kernel: str = "xla",
    wide: bool = False,
    inside: str = "",
    **settings: Any,
) -> Array:
    """Returns `mean` of the kernel's weighted sums, in its dtype, [..., T, H, Dv].

    mean: `standard.weighted_mean` or one with its signature; `settings` as in `Settings`. wide: it
    is given the value in float32, so that the gradients of two uses are added before they are
    rounded. inside: the field of `records.Kernel` that holds `mean` for kernels that have it in
    them. Raises ValueError for what does not fit, and for what the kernel cannot do.
    """
    chosen = records.kernel(kernel)
    problem, value = canonicalize_inputs(weighting, query, key, value, **settings)
    if problem.is_causal and problem.mask is None and chosen.log_mean_exp is not None:
        # Beside that kernel XLA takes a minute to fold the arrays of causality. Around others it is
        # quick, and makes 3 to 6 % less of LASER's step with them (c4_lm: 583 against 599 ms by
        # our core, 350 against 371 by splash).
        lengths = problem.query.shape[-3], problem.key.shape[-3]
        problem = problem._replace(masks=masks.of_causality(*lengths))
    if inside and (whole := getattr(chosen, inside)) is not None:
        found: Array = whole(problem, value)
        return found
    return mean(
        lambda values: chosen.call(problem, values),
        value.astype(jnp.promote_types(value.dtype, jnp.float32)) if wide else value,
        problem.masks,
        dtype=value.dtype,
        span=chosen.span,
        sums_to_one=problem.dropout is None,
    )


def refuse_dropout_and_precision(kernel: str, problem: Problem) -> None:
    """Raises ValueError for a problem with either, which library and TPU kernels have not."""
    if problem.dropout is not None:
        raise ValueError(f"kernel={kernel!r} has no attention dropout; use kernel='xla'")
    if problem.precision is not None:
        raise ValueError(
            f"kernel={kernel!r} takes no matmul precision (got {problem.precision!r}); use "
            "kernel='xla', or set jax_default_matmul_precision"
        )


def canonicalize_inputs(
    weighting: Weighting,
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: float | Array | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    is_causal: bool = False,
    dropout_rng: Array | None = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = True,
    precision: jax.lax.PrecisionLike = None,
    logits: tuple[Applied, ...] = (),
    sharding: NamedSharding | None = None,
) -> tuple[Problem, Array]:
    """Returns the checked problem and the value, all in one dtype.

    Shapes: query [..., T, H, D], key [..., S, H, D], value [..., S, H, Dv]. Raises ValueError
    where shapes or dtypes do not fit, naming the argument.
    """
    query, key, value = (jnp.asarray(array) for array in (query, key, value))
    _check_shapes(query, key, value)
    dtype = jnp.result_type(query, key, value)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"attention works on floating-point arrays; got {dtype}")
    query, key, value = (array.astype(dtype) for array in (query, key, value))
    if not isinstance(is_causal, bool | np.bool_):
        raise ValueError(f"is_causal={is_causal!r}: give True or False")
    if scale is None:
        scale = query.shape[-1] ** -0.5
    elif isinstance(scale, numbers.Real) and not math.isfinite(scale):
        raise ValueError(f"scale={scale!r}: logits are multiplied by it, so it must be finite")
    elif not isinstance(scale, numbers.Real):
        # A learned or traced scale cannot be compiled in; on the query it is the same product.
        query, scale = (query * scale).astype(dtype), 1.0
    queries, keys, heads = query.shape[-3], key.shape[-3], query.shape[-2]
    for name, array in (("mask", mask), ("bias", bias)):
        check_broadcasts(name, array, (*query.shape[:-3], heads, queries, keys))
    bias = None if bias is None else jnp.asarray(bias)  # NumPy's float64 becomes float32
    merged = masks.merged(queries, keys, mask=mask, bias=bias, is_causal=is_causal)
    dropout = _dropout(
        (*query.shape[:-3], heads, queries, keys), dropout_rng, dropout_rate, broadcast_dropout
    )
    problem = Problem(
        query,
        key,
        float(scale),
        bias,
        mask,
        is_causal,
        merged,
        dropout,
        precision,
        weighting,
        logits,
        sharding,
    )
    return problem, value


def per_query_head(query: Array, array: Array) -> Array:
    """Returns keys or values with a head for each of the query's, [..., S, H, D].

    Heads of grouped attention, K of them, each serve H/K heads of the query in a row, as in
    jax.nn.dot_product_attention. Raises ValueError unless K divides H.
    """
    if min(query.ndim, array.ndim) < 2 or array.shape[-2] in (0, query.shape[-2]):
        return array
    heads, groups = query.shape[-2], array.shape[-2]
    if heads % groups:
        raise ValueError(
            f"{heads} heads of queries and {groups} of keys or values: give as many, or a number "
            f"that divides {heads} (grouped heads)"
        )
    return jnp.repeat(array, heads // groups, axis=-2)


def _check_shapes(query: Array, key: Array, value: Array) -> None:
    for name, array in (("query", query), ("key", key), ("value", value)):
        if array.ndim < 3:
            raise ValueError(f"{name} has shape {array.shape}; axes must be [..., length, H, D]")
    if not query.shape[-1] or not key.shape[-3]:
        raise ValueError(
            f"query {query.shape} and key {key.shape} need a head size and keys from 1"
        )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"head sizes of query {query.shape} and key {key.shape} differ (last axis)"
        )
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(f"key {key.shape} and value {value.shape} differ before the last axis")
    if (*query.shape[:-3], query.shape[-2]) != (*key.shape[:-3], key.shape[-2]):
        raise ValueError(f"batch axes or heads of query {query.shape} and key {key.shape} differ")


def check_broadcasts(name: str, array: Array | None, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless a `mask` or `bias` is an array that broadcasts to `shape`."""
    if array is None:
        return
    if not hasattr(array, "ndim"):
        raise ValueError(f"{name}={array!r} is no array; give one that broadcasts to {shape}")
    padded = (1,) * (len(shape) - array.ndim) + array.shape
    if len(padded) != len(shape) or any(
        size not in (1, whole) for size, whole in zip(padded, shape, strict=True)
    ):
        raise ValueError(f"{name} of shape {array.shape} does not broadcast to {shape}")
    if name == "bias" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(
            f"bias has dtype {array.dtype}; give floating-point numbers (a boolean belongs in mask)"
        )
    # A mask of floats is one of 0 and 1 in AlgoPerf's Conformer; a traced one cannot be looked at.
    floats = name == "mask" and jnp.issubdtype(array.dtype, jnp.floating)
    if floats and not isinstance(array, jax.core.Tracer) and not np.all(np.asarray(array) >= 0):
        raise ValueError(
            "mask has values below 0 or NaN: it is True (or 1) where a query may look, and what is "
            "added to the logits belongs in bias"
        )


def _dropout(
    shape: tuple[int, ...], rng: Array | None, rate: float, broadcast: bool
) -> Array | None:
    """Returns the multiplier 0 or 1/(1 − rate) per weight, or None where nothing is dropped."""
    if not isinstance(rate, numbers.Real) or not 0.0 <= float(rate) < 1.0:
        raise ValueError(f"dropout_rate={rate!r}: attention dropout is a Python number in [0, 1)")
    if rate == 0.0:
        return None
    if rng is None:
        raise ValueError(f"dropout_rate={rate} needs a dropout_rng")
    if broadcast:
        shape = (1,) * (len(shape) - 2) + shape[-2:]
    keep = jax.random.bernoulli(rng, 1.0 - rate, shape)
    return keep.astype(jnp.float32) / (1.0 - rate)
