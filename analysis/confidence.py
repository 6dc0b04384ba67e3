"""Student's t interval of a mean over seeds.

Which interval, and why: with 3 to 20 seeds Student's t interval of the mean covers what it says,
also where the noise is mildly skewed, and the BCa bootstrap does not (`bootstrap.COVERAGE`, both
measured by `python -m analysis.simulation`). So t is the interval, and BCa stands beside it.
"""

import math
from typing import Literal

import numpy as np

CONFIDENCE = 0.95
# Values this close are one value with rounding error: 0.1 apart, 1 - 0.9 is off by 3e-17.
ROUNDING = 1e-12

IntervalMethod = Literal["t", "equal", "none"]


def interval(values: np.ndarray) -> tuple[float, float, IntervalMethod]:
    """Returns the 95% interval of the mean of `values` [n], and how it was made."""
    if values.size == 1:
        return math.nan, math.nan, "none"
    if all_equal(values):
        return float(values[0]), float(values[0]), "equal"
    low, high = t_interval(values)
    return float(low), float(high), "t"


def t_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds [...] of the 95% interval of the mean of `values` [..., n], n > 1.

    Student (1908), "The probable error of a mean": mean +- t(n - 1) sd / sqrt(n).
    """
    n = values.shape[-1]
    error = values.std(axis=-1, ddof=1) / math.sqrt(n)
    return t_bounds(values.mean(axis=-1), error, n - 1)


def t_bounds(
    mean: np.ndarray, error: np.ndarray, degrees: np.ndarray | int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds [...] of the 95% interval about `mean` [...], whose standard error is
    `error` [...] with `degrees` [...] of freedom."""
    from scipy import stats

    half = stats.t.ppf((1 + CONFIDENCE) / 2, degrees) * error
    return mean - half, mean + half


def all_equal(values: np.ndarray) -> bool:
    """Returns whether `values` [n] are one value, but for rounding."""
    return bool(np.ptp(values) <= ROUNDING * max(1.0, float(np.abs(values).max())))
