"""What attention variants are measured against: their formulas in float64.

The formulas are those of the records (`attention.records`), plain numpy that shares no code with
the arithmetic. Here is what stands around them: logits, modifiers in their order, and the chain
rule back to query, key, value and every learned leaf. Learned factors come as the parameter tree
that a host of the variant has, so that one set of numbers goes through Flax and through here.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from attention import records, table
from attention.records import Exact, Inputs, Leaves
from attention.variant import Variant

Float64 = np.ndarray
# A modifier's formula with everything but what it changes.
Step = Callable[[Any], tuple[Any, Callable[[Any], tuple[Any, ...]]]]


class Gradients(NamedTuple):
    """Gradients with the shapes of query, key and value, float64."""

    query: Float64
    key: Float64
    value: Float64


class Result(NamedTuple):
    """Output [T, H, Dv], gradients for the cotangent given, and those of learned leaves, float64.

    `sizes` is what an error in each module of `learned` is measured by: the norm of the gradient,
    or what the mixer's formula says (`Exact.sizes`).
    """

    output: Float64
    gradients: Gradients
    learned: Mapping[str, Mapping[str, Any]]
    sizes: Mapping[str, float]


def attend(
    mixer: str,
    query: Any,
    key: Any,
    value: Any,
    cotangent: Any,
    *,
    scale: float | None = None,
    mask: np.ndarray | None = None,
    **learned: Any,
) -> Result:
    """Returns output and gradients of a mixer alone; `learned` is what its `attend` is given (λ).

    query [T, H, D], key and value [S, H, D], cotangent [T, H, D]; mask broadcasts to [H, T, S].
    Inputs are taken as they are: pass the rounded bfloat16 values to judge arithmetic, not
    rounding of the inputs. Rows that see nothing return 0.
    """
    formula = functools.partial(records.mixer(mixer).formula, **learned)
    return _result(
        lambda plain, g: plain(g), formula, {}, (query, key, value, cotangent), mask, scale
    )


def compute(
    variant: Variant,
    leaves: Leaves,
    arrays: Iterable[Any],
    mask: np.ndarray | None,
    depth: int = 0,
) -> Result:
    """Returns a variant's result for query, key, value [T, H, D] and a cotangent, in float64.

    `leaves` is its host's parameter tree, in which it finds its own; mask as in `attend`.
    """
    wide = {
        module: {name: np.asarray(leaf, np.float64) for name, leaf in group.items()}
        for module, group in leaves.items()
    }
    steps: dict[str, list[Step]] = {}
    for name in records.in_order(variant.modifiers):
        modifier, given = records.modifier(name), _given(variant, table.MODIFIERS[name])
        step = functools.partial(modifier.formula, leaves=wide, **given)
        steps.setdefault(modifier.acts_on, []).append(step)
    mixer, given = records.mixer(variant.mixer), _given(variant, table.MIXERS[variant.mixer])

    def around(plain: Callable[..., Exact], g: Float64) -> Exact:
        if mixer.learned_formula is None:
            return plain(g, **given)
        return mixer.learned_formula(plain, g, wide, depth=depth, **given)

    return _result(around, mixer.formula, steps, arrays, mask)


def _given(variant: Variant, entry: table.MixerEntry | table.ModifierEntry) -> dict[str, Any]:
    return {key: getattr(variant, key) for key in entry.hyperparameters}


def _result(
    around: Callable[[Callable[..., Exact], Float64], Exact],
    formula: Callable[..., Exact],
    steps: Mapping[str, list[Step]],
    arrays: Iterable[Any],
    mask: np.ndarray | None,
    scale: float | None = None,
) -> Result:
    """Returns `around` a mixer's formula, of the logits that modifiers leave, differentiated."""
    query, key, value, g = (np.asarray(array).astype(np.float64) for array in arrays)
    queries, heads, size = query.shape
    shape = (heads, queries, len(key))
    mask = np.broadcast_to(True if mask is None else mask, shape)
    inputs, of_inputs = _chain(
        steps.get("inputs", []), Inputs(query, key, value, np.zeros(shape), mask)
    )
    scale = (size**-0.5 if scale is None else scale) / inputs.temperature
    scores = scale * np.einsum("thd,shd->hts", inputs.query, inputs.key, optimize=True)
    scores, of_logits = _chain(steps.get("logits", []), scores)
    sees = inputs.mask.any(-1).T[..., None]

    def plain(g: Float64, **learned: Any) -> Exact:
        return formula(scores + inputs.bias, inputs.mask, inputs.value, g * sees, **learned)

    exact = around(plain, g)
    output, of_output = _chain(steps.get("output", []), exact.output)
    learned: dict[str, Mapping[str, Any]] = {}
    sizes: dict[str, float] = {}
    g = of_output(g, learned, sizes)
    if steps.get("output"):
        exact = around(plain, g)
    score_bar = of_logits(exact.logits, learned, sizes)
    bars = Inputs(
        scale * np.einsum("hts,shd->thd", score_bar, inputs.key, optimize=True),
        scale * np.einsum("hts,thd->shd", score_bar, inputs.query, optimize=True),
        exact.value,
        exact.logits,
    )
    learned |= exact.learned
    sizes |= exact.sizes
    bars = of_inputs(bars, learned, sizes)
    sizes = {module: sizes.get(module, _norm(group)) for module, group in learned.items()}
    return Result(output, Gradients(bars.query, bars.key, bars.value), learned, sizes)


