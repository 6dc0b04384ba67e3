"""Hyperparameters by their AlgoPerf names: which there are, which are needed, their limits."""

from collections.abc import Mapping
from typing import NamedTuple

from attention.table import unknown

# The least normal and the largest float32, in the nine digits that identify one: what trains is a
# float32, and a smaller number becomes 0.
LEAST, MOST = 1.17549435e-38, 3.40282347e38
# The largest float32 below 1 is 1 - STEP.
STEP = 2.0**-24


class Limit(NamedTuple):
    """Allowed values: low ≤ value ≤ high."""

    low: float
    high: float


LIMITS: dict[str, Limit] = {
    "learning_rate": Limit(LEAST, MOST),
    "one_minus_beta1": Limit(STEP, 1.0),
    "beta1": Limit(0.0, 1 - STEP),
    "beta2": Limit(0.0, 1 - STEP),
    "epsilon": Limit(LEAST, MOST),
    "weight_decay": Limit(0.0, MOST),
    "warmup_factor": Limit(0.0, 1.0),
    "label_smoothing": Limit(0.0, 1 - STEP),
    "dropout_rate": Limit(0.0, 1 - STEP),
    "grad_clip": Limit(LEAST, MOST),
}
_UNDERFLOW = 1.1e-19  # square root of float32's least normal number
# grad_clip has no default: without it gradients are not clipped.
REQUIRED = ("learning_rate", "beta2", "weight_decay", "warmup_factor")
DEFAULTS = {
    "label_smoothing": 0.0,
    "dropout_rate": 0.0,
    # AlgoPerf's NAdamW (algorithms/baselines/external_tuning/jax_nadamw_full_budget.py).
    "epsilon": 1e-8,
}


def complete(point: Mapping[str, float]) -> dict[str, float]:
    """Returns a point with defaults filled in and `one_minus_beta1` for `beta1`.

    Raises ValueError for an unknown, missing or impossible hyperparameter, by name.
    """
    for name, value in point.items():
        if name not in LIMITS:
            raise ValueError(unknown("hyperparameter", name, LIMITS))
        limit = LIMITS[name]
        if not limit.low <= value <= limit.high:
            raise ValueError(
                f"{name} is {value}; allowed: {limit.low:.9g} ≤ {name} ≤ {limit.high:.9g}"
            )
    if ("beta1" in point) == ("one_minus_beta1" in point):
        count = "both" if "beta1" in point else "neither"
        raise ValueError(f"give one of beta1 and one_minus_beta1; the point has {count}")
    missing = [name for name in REQUIRED if name not in point]
    if missing:
        raise ValueError(f"the point lacks {', '.join(missing)}; it has {', '.join(point)}")
    completed = {**DEFAULTS, **point}
    if "beta1" in completed:
        completed["one_minus_beta1"] = 1.0 - completed.pop("beta1")
    return {name: float(value) for name, value in completed.items()}


def is_float32(value: float) -> bool:
    """Returns whether a float32 holds a number, to its precision."""
    return value == 0 or LEAST <= abs(value) <= MOST


def epsilon_warning(epsilon: float) -> str | None:
    """Returns what to warn of for an ε, or None.

    Where a gradient's square underflows (below 1.1e-19 in float32 and bfloat16, whose smallest
    normal number is 1.2e-38), the second moment is 0 while the first is not, and an update is
    m/ε: with ε = 1e-24 up to 1e5 where 1 is usual.
    """
    if epsilon >= _UNDERFLOW:
        return None
    return (
        f"epsilon={epsilon:g}: gradients below {_UNDERFLOW:.0e} square to 0, and their updates "
        f"reach {_UNDERFLOW / epsilon:.0e} times the learning rate (1 is usual)"
    )
