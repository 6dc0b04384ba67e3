"""What the file of a mixer, modifier or backend holds: one record, found by its name.

The line in `attention.table` holds what must be known without JAX. The record is the code.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import jax

from attention import backends, table
from attention.functions import Transform, Weighting
from attention.masks import Mask

# Learned leaves and constants of a part, by `Leaf.path`.
Leaves = Mapping[str, jax.Array]
Record = TypeVar("Record")
# Sizes of a backend's tiles: ((kernel, ((size, number), ...)), ...).
Tiles = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


class Leaf(NamedTuple):
    """A learned array of a mixer or modifier, float32.

    path: module and name, "gate/scale". Names start with `scale`: AlgoPerf's parameter typing
    requires it below a module named attention (algoperf/param_utils.py). Values are stored as the
    difference from their start, so weight decay pulls them back to it. start(key, shape, dtype): an
    initializer. is_learned: False
    for a constant, which is no parameter.
    """

    path: str
    shape: tuple[int, ...]
    start: Callable[..., jax.Array] = jax.nn.initializers.zeros
    is_learned: bool = True


@dataclasses.dataclass(frozen=True)
class Mixer:
    """How a mixer attends, and all that is asked about it.

    formula(call, leaves, logits, **hyperparameters): its definition for the reference, in float64
    and without a batch, sharing no code with the rest: [T, H, Dv] from `call` (`attention.call`)
    and logits(query, key) [H, T, S], scaled, with score functions and bias. Rows that see nothing
    return 0. formula_inputs(call, leaves): the same for `inputs`.

    mask: what it hides whatever the call's mask says.

    mean(weighted_sum, value, masks, *, dtype, span, sums_to_one): the output by a function that
    weighs values, as `standard.weighted_mean`; where masks.sink is there, weighted_sum(values,
    of_zero) also gets what a value of 0 becomes, if that is not 0. host_mean: the same by a model's
    own softmax, if it differs. weighting: how logits become weights (`attention.functions`), or
    a function weighting(keys, dtype) of the number of keys and the inputs' dtype that returns it.

    leaves(call, **hyperparameters): what it learns. inputs(call, leaves, **hyperparameters): the
    call that modifiers get; it may have more query heads. values(value): what the backend gets for
    [..., S, H, Dv]. output(out, call, leaves, **hyperparameters): the output from that of `mean`.
    These may be left out. splits: a value is used twice, so it is handed on in float32, and the two
    gradients are added before they are rounded.

    transform(dtype): what `mean` does around the weighted sum of inputs of that dtype, for backends
    that do it inside; None if it does nothing. bfloat16_allowance: factor on the error limits in
    bfloat16, with its reason beside it.
    paper: other computations of the same from [T, H, D] and [S, H, D], by name, beside which
    `check` shows ours.
    """

    formula: Callable[..., jax.Array]
    mean: Callable[..., jax.Array]
    weighting: Weighting | Callable[[int, Any], Weighting]
    host_mean: Callable[..., jax.Array] | None = None
    mask: Mask = dataclasses.field(default_factory=Mask)
    leaves: Callable[..., Sequence[Leaf]] = lambda *_, **__: ()
    inputs: Callable[..., Any] | None = None
    formula_inputs: Callable[..., Any] | None = None
    values: Callable[[jax.Array], jax.Array] | None = None
    output: Callable[..., jax.Array] | None = None
    splits: bool = False
    transform: Callable[[Any], Transform] | None = None
    bfloat16_allowance: float = 1.0
    paper: Mapping[str, Callable[..., jax.Array]] = dataclasses.field(default_factory=dict)

    def weighting_of(self, keys: int, dtype: Any) -> Weighting:
        """Returns how logits of so many keys become weights, the inputs being of `dtype`."""
        weighting = self.weighting
        return weighting if isinstance(weighting, Weighting) else weighting(keys, dtype)


@dataclasses.dataclass(frozen=True)
class Modifier:
    """What a modifier changes, and where.

    apply, by `acts_on`:
    'inputs': apply(call, leaves, **hyperparameters) -> call, before there are logits;
    'score': apply(logits, query_index, key_index, leaves, **hyperparameters) -> logits, element by
    element on float32 [..., H, T, S], scaled, before bias and mask; query_index [T, 1] and
    key_index [1, S] are positions, leaves [H] have the shape [H, 1, 1];
    'output': apply(out, call, leaves, **hyperparameters) -> out [..., T, H, Dv], float32 or wider.

    formula: the same in float64, without a batch (logits [H, T, S]), sharing no code with `apply`.
    leaves(call, **hyperparameters): what it learns. precedence: modifiers of one kind act from the
    lowest to the highest; a user's own acts late unless it says so. keeps(call): zeros like what it
    leaves in `call.memory` for later layers, under its name; None for nothing. bfloat16_allowance:
    as of a `Mixer`.
    """

    acts_on: Literal["inputs", "score", "output"]
    apply: Callable[..., Any]
    formula: Callable[..., Any]
    leaves: Callable[..., Sequence[Leaf]] = lambda *_, **__: ()
    precedence: int = 80
    keeps: Callable[..., jax.Array] | None = None
    bfloat16_allowance: float = 1.0


@dataclasses.dataclass(frozen=True)
class Kernel:
    """An attention backend: what computes the weighted sum.

    call(problem, value) returns that of value [..., S, H, Dv] for an `inputs.Problem`, [..., T, H,
    Dv], or raises ValueError naming a backend that can. span: the widest channel, in nats, whose
    centred exponentials survive its backward pass (`mixers.laser_shift`). float32_sums: the
    sum is float32 until the mixer is done with it, whatever the inputs.

    transforms: there is call(problem, value, transform, channels), too, with functions of the value
    and of the sum inside. Such backends support grouped heads, sinks and symbolic masks, and return
    0 for rows that see nothing. bfloat16_allowance: as of a `Mixer`. check(problem, transform):
    raises ValueError for functions that it cannot have on any device. has_tiles: call takes
    `tiles`, as `with_tiles` makes them.
    """

    call: Callable[..., jax.Array]
    span: float
    float32_sums: bool
    transforms: bool = False
    bfloat16_allowance: float = 1.0
    check: Callable[..., None] = lambda *_: None
    has_tiles: bool = False


def mixer(name: str) -> Mixer:
    """Returns the record of a mixer in the table. Raises ValueError if it has no code."""
    return _record(f"attention.mixers.{name}:MIXER", Mixer, f"mixer {name!r}")


def modifier(name: str) -> Modifier:
    """Returns the record of a modifier in the table. Raises ValueError if it has no code."""
    return _record(f"attention.modifiers.{name}:MODIFIER", Modifier, f"modifier {name!r}")


def kernel(name: str) -> Kernel:
    """Returns the record of a kernel. Raises ValueError that lists the kernels."""
    if name not in backends.KERNELS:
        raise ValueError(table.unknown("kernel", name, backends.KERNELS))
    return _record(backends.KERNELS[name].record, Kernel, f"kernel {name!r}")


def with_tiles(backend: str | Kernel, tiles: Mapping[str, Mapping[str, int]]) -> Kernel:
    """Returns a backend with other tiles; tiles: sizes by name, by kernel of the backend.

    Raises ValueError for a backend without tiles, and for what is no such mapping. The backend
    checks names and numbers.
    """
    record = backend if isinstance(backend, Kernel) else kernel(backend)
    if not record.has_tiles:
        raise ValueError(f"kernel={backend!r} takes no tiles; leave tiles= out, or use 'fused'")
    if not isinstance(tiles, Mapping) or not all(
        isinstance(sizes, Mapping) and all(type(number) is int for number in sizes.values())
        for sizes in tiles.values()
    ):
        raise ValueError(
            f"tiles={tiles!r}: give sizes by kernel, such as "
            "{'forward': {'queries': 128, 'keys': 128}}"
        )
    frozen = tuple((name, tuple(sizes.items())) for name, sizes in tiles.items())
    return dataclasses.replace(record, call=functools.partial(record.call, tiles=frozen))


def adapter(library: str) -> Any:
    """Returns the module of `attention/adapters/` for a library, imported when it is asked for."""
    return importlib.import_module(f"attention.adapters.{library}")


def _record(reference: str, kind: type[Record], what: str) -> Record:
    module, name = reference.split(":")
    missing = f"{what} has no code: attention/table.py has its line, and {reference} is no record"
    try:
        record = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ValueError(missing) from error
    if not isinstance(record, kind):
        raise ValueError(missing)
    return record
