"""What the file of a mixer, modifier or kernel holds: one record, found by its name.

The line in `attention.table` says what must be known without JAX; the record is the code. Whoever
needs something of a mixer looks it up here: nothing else lists mixers, modifiers or kernels.
"""

import dataclasses
import importlib
from collections.abc import Callable, Container, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import numpy as np

from attention import table

Array = jax.Array
Leaves = Mapping[str, Mapping[str, np.ndarray]]
Record = TypeVar("Record")


class Inputs(NamedTuple):
    """One attention call as modifiers may change it, before there are logits.

    query [..., T, H, D], key [..., S, H, D], value [..., S, H, Dv]; bias and mask (True where a
    query may look) broadcast to [..., H, T, S] or are None; is_causal: query t sees keys 0..t,
    too. temperature: logits are divided by it. A modifier that adds keys brings mask and bias
    along, and puts causality into the mask.

    Of formulas: float64, without a batch; bias and mask are whole, [H, T, S].
    """

    query: Any
    key: Any
    value: Any
    bias: Any = None
    mask: Any = None
    is_causal: bool = False
    temperature: float = 1.0


class Exact(NamedTuple):
    """What a mixer's formula gives, float64: output [T, H, Dv], and gradients for a cotangent.

    logits [H, T, S], value [S, H, Dv]: gradients with respect to them. learned: those of the
    mixer's own leaves, by module and name. sizes: what an error in a module's gradient is measured
    by where that is not its own norm (terms of both signs may cancel to any small number).
    """

    output: np.ndarray
    logits: np.ndarray
    value: np.ndarray
    learned: Mapping[str, Mapping[str, Any]] = {}
    sizes: Mapping[str, float] = {}


@dataclasses.dataclass(frozen=True)
class Weighting:
    """How a row of logits becomes weights.

    weights(logits) maps [..., H, T, S], float32 with hidden entries at the lowest finite number, to
    weights, hidden ones 0; what a row that sees nothing becomes does not matter. backward(weights,
    gradient) turns a gradient with respect to the weights into one with respect to the logits.
    jacobian_norm(weights): the Frobenius norm of each row's Jacobian, [..., H, T], for diagnostics.
    normalised: rows sum to 1.
    """

    weights: Callable[[Array], Array]
    backward: Callable[[Array, Array], Array]
    jacobian_norm: Callable[[Array], Array]
    normalised: bool


@dataclasses.dataclass(frozen=True)
class Mixer:
    """How a mixer attends, and all that is asked about it.

    attend(query, key, value, **settings): its arithmetic, settings as in
    `attention.kernels.inputs.Settings`, and its hyperparameters unless `learned` takes them;
    returns [..., T, H, Dv].

    formula(logits, mask, value, cotangent) -> Exact: its definition for the oracle, in numpy and
    float64, sharing no code with attend. logits, mask [H, T, S]; value [S, H, Dv]; cotangent
    [T, H, Dv], or None where the output alone is wanted (the gradients may be anything then). Rows
    that see nothing return 0.

    weighting: its weights, for diagnostics; None where it is not made of such weights.

    host_mean(weighted_sum, value, masks, *, dtype, span, sums_to_one): its output by the weighted
    mean of a model that keeps its own softmax (arguments as in `standard.weighted_mean`); None
    where that mean cannot make it.

    learned(attend, *, head_size, depth, dtype, **hyperparameters): what attend, or host_mean, is
    given and followed by where the mixer has leaves of its own; called in a Flax module's compact
    method, `attend` wanting what is learned as keywords. learned_formula(formula, cotangent,
    leaves, *, depth, **hyperparameters) -> Exact is the same around `formula`, which it is given
    as a function of the cotangent.

    bfloat16_allowance: factor on the error limits in bfloat16, with its reason beside it.
    snippet(query, key, value): somebody else's code of the same, shown beside ours by `check`.
    """

    attend: Callable[..., Array]
    formula: Callable[..., Exact]
    weighting: Weighting | None = None
    host_mean: Callable[..., Array] | None = None
    learned: Callable[..., Array] | None = None
    learned_formula: Callable[..., Exact] | None = None
    bfloat16_allowance: float = 1.0
    snippet: Callable[..., Array] | None = None


