"""Student's t interval of a mean over seeds.

Which interval, and why: with 3 to 20 seeds Student's t interval of the mean covers what it says,
also where the noise is mildly skewed, and the BCa bootstrap does not (`bootstrap.COVERAGE`, both
measured by `python -m analysis.simulation`). So t is the interval, and BCa stands beside it.
"""

import math
from typing import Literal

import numpy as np

CONFIDENCE = 0.95
# Values this close, in units of their size, are one value with rounding error: metrics are computed
# in single precision, whose numbers are 6e-8 to 1.2e-7 of their size apart, and averaged over
# batches. Taken as different, differences of one image in 400 had p = 6e-11 for a spread of 3e-8.
ROUNDING = 1e-6

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


def tolerance(*values: np.ndarray) -> np.ndarray:
    """Returns [..., 1]: how far apart numbers computed from these `values` [..., n] may be and
    still be equal: ROUNDING times the largest, or times 1 where all are smaller, since an error
    is 1 - accuracy and has the rounding of the accuracy."""
    largest = [np.abs(each).max(axis=-1, keepdims=True) for each in values]
    return np.asarray(ROUNDING * np.maximum.reduce([np.ones_like(largest[0]), *largest]))


def all_equal(values: np.ndarray, within: float | None = None) -> bool:
    """Returns whether `values` [n] are one value, but for rounding: no more than `within` apart,
    their own `tolerance` unless given (that of differences is their terms')."""
    return bool(np.ptp(values) <= (tolerance(values).item() if within is None else within))


def merged(values: np.ndarray) -> np.ndarray:
    """Returns `values` [..., n] with those that are equal but for rounding made equal: each to
    the least of its neighbours in order that are within `tolerance`."""
    order = np.argsort(values, axis=-1)
    ascending = np.take_along_axis(values, order, axis=-1)
    new = np.diff(ascending, axis=-1, prepend=-np.inf) > tolerance(values)
    least = np.maximum.accumulate(np.where(new, ascending, -np.inf), axis=-1)
    result = np.empty_like(ascending)
    np.put_along_axis(result, order, least, axis=-1)
    return result
