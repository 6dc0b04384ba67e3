"""Power laws of the loss in the number of parameters.

f(n) = a n^b (Kaplan et al. 2020, "Scaling laws for neural language models", eq. 1.1, with
b = -alpha and a = n_c^alpha). No irreducible loss is fitted: the three to five sizes of the
paper's study do not determine a third parameter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.statistics.intervals import t_bounds

# From here on a fit has an interval: two points leave no residual.
LEAST_SIZES = 3


@dataclass(frozen=True)
class PowerLaw:
    """f(n) = a n^b, fitted as log f = log a + b log n.

    `covariance` [2, 2] is that of (log a, b), nan without an interval; `low` and `high` bound the
    95 % t interval of b with `freedom` = points - 2 degrees of freedom, 0 for fewer than
    LEAST_SIZES distinct sizes. `sizes` is their number, `smallest` and `largest` the ends of what
    was fitted. `residuals` [points] of the logs, times the root of the weights, and `solve`
    [2, points], which takes such residuals to errors of (log a, b), are in the order given.
    """

    log_a: float
    b: float
    covariance: np.ndarray
    freedom: int
    low: float
    high: float
    smallest: float
    largest: float
    sizes: int
    residuals: np.ndarray
    solve: np.ndarray

    @property
    def a(self) -> float:
        """Returns a."""
        return math.exp(self.log_a)

    def loss(self, parameters: float) -> float:
        """Returns f(n)."""
        return math.exp(self.log_a + self.b * math.log(parameters))

    def log_parameters(self, loss: float) -> float:
        """Returns log n with f(n) = `loss`. Raises ValueError where f does not change."""
        if self.b == 0.0:
            raise ValueError("a fit with b = 0 reaches one loss only, at every size")
        return (math.log(loss) - self.log_a) / self.b

    def parameters(self, loss: float) -> float:
        """Returns n with f(n) = `loss`, inf beyond the floats' range. Raises ValueError where f
        does not change."""
        try:
            return math.exp(self.log_parameters(loss))
        except OverflowError:
            return math.inf

    def is_inside(self, parameters: float) -> bool:
        """Returns whether a size lies within those that were fitted."""
        return self.smallest <= parameters <= self.largest


def fit(
    parameters: Sequence[float], losses: Sequence[float], weights: Sequence[float] | None = None
) -> PowerLaw:
    """Returns the fit to one point per size by least squares on the logs.

    `losses` are positive, each a geometric mean over seeds where there are several, `weights` the
    numbers of seeds (1 each unless given): an error variance of s^2 / weight, s from the residuals.
    As scipy.stats.linregress with equal weights. Raises ValueError for fewer than two sizes, or
    numbers that have no logarithm.
    """
    n, loss = np.asarray(parameters, float), np.asarray(losses, float)
    weight = np.ones_like(n) if weights is None else np.asarray(weights, float)
    if len(np.unique(n)) < 2:
        raise ValueError(f"a power law needs two sizes or more; it was given {sorted(set(n))}")
    if not (np.isfinite(n) & (n > 0) & np.isfinite(loss) & (loss > 0) & (weight > 0)).all():
        raise ValueError(f"sizes, losses and weights must be above 0: {n}, {loss}, {weight}")
    design = np.stack([np.ones_like(n), np.log(n)], axis=1)
    inverse = np.linalg.inv(design.T @ (weight[:, None] * design))
    root = np.sqrt(weight)
    solve = inverse @ design.T * root
    log_a, b = solve @ (root * np.log(loss))
    residuals = root * (np.log(loss) - design @ np.array([log_a, b]))
    sizes = len(np.unique(n))
    freedom = len(n) - 2 if sizes >= LEAST_SIZES else 0
    variance = float(residuals @ residuals) / freedom if freedom else math.nan
    covariance = variance * inverse
    low, high = log_interval(float(b), float(covariance[1, 1]), freedom)
    return PowerLaw(
        log_a=float(log_a),
        b=float(b),
        covariance=covariance,
        freedom=freedom,
        low=low,
        high=high,
        smallest=float(n.min()),
        largest=float(n.max()),
        sizes=sizes,
        residuals=residuals,
        solve=solve,
    )


def joint_covariance(first: PowerLaw, second: PowerLaw, is_paired: bool) -> np.ndarray:
    """Returns the covariance [4, 4] of (log a, b) of `first`, then of `second`.

    Between the two it is 0 unless `is_paired`: the k-th points of both then share what moved them,
    by the covariance of their residuals (seemingly unrelated regressions, Zellner 1962, "An
    efficient method of estimating seemingly unrelated regressions", J. Am. Stat. Assoc. 57).
    """
    between = np.zeros((2, 2))
    if is_paired:
        shared = float(first.residuals @ second.residuals) / first.freedom
        between = shared * first.solve @ second.solve.T
    return np.block([[first.covariance, between], [between.T, second.covariance]])


def log_interval(value: float, variance: float, freedom: float) -> tuple[float, float]:
    """Returns the 95 % interval of Student's t around `value`, nan without degrees of freedom."""
    if not freedom or math.isnan(variance):
        return math.nan, math.nan
    low, high = t_bounds(value, math.sqrt(variance), freedom)
    return float(low), float(high)
