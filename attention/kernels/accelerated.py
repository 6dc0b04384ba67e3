"""What our backends in Pallas share: operands, derivatives, refusals, masks and devices.

XLA cannot divide a kernel in Pallas over devices. `jax.shard_map` does, as `Problem.sharding` says.
"""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from attention import backends, functions, table
from attention.kernels.inputs import Problem, fitting, parts, promoting, varying
from attention.kernels.pairs import PairMask, survey
from attention.records import Tiles

LANES = 128
# Further than any sequence is long.
UNBOUNDED = 1 << 30


class Division(NamedTuple):
    """How devices divide queries; `queries`: the number of all.

    part: rows of each part of a device's queries, 0 if tiles cannot begin with a part. shifts: for
    each part, a query's position minus its number on the device. Devices differ in that, and read
    it from the operand `shifts`; these are the first device's.
    """

    queries: int
    part: int
    shifts: tuple[int, ...]


class Local(NamedTuple):
    """What a device's kernel needs beside arrays.

    low, high: bounds of a query's position minus that of a visible key, ∓UNBOUNDED for none.
    rate: dropout rate. dtype: that of the output. may_see_none: some rows may see no key.
    tiles: sizes that take the place of planned ones, as `records.with_tiles` hands them.
    pair_mask: functions of two positions that hide pairs within the bounds, None for none.
    with_lse: s is asked for.
    division: how devices divide the queries, None if each has all.
    """

    functions: functions.Functions
    low: int
    high: int
    scale: float
    rate: float
    dtype: jnp.dtype
    interpret: bool
    may_see_none: bool
    tiles: Tiles = ()
    pair_mask: PairMask | None = None
    with_lse: bool = False
    division: Division | None = None

    @property
    def may_have_no_mass(self) -> bool:
        """Returns whether a row's mass may be 0: it sees no key, or its functions give 0."""
        weighting = self.functions.weighting
        is_divided_by_itself = weighting.weights is weighting.mass is functions.exponential
        return self.may_see_none or bool(self.functions.score) or not is_divided_by_itself

    def sizes_of(
        self, kernel: str, kernels: Collection[str], limits: Mapping[str, tuple[int, ...]]
    ) -> dict[str, int]:
        """Returns the sizes that `tiles` gives a kernel, {} for none.

        kernels: all that there are. limits: the numbers that each size may have. Raises ValueError
        for others.
        """
        for name, _ in self.tiles:
            if name not in kernels:
                raise ValueError(table.unknown("kernel of tiles=", name, kernels))
        sizes = dict(dict(self.tiles).get(kernel, ()))
        for name, number in sizes.items():
            if name not in limits:
                raise ValueError(table.unknown(f"size of tiles[{kernel!r}]", name, limits))
            if number not in limits[name]:
                allowed = ", ".join(map(str, limits[name]))
                raise ValueError(f"tiles[{kernel!r}][{name!r}] = {number}: give one of {allowed}")
        return sizes

    def shift(self, first: Any, shifts: Any) -> Any:
        """Returns the position of a device's query number `first`, minus that number.

        It is the int 0 where devices do not divide the queries. shifts: the operand, or a reference
        to it.
        """
        if self.division is None:
            return 0
        return shifts[first // self.division.part if len(self.division.shifts) > 1 else 0]

    @property
    def is_banded(self) -> bool:
        """Returns whether some distances are hidden."""
        return self.low > -UNBOUNDED or self.high < UNBOUNDED

    def within_band(self, distance: jax.Array, offset: Any = 0) -> list[jax.Array]:
        """Returns the conditions under which distance + offset is in the band."""
        above = [distance >= self.low - offset] if self.low > -UNBOUNDED else []
        below = [distance <= self.high - offset] if self.high < UNBOUNDED else []
        return above + below


def moved(first: Any, shift: Any) -> Any:
    """Returns the position of a query; first: its number on the device."""
    return first if isinstance(shift, int) else first + shift


class Operands(NamedTuple):
    """The arrays that a kernel reads, or their block specifications; None for an absent one.

    Shapes are those of the platform's module. keys: which keys a mask leaves. start: the leaf that
    `Weighting.start` names. leaves: those of score functions, as `Functions.flattened` lists them.
    segments: of queries and of keys. pairs: which key a query sees. tiles: which tiles are seen.
    lower: the first key that a query sees. shifts: int32 [parts], see `Local`.
    """

    query: Any
    key: Any
    value: Any
    channels: Any = None
    keys: Any = None
    start: Any = None
    leaves: Any = None
    seeds: Any = None
    segments: Any = None
    pairs: Any = None
    tiles: Any = None
    lower: Any = None
    shifts: Any = None


class ForwardResults(NamedTuple):
    """What a forward pass writes; None for what is not asked for.

    Shapes are those of the platform's `forward`. means: R in float32. log_sums: s of each row.
    channels: the channel leaves.
    """

    output: Any
    means: Any = None
    log_sums: Any = None
    channels: Any = None


class RowInputs(NamedTuple):
    """What the backward kernels read of rows, or the block specifications; None for absent ones.

    Shapes are those of the platform's forward pass. inner: G. means: R. log_sums: s, and delta: δ,
    None if weights are not divided. cotangent: dO. lse_bar: the cotangent of s.
    """

    inner: Any = None
    means: Any = None
    log_sums: Any = None
    delta: Any = None
    cotangent: Any = None
    lse_bar: Any = None


def present(arrays: Any, specs: dict[str, Any]) -> Any:
    """Returns a NamedTuple like `arrays` of specifications by its fields' names, None for None."""

    return jax.tree.map(
        lambda array, spec: None if array is None else spec,
        arrays,
        type(arrays)(*map(specs.get, arrays._fields)),
        is_leaf=lambda array: array is None,
    )


def differentiable(
    forward: Callable[..., ForwardResults], backward: Callable[..., Operands]
) -> Callable[[Any, bool, Operands], tuple[jax.Array, jax.Array | None]]:
    """Returns a function of (plan, with_lse, operands) that has a derivative.

    It returns the output, and s `with_lse`. forward: of (plan, operands, keep, with_lse), where
    `keep` asks for what `backward` reads. backward: of (plan, operands, R, s, the cotangents of the
    output and of s).
    """

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
    def attend(plan: Any, with_lse: bool, operands: Operands) -> tuple[jax.Array, jax.Array | None]:
        written = forward(plan, operands, keep=False, with_lse=with_lse)
        return written.output, written.log_sums

    def attend_forward(plan: Any, with_lse: bool, operands: Operands) -> tuple[Any, Any]:
        written = forward(plan, operands, keep=True, with_lse=with_lse)
        means = written.output if written.means is None else written.means
        operands = operands._replace(channels=written.channels)
        results = written.output, written.log_sums if with_lse else None
        return results, (operands, means, written.log_sums)

    @promoting
    def attend_backward(plan: Any, _: bool, kept: Any, cotangents: Any) -> tuple[Operands]:
        return (backward(plan, *kept, *cotangents),)

    # Not with optimize_remat, which hides the names of what is kept from policies.
    attend.defvjp(attend_forward, attend_backward)
    return attend


def operands_of(
    local: Local,
    arrays: dict[str, Any],
    makes_channels: bool,
    flat: Callable[[jax.Array], jax.Array],
    by_head: Callable[[jax.Array], jax.Array],
) -> Operands:
    """Returns a device's arrays, of `on_devices`, as its kernels read them; "tiles" is left out.

    Values that no query sees are replaced. makes_channels: the kernel makes the channel leaves.
    flat: gives [..., rows, heads, channels] as the kernel reads it; channel leaves are joined along
    its axis 1. by_head: gives a row or a column [..., H, rows]. keys [B, 1, S], seeds [B, 1, H],
    segments [B, 1, T] and [B, 1, S], and lower [B, 1, T] are int32, pairs [B or 1, H or 1, T, S]
    int8.
    """
    transform, value, seen = local.functions.transform, arrays["value"], arrays.get("seen")
    channels, name = arrays.get("channels"), "" if transform is None else transform.filler
    if transform is not None and transform.leaves is not None and not makes_channels:
        channels = transform.leaves(value.astype(jnp.float32), seen, -3, "start" in arrays)
    if seen is not None:  # 0 times ∞ would be NaN
        filler = (channels or {}).get(name, jnp.zeros(()))
        value = jnp.where(seen, value, filler.astype(value.dtype))
    of_rows = {name: arrays.get(name) for name in ("keys", "seeds", "segments", "lower")}
    kinds, pairs = local.functions.kinds, arrays.get("pairs")
    return Operands(
        flat(arrays["query"]),
        flat(arrays["key"]),
        flat(value),
        channels and jnp.concatenate([flat(channels[name]) for name in sorted(channels)], axis=1),
        start=arrays.get("start"),
        leaves=tuple(
            leaf if kind == "head" else by_head(leaf)
            for kind, leaf in zip(kinds, arrays["leaves"], strict=True)
        ),
        **jax.tree.map(
            lambda array: array.reshape(-1, 1, array.shape[-1]).astype(jnp.int32), of_rows
        ),
        pairs=None if pairs is None else pairs.reshape(-1, *pairs.shape[-3:]).astype(jnp.int8),
        shifts=arrays.get("shifts"),
    )


def lists_tiles(local: Local, arrays: dict[str, Any]) -> bool:
    """Returns whether kernels read which tiles are seen, and not a band alone says it."""
    is_masked = not {"segments", "lower", "pairs"}.isdisjoint(arrays)
    # Programs for a band want tiles of keys and of queries that begin alike.
    is_shifted = local.division is not None and local.is_banded and not local.division.part
    return is_masked or is_shifted or local.pair_mask is not None


def named(written: ForwardResults) -> ForwardResults:
    """Returns a forward pass's results under the names that a policy of jax.checkpoint may keep.

    attnperf_lse: s. attnperf_output: all others.
    """
    lse, output = "attnperf_lse", "attnperf_output"
    return ForwardResults(
        *(
            None if array is None else checkpoint_name(array, lse if name == "log_sums" else output)
            for name, array in written._asdict().items()
        )
    )


def kept_weights(
    local: Local, seeds: Any, head: Any, indices: tuple[jax.Array, jax.Array]
) -> jax.Array | None:
    """Returns which weights of a tile dropout keeps, None without dropout; seeds: [1, H]."""
    return None if seeds is None else functions.is_kept(local.rate, seeds[0, head], *indices)


def tile_states(
    local: Local, operands: Operands, tile: tuple[int, int], count: tuple[int, int]
) -> jax.Array:
    """Returns the states of tiles, int32 [B or 1, H or 1, *count], for queries by keys.

    0: all pairs are hidden. 2: all are seen. 1: others. With unordered segments a hidden tile may
    have state 1. tile: rows of queries and of keys. count: numbers of tiles.
    """
    segments, lower, pairs = operands.segments, operands.lower, operands.pairs
    (rows, columns), (count_q, count_k) = tile, count
    first, origin = jnp.arange(count_q)[:, None] * rows, jnp.arange(count_k) * columns
    first = moved(first, local.shift(first, operands.shifts))
    nearest, farthest = first - origin - (columns - 1), first + (rows - 1) - origin
    some: jax.Array = (farthest >= local.low) & (nearest <= local.high)
    whole: jax.Array = (nearest >= local.low) & (farthest <= local.high)
    if segments is not None:
        of_q, of_k = (
            jnp.pad(ids, ((0, 0), (0, 0), (0, size * number - ids.shape[-1])), "edge")
            for ids, size, number in zip(segments, tile, count, strict=True)
        )
        of_q, of_k = of_q.reshape(-1, 1, count_q, 1, rows), of_k.reshape(-1, 1, 1, count_k, columns)
        low_q, high_q, low_k, high_k = (
            extreme(ids, -1) for ids in (of_q, of_k) for extreme in (jnp.min, jnp.max)
        )
        some = some & (low_q <= high_k) & (low_k <= high_q)
        whole = whole & (low_q == high_k) & (low_k == high_q)
    if lower is not None:
        behind = count_q * rows - lower.shape[-1]
        bounds = jnp.pad(lower, ((0, 0), (0, 0), (0, behind)), "edge")
        bounds = bounds.reshape(-1, 1, count_q, 1, rows)
        some = some & (jnp.min(bounds, -1) <= origin + (columns - 1))
        whole = whole & (jnp.max(bounds, -1) <= origin)
    if local.pair_mask is not None:
        # Behind a barrier, for XLA would sort what it knows while it compiles, which is slow.
        of_all = count_q if local.division is None else -(-local.division.queries // rows)
        surveyed = survey(local.pair_mask).tiles(tile, (of_all, count_k))
        known = jax.lax.optimization_barrier(surveyed)
        if local.division is not None:  # a tile of queries may lie in two that were looked at
            before, after = first[:, 0] // rows, (first[:, 0] + rows - 1) // rows
            known = known[0][before] | known[0][after], known[1][before] & known[1][after]
        some, whole = some & known[0], whole & known[1]
    if pairs is not None:
        *axes, queries, keys = pairs.shape
        beyond = ((0, 0), (0, 0), (0, count_q * rows - queries), (0, count_k * columns - keys))
        tiles = jnp.pad(pairs, beyond).reshape(*axes, count_q, rows, count_k, columns)
        some, whole = some & jnp.any(tiles, (3, 5)), whole & jnp.all(tiles, (3, 5))
    states = some.astype(jnp.int32) + (some & whole)
    return states.reshape((1,) * (4 - states.ndim) + states.shape)


def refuse(kernel: str, problem: Problem, value: jax.Array, interpret: str) -> None:
    """Raises ValueError for what `kernel` has no argument for, and if it cannot run here.

    So does a default matmul precision that the kernel's compiler does not know. interpret: the
    platform whose kernel XLA runs, for tests, else ''.
    """
    backends.check_needs(kernel, problem.needs)
    platform = interpret or problem.platform
    backends.check_kernel(
        kernel,
        platform=platform,
        dtype=problem.query.dtype.name,
        head_size=problem.query.shape[-1],
        value_size=value.shape[-1],
    )
    if varying(problem.query) | varying(problem.key) | varying(value):
        raise ValueError(
            f"kernel={kernel!r} has no place in a jax.shard_map with check_vma=True: give that "
            "shard_map check_vma=False, or use kernel='xla'"
        )
    # Triton computes float32 products of float32 without the matrix units, in loops that spill
    # 29 kB of registers (head size 64, by ptxas). Nobody means that, so it is refused.
    precision = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009  (mypy)
    known = _PRECISIONS[platform, problem.query.dtype.name]
    if precision is not None and precision not in known:
        raise ValueError(
            f"kernel={kernel!r} cannot multiply {problem.query.dtype} at "
            f"jax_default_matmul_precision={precision!r}; "
            f"set {', '.join(map(repr, known))} or none, or use kernel='xla'"
        )


# The default matmul precisions that a platform's compiler knows for products of a dtype.
_PRECISIONS = {
    ("tpu", "bfloat16"): ("default", "bfloat16"),
    ("tpu", "float32"): ("default", "bfloat16", "highest", "float32"),
    ("gpu", "bfloat16"): ("default", "tensorfloat32", "highest", "float32"),
    ("gpu", "float32"): ("default", "tensorfloat32"),
}


def visible_keys(problem: Problem) -> jax.Array | None:
    """Returns the keys that a mask of keys leaves, bool [..., S], None without such a mask."""
    keys, dense = problem.mask.keys, problem.mask.dense
    if dense is not None and "mask_by_query" not in problem.needs:
        axes = (1,) * (problem.query.ndim - dense.ndim) + dense.shape
        of_keys = dense.reshape(axes)[..., 0, 0, :].astype(bool)
        keys = of_keys if keys is None else keys & of_keys
    if keys is None:
        return None
    return jnp.broadcast_to(keys.astype(bool), (*problem.query.shape[:-3], problem.key.shape[-3]))


def divided(length: int, most: int) -> tuple[int, int]:
    """Returns the rows of each of the fewest equal blocks that hold `length`, and of all."""
    count = -(-length // most)
    block = -(-length // (count * LANES)) * LANES
    return block, count * block


def on_devices(
    kernel: str,
    local: Callable[[dict[str, Any]], Any],
    problem: Problem,
    arrays: dict[str, Any],
    kinds: tuple[str, ...] = (),
) -> Any:
    """Returns local(arrays); every device computes its own batch entries, queries and heads.

    local: gives [..., length, heads, Dv], if `problem.with_lse` the pair of it and [..., H, T].
    arrays: "query", "key", "value" [..., length, heads, D]. Optional: "keys" [..., S], "start" [H],
    "channels" [..., 1, heads, Dv] by name, "leaves" of these `kinds`, "seeds" [..., H], "segments"
    ([..., T], [..., S]), "lower" [..., T], int32. Optional, with axes of size 1 or whole: "pairs"
    [..., H, T, S], and "seen" [..., S, H, 1], the keys that some query sees. Where queries are
    divided, and so are keys and values if they can be, local is of `fused`. Raises ValueError as
    `inputs.fitting`.
    """
    sharding = problem.sharding
    arrays = guarded(kernel, arrays)
    if sharding is None or sharding.mesh.size == 1:
        return guarded(kernel, local(arrays))
    spec = fitting(sharding, arrays["query"].shape)
    batch, context, heads = spec[:-3], spec[-3], spec[-2]
    whole = PartitionSpec(*batch, None, heads, None)
    of_keys = whole if arrays["key"].shape[-3] % parts(sharding, context) else spec
    of_kind = {
        "head": PartitionSpec(heads),
        "row": PartitionSpec(*batch, heads, context),
        "column": PartitionSpec(*batch, heads, None),
    }
    by_name: dict[str, Any] = {
        "query": spec,
        **dict.fromkeys(("key", "value"), of_keys),
        "channels": whole,
        "keys": PartitionSpec(*batch, None),
        "start": PartitionSpec(heads),
        "leaves": tuple(of_kind[kind] for kind in kinds),
        "seeds": PartitionSpec(*batch, heads),
        "segments": (PartitionSpec(*batch, context), PartitionSpec(*batch, None)),
        "lower": PartitionSpec(*batch, context),
    }
    for name, axes in (("pairs", (*batch, heads, context)), ("seen", (*batch, None, heads))):
        if name in arrays:  # axes of size 1 are not divided
            sizes = zip(axes, arrays[name].shape, strict=False)
            by_name[name] = PartitionSpec(*(axis if n != 1 else None for axis, n in sizes))
    divided_local = jax.shard_map(
        local,
        mesh=sharding.mesh,
        in_specs=({name: by_name[name] for name in arrays},),
        out_specs=(spec, PartitionSpec(*batch, heads, context)) if problem.with_lse else spec,
        check_vma=False,  # pallas_call does not say over which axes of the mesh its results vary
    )
    return guarded(kernel, divided_local(arrays))


def guarded(kernel: str, arrays: Any) -> Any:
    """Returns a tree of arrays unchanged.

    A second derivative through it, or one in forward mode, raises ValueError, which names the
    kernel and another.
    """
    return jax.tree.map(
        lambda array: _once(kernel, array) if jnp.issubdtype(array.dtype, jnp.floating) else array,
        arrays,
    )


def _refuse(*_: Any, kernel: str) -> NoReturn:
    raise ValueError(
        f"kernel={kernel!r} has first derivatives in reverse mode (jax.grad, jax.vjp) alone: for "
        "second derivatives use kernel='xla', and for forward mode (jax.jvp, jax.jacfwd) "
        "kernel='jax_xla'"
    )


# Two identities: one can be differentiated once, the other never.
_once = jax.custom_jvp(lambda kernel, array: array, nondiff_argnums=(0,))
_never = jax.custom_jvp(lambda kernel, array: array, nondiff_argnums=(0,))
# A tangent that reverse mode transposes, and forward mode would have to compute.
_TANGENT = Primitive("first_order_tangent")


@_once.defjvp
def _once_jvp(kernel: str, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    return _never(kernel, *primals), _TANGENT.bind(*tangents, kernel=kernel)


_never.defjvp(lambda kernel, *_: _refuse(kernel=kernel))
_TANGENT.def_abstract_eval(lambda tangent, **_: tangent)
_TANGENT.def_impl(_refuse)
ad.deflinear2(_TANGENT, lambda cotangent, _, kernel: [_never(kernel, cotangent)])
batching.defvectorized(_TANGENT)
mlir.register_lowering(_TANGENT, _refuse)