@dataclasses.dataclass(frozen=True)
class Modifier:
    """What a modifier changes, and where.

    apply(given, **hyperparameters) returns what takes the place of `given`, by `acts_on`:
    'inputs': an `Inputs`, in a Flax module's compact method, where learned leaves are made;
    'logits': [..., H, T, S], float32, scaled, before bias and mask; without learned leaves,
    element by element; 'output': [..., T, H, Dv], as 'inputs'.

    formula(given, leaves, **hyperparameters) -> (result, pullback) is the same in numpy and
    float64; pullback(gradient of the result) -> (gradient of what was given, gradients of leaves
    by module and name[, their sizes, as in `Exact`]). The gradient of an `Inputs` is an `Inputs` of
    gradients.

    adds_keys: its result has more keys than `given`. It acts after all others of 'inputs', which
    must see the model's own keys alone.

    bfloat16_allowance: as of a `Mixer`.
    """

    acts_on: Literal["inputs", "logits", "output"]
    apply: Callable[..., Any]
    formula: Callable[..., tuple[Any, Callable[[Any], tuple[Any, ...]]]]
    adds_keys: bool = False
    bfloat16_allowance: float = 1.0


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Who computes the weighted sum.

    call(problem, value) returns that of value [..., S, H, Dv] for an `inputs.Problem`, [..., T, H,
    Dv], or raises ValueError naming a kernel that can. span: the widest channel, in nats, whose
    centred exponentials survive its backward pass (`attention.kernels.shift`). float32_sums: the
    sum is float32 until the mixer is done with it, whatever the inputs. log_mean_exp(problem,
    value): LASER's whole arithmetic, [..., T, H, Dv] in the value's dtype, of a kernel that has it.
    bfloat16_allowance: as of a `Mixer`.
    """

    call: Callable[[Any, Array], Array]
    span: float
    float32_sums: bool
    log_mean_exp: Callable[[Any, Array], Array] | None = None
    bfloat16_allowance: float = 1.0


class Applied(NamedTuple):
    """A function of logits with its hyperparameters; equal to another that computes the same."""

    function: Callable[..., Array]
    hyperparameters: tuple[tuple[str, Any], ...]

    def __call__(self, logits: Array) -> Array:
        return self.function(logits, **dict(self.hyperparameters))


def mixer(name: str) -> Mixer:
    """Returns the record of a mixer in the table. Raises ValueError where it has no code."""
    return _record(f"attention.mixers.{name}:MIXER", Mixer, f"mixer {name!r}")


def modifier(name: str) -> Modifier:
    """Returns the record of a modifier in the table. Raises ValueError where it has no code."""
    return _record(f"attention.modifiers.{name}:MODIFIER", Modifier, f"modifier {name!r}")


def in_order(modifiers: Container[str]) -> list[str]:
    """Returns modifiers in the order in which they act: the table's, but new keys come last."""
    listed = [name for name in table.MODIFIERS if name in modifiers]
    return sorted(listed, key=lambda name: modifier(name).adds_keys)


def kernel(name: str) -> Kernel:
    """Returns the record of a kernel. Raises ValueError that lists the kernels."""
    if name not in table.KERNELS:
        raise ValueError(table.unknown("kernel", name, table.KERNELS))
    return _record(table.KERNELS[name].record, Kernel, f"kernel {name!r}")


def _record(reference: str, kind: type[Record], what: str) -> Record:
    module, name = reference.split(":")
    missing = f"{what} has no code: attention/table.py has its line, and {reference} is no record"
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ValueError(missing) from error
    if not isinstance(found, kind):
        raise ValueError(missing)
    return found
