"""Effect size: a difference in units of a standard deviation over seeds."""

import math

import numpy as np


def correction(degrees: int) -> float:
    """Returns the factor that makes a standardised difference with `degrees` of freedom unbiased,
    nan below 2, where its mean does not exist.

    Hedges (1981), "Distribution theory for Glass's estimator of effect size and related
    estimators", eq. 6e: J(v) = Gamma(v / 2) / (sqrt(v / 2) Gamma((v - 1) / 2)).
    """
    if degrees < 2:
        return math.nan
    ratio = math.lgamma(degrees / 2) - math.lgamma((degrees - 1) / 2)
    return math.exp(ratio) / math.sqrt(degrees / 2)


def hedges(difference: float, sd: float, degrees: int) -> float:
    """Returns Hedges' g = J(degrees) difference / sd, nan where sd is 0 or undefined.

    Paired by seed: sd of the n differences, degrees n - 1 (Cohen's d_z, corrected), so that it
    says how far the difference stands above the noise that pairing leaves. Not paired: the
    pooled sd of both groups, degrees n + m - 2.
    """
    return correction(degrees) * difference / sd if sd > 0 else math.nan


def pooled_sd(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the pooled standard deviation of `first` [n] and `second` [m], each n > 1: the root
    of ((n - 1) s^2 + (m - 1) t^2) / (n + m - 2)."""
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in (first, second))
    return math.sqrt(squares / (len(first) + len(second) - 2))
