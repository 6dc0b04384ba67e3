"""Summaries of numbers over seeds, with two intervals of the mean: Student's t and BCa.

Which interval, and why: with 3 to 20 seeds Student's t interval of the mean covers what it says,
also where the noise is mildly skewed, and the BCa bootstrap does not (COVERAGE, both measured by
`python -m tests.analysis.simulation`). So t is the interval, and BCa stands beside it.
"""

import math
from collections.abc import Sequence

import numpy as np

from analysis.statistics.results import BootstrapMethod, IntervalMethod, Summary

CONFIDENCE = 0.95
# Values this close, in units of their size, are one value with rounding error: metrics are computed
# in single precision, whose numbers are 6e-8 to 1.2e-7 of their size apart, and averaged over
# batches. Taken as different, differences of one image in 400 had p = 6e-11 for a spread of 3e-8.
ROUNDING = 1e-6
RESAMPLES = 9999
# Seeds to the share of simulated normal samples of which BCa's 95% interval held the mean
# (as the module says, 6,000 to 12,000 samples: each share to 1.2 points or better).
COVERAGE = {3: 0.72, 5: 0.84, 10: 0.91, 20: 0.93}
# Values from which on a summary has a BCa interval: below, it misses more than it promises by far.
LEAST_BCA = 10
# Resamples that are held at once, so that memory does not grow with the number of samples.
BATCH = 1000


def summarise(values: Sequence[float]) -> Summary:
    """Returns the summary of one number per seed. Raises ValueError where there is none, or
    where one is not finite."""
    array = np.asarray(values, dtype=float)
    if not array.size or not np.isfinite(array).all():
        raise ValueError(f"a summary needs finite numbers, one per seed; it was given {values}")
    bootstrap: tuple[float, float, BootstrapMethod] = (math.nan, math.nan, "none")
    if array.size >= LEAST_BCA:
        bootstrap = bootstrap_interval(array)
    bounds = (*interval(array), *bootstrap)
    if array.size > 1 and all_equal(array):
        return Summary(array.size, bounds[0], bounds[0], 0.0, *bounds)
    sd = float(array.std(ddof=1)) if array.size > 1 else math.nan
    return Summary(array.size, float(np.median(array)), float(array.mean()), sd, *bounds)


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
    mean: np.ndarray | float, error: np.ndarray | float, degrees: np.ndarray | float
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


def bootstrap_interval(values: np.ndarray) -> tuple[float, float, BootstrapMethod]:
    """Returns the 95% bootstrap interval of the mean of `values` [n], and how it was made:
    `BCa`, `percentile` where that comes out nan, `equal` (all values equal: that value), `none`
    (n = 1: nan)."""
    if values.size == 1:
        return math.nan, math.nan, "none"
    if all_equal(values):
        return float(values[0]), float(values[0]), "equal"
    low, high = map(float, resampled(values, "BCa"))
    if math.isfinite(low + high):
        return low, high, "BCa"
    low, high = map(float, resampled(values, "percentile"))
    return low, high, "percentile"


def resampled(values: np.ndarray, method: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds [...] of scipy's 95% bootstrap interval of the mean of `values`
    [..., n] by `method`, `BCa` or `percentile`; nan where that is undefined.

    BCa: Efron (1987), "Better bootstrap confidence intervals". The resamples are seeded, so that
    a table is the same each time it is printed. Means are compared to 12 digits of the largest
    value: of 3 seeds' resamples 22% hold each seed once, and whether BCa counts these as equal
    must not hang on the order of their sum.
    """
    from scipy import stats

    scale = np.abs(values).max(axis=-1, keepdims=True)
    bounds = stats.bootstrap(
        (values / scale,),
        _mean,
        n_resamples=RESAMPLES,
        batch=BATCH,
        confidence_level=CONFIDENCE,
        method=method,
        axis=-1,
        rng=np.random.default_rng(0),
    ).confidence_interval
    return bounds.low * scale[..., 0], bounds.high * scale[..., 0]


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    return np.round(values.mean(axis=axis), 12)
