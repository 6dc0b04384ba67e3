"""Laws of every mechanism, measured: what must not reach an output, and how much of it does.

Each law is measured twice, since each measurement misses what the other finds. The gradient misses
integers, sorts and `stop_gradient`; changed inputs miss what is rounded away. Arrays are small,
float32, of one shape for all variants, and run operation by operation: each is compiled once.
"""

import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention.masks import Mask
from attention.variant import Variant
from attention.verification import check

Arrays = dict[str, jax.Array]

# Pairs of heads, halves of channels and blocks of tokens divide these; a block of 64 has a next.
_EXAMPLES, _LENGTH, _HEADS, _SIZE = 4, 80, 4, 8
_TOKENS = np.arange(_LENGTH)
# The first hidden token differs by example: a leak may be one of odd tokens, or of every fourth.
_LATER = _TOKENS - np.arange(_EXAMPLES)[:, None] > 39
_LATE = _TOKENS > 43
_SCATTERED = np.isin(_TOKENS, np.random.default_rng(0).choice(_LENGTH, _LENGTH // 3, False))
_IN_HALF_OF_HEADS = _LATE & (np.arange(_HEADS) < _HEADS // 2)[:, None, None]
_SEGMENTS = np.digitize(_TOKENS, [30, 40])
# Hidden entries are replaced by draws of this standard deviation, a quarter of them by tiny ones:
# a maximum, an order and a threshold change, too. Every third query is as large, and so are its
# logits. Values of a channel span less than 60 nats, up to which LASER's shift moves an output
# by rounding alone.
_LARGE, _TINY = 7.0, 1e-5
_OUTPUT_LIMIT = 1e-5
# A gradient is exactly 0, but for forget gates of an earlier segment, which cancel in c_i − c_j
# (1e-6 measured).
_GRADIENT_LIMITS = {"segments": 1e-5}


class Law(NamedTuple):
    """What outputs must not depend on.

    hidden: in words, {} for the arrays. tokens: those hidden from all others, bool [T], in the
    first `heads` heads, or bool [B, T] by example; mask: fields of the `Mask` that hides them.
    keys_alone: the inputs x of these tokens are not hidden, since a mask is one of keys. times: the
    factor of what replaces entries; more where no token sees them, whose size has no limit then.
    """

    hidden: str
    tokens: np.ndarray
    mask: Mapping[str, Any] = types.MappingProxyType({})
    heads: int = _HEADS
    keys_alone: bool = False
    times: float = 1.0


LAWS = {
    "batch": Law("{} of other examples", np.arange(_EXAMPLES)[:, None] > 0 * _TOKENS),
    "causality": Law("later {}", _LATER),
    "padding": Law("padded {}", _LATE, {"keys": ~_LATE}, times=100.0),
    "mask": Law(
        "masked {}",
        _SCATTERED,
        {"dense": _SCATTERED[:, None] | ~_SCATTERED},
        keys_alone=True,
    ),
    "head mask": Law(
        "{} that their head masks", _LATE, {"dense": ~_IN_HALF_OF_HEADS}, _HEADS // 2, True
    ),
    "segments": Law("{} of other segments", _SEGMENTS == 1, {"segments": (_SEGMENTS, _SEGMENTS)}),
}


class Leak(NamedTuple):
    """A broken law: the name of what reaches outputs, and how much of it.

    For an array, size is the largest gradient by a hidden entry over the largest by any; for
    "tokens", the largest change of an output, all hidden entries being replaced, over the largest
    output.
    """

    law: str
    array: str
    size: float

    def __str__(self) -> str:
        """Returns what outputs see, and how much: 'later keys: 0.31'."""
        arrays = {"query": "queries", "key": "keys", "value": "values"}.get(self.array, self.array)
        return f"{LAWS[self.law].hidden.format(arrays)}: {self.size:.2g}"


def asked(variant: Variant) -> list[str]:
    """Returns the laws, of LAWS, that a variant must keep in any model.

    A variant that needs a causal model and does not hide later keys itself may read earlier tokens:
    masks that hide those are for other models.
    """
    reads_earlier = "causal" in variant.needs and not hides_future(variant)
    return [law for law in LAWS if not (reads_earlier and law in ("mask", "segments"))]


def measure(variant: Variant, laws: Iterable[str] | None = None) -> list[Leak]:
    """Returns what a variant leaks by these laws, unless given those that it is asked to keep.

    Its leaves are drawn, away from their start.
    """
    is_ordered = "causal" in variant.needs
    return [
        leak
        for law in (asked(variant) if laws is None else laws)
        for leak in _leaks(variant, law, is_ordered or law == "causality")
    ]


def hides_future(variant: Variant) -> bool:
    """Returns whether a variant hides later keys whatever the model's mask says."""
    return not _leaks(variant, "causality", is_causal=False)


def problem(variant: Variant, laws: Iterable[str] | None = None) -> str:
    """Returns what a variant leaks, as `measure`, in words, '' for nothing; or why one of its
    functions is refused, such as weights without the factor that they promise."""
    try:
        leaks = measure(variant, laws)
    except ValueError as error:
        return str(error)
    return f"outputs see {', '.join(map(str, leaks))}" if leaks else ""


def _leaks(variant: Variant, name: str, is_causal: bool) -> list[Leak]:
    """Returns what outputs of other tokens get of those that a law hides."""
    law = LAWS[name]
    tokens = np.broadcast_to(law.tokens, (_EXAMPLES, _LENGTH))
    heads = (np.arange(_HEADS) < law.heads)[:, None]
    rows = ~tokens[..., None, None] & heads
    with jax.disable_jit(), jax.default_matmul_precision("highest"):
        arrays, large, run = _problem(variant, is_causal)
        hidden = {
            array: tokens[..., None] if array == "x" else tokens[..., None, None] & heads
            for array in arrays
            if array != "x" or not law.keys_alone
        }
        changed = {
            array: jnp.where(entries, law.times * large[array], arrays[array])
            for array, entries in hidden.items()
        }

        def outputs_of(arrays: Arrays) -> jax.Array:
            return jnp.where(rows, run(arrays, Mask(**law.mask)), 0)

        outputs, pullback = jax.vjp(outputs_of, arrays)
        (gradients,) = pullback(large["query"])
        change = _share(outputs_of({**arrays, **changed}) - outputs, outputs)
    shares = {
        array: _share(jnp.where(entries, gradients[array], 0), gradients[array])
        for array, entries in hidden.items()
    }
    limit = _GRADIENT_LIMITS.get(name, 0.0)
    leaks = [Leak(name, array, share) for array, share in shares.items() if not share <= limit]
    # A NaN is no number within a limit.
    return leaks if change <= _OUTPUT_LIMIT else [*leaks, Leak(name, "tokens", change)]


def _problem(
    variant: Variant, is_causal: bool
) -> tuple[Arrays, Arrays, Callable[[Arrays, Mask], jax.Array]]:
    """Returns arrays [B, T, ...] by name, large ones to replace entries, and what runs them."""
    rng = np.random.default_rng(1)
    drawn = check.draw(variant, (_LENGTH, _HEADS, _SIZE))
    arrays, large = (
        {
            name: jnp.asarray(
                rng.normal(0, rng.choice(spreads, (_EXAMPLES, *array.shape))), jnp.float32
            )
            for name, array in drawn.items()
            if name != "cotangent"
        }
        for spreads in ([1.0], [_TINY, _LARGE, _LARGE, _LARGE])
    )
    arrays["query"] *= np.where(_TOKENS % 3, 1, _LARGE)[:, None, None]
    host = check.Host(variant, check.LAYER, is_causal)
    params = jax.tree.map(
        lambda leaf: leaf + rng.normal(0, 0.3, leaf.shape).astype(leaf.dtype),
        host.init(jax.random.key(0), **arrays),
    )
    return arrays, large, lambda arrays, mask: host.apply(params, mask=mask, **arrays)


def _share(part: jax.Array, whole: jax.Array) -> float:
    """Returns the largest entry of a part over the largest of the whole, 0 where all are 0."""
    largest = np.abs(part).max()
    return float(largest and largest / np.abs(whole).max())
