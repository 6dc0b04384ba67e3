"""Hyperparameters by their AlgoPerf names: which there are, which are needed, their limits."""

from collections.abc import Mapping

from attention.table import unknown

# The least normal and the largest float32, in the nine digits that identify one: what trains is a
# float32, and a smaller number becomes 0.
LEAST, MOST = 1.17549435e-38, 3.40282347e38
# The largest float32 below 1 is 1 - STEP.
STEP = 2.0**-24


# The least and the largest allowed value.
LIMITS: dict[str, tuple[float, float]] = {
    "learning_rate": (LEAST, MOST),
    "one_minus_beta1": (STEP, 1.0),
    "beta1": (0.0, 1 - STEP),
    "beta2": (0.0, 1 - STEP),
    "epsilon": (LEAST, MOST),
    "weight_decay": (0.0, MOST),
    "warmup_factor": (0.0, 1.0),
    "label_smoothing": (0.0, 1 - STEP),
    "dropout_rate": (0.0, 1 - STEP),
    "grad_clip": (LEAST, MOST),
}
# Square root of float32's and bfloat16's least normal number. Where a gradient's square underflows,
# the second moment is 0 while the first is not, and an update is m/ε: with ε = 1e-24 up to 1e5
# where 1 is usual.
UNDERFLOW = 1.1e-19
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
        low, high = LIMITS[name]
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}; allowed: {low:.9g} ≤ {name} ≤ {high:.9g}")
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