def _chain(steps: list[Step], given: Any) -> tuple[Any, Callable[..., Any]]:
    """Returns what the steps make of `given`, one after the other, and the pullback of all.

    The latter adds gradients of leaves, and their sizes, to the dictionaries that it is given.
    """
    pullbacks = []
    for step in steps:
        given, pullback = step(given)
        pullbacks.append(pullback)

    def pullback_of_all(bar: Any, learned: dict[str, Any], sizes: dict[str, float]) -> Any:
        for pullback in reversed(pullbacks):
            bar, found, *of_found = pullback(bar)
            learned |= found
            for one in of_found:
                sizes |= one
        return bar

    return given, pullback_of_all


def output(
    mixer: str,
    query: Float64,
    key: Float64,
    value: Float64,
    *,
    mask: np.ndarray | None = None,
) -> Float64:
    """Returns the output of `attend` alone, [T, H, D], for a mixer without learned arguments.

    Without the products of the backward pass, and in the memory of one head's T × S weights.
    """
    q, k, v = (np.asarray(array, np.float64) for array in (query, key, value))
    every = np.broadcast_to(True if mask is None else mask, (q.shape[1], len(q), len(k)))
    formula, outputs = records.mixer(mixer).formula, []
    for head in range(q.shape[1]):
        logits = q.shape[-1] ** -0.5 * (q[:, head] @ k[:, head].T)
        one = formula(logits[None], every[head, None], v[:, head, None], None)
        outputs.append(one.output[:, 0])
    return np.stack(outputs, axis=1)


def _norm(group: Mapping[str, Any]) -> float:
    return float(np.sqrt(sum((np.asarray(leaf) ** 2).sum() for leaf in group.values())))


def learned_error(gradients: Mapping[str, Mapping[str, Any]], reference: Result) -> float:
    """Returns the largest ‖ours − reference‖/size over the modules of `reference.learned`.

    NaN where one of them is.
    """
    errors = []
    for module, group in reference.learned.items():
        difference = {
            name: np.asarray(gradients[module][name], np.float64) - leaf
            for name, leaf in group.items()
        }
        errors.append(_norm(difference) / reference.sizes[module])
    return float(np.max(errors))


def relative_error(measured: object, reference: Float64) -> float:
    """Returns ‖measured − reference‖ / ‖reference‖ (Frobenius), computed in float64."""
    difference = np.asarray(measured).astype(np.float64) - reference
    return float(np.linalg.norm(difference) / np.linalg.norm(reference))
