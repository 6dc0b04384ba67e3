"""Power laws of the loss in the number of parameters, and the parameters that one saves.

f(n) = a n^b (Kaplan et al. 2020, "Scaling laws for neural language models", eq. 1.1, with
b = -alpha and a = n_c^alpha). No irreducible loss is fitted: the three to five sizes of the
paper's study do not determine a third parameter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 9999
# From here on a fit has an interval: two points leave no residual.
LEAST_SIZES = 3


@dataclass(frozen=True)
class PowerLaw:
    """f(n) = a n^b, fitted as log f = log a + b log n.

    `covariance` [2, 2] is that of (log a, b), nan without an interval; `low` and `high` bound the
    95 % t interval of b with `freedom` = sizes - 2 degrees of freedom. `smallest` and `largest` are
    the sizes that it was fitted to.
    """

    log_a: float
    b: float
    covariance: np.ndarray
    freedom: int
    low: float
    high: float
    smallest: float
    largest: float

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


@dataclass(frozen=True)
class Saving:
    """Parameters to reach `loss`: `baseline` and `variant` n, `share` = 1 - variant / baseline.

    `low` and `high` bound the 95 % interval of the share by the parametric bootstrap, and
    `delta_low` and `delta_high` by the delta method; nan where a fit has no interval.
    """

    loss: float
    baseline: float
    variant: float
    share: float
    low: float
    high: float
    delta_low: float
    delta_high: float
    is_extrapolated: bool


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
    log_a, b = inverse @ design.T @ (weight * np.log(loss))
    residuals = np.log(loss) - design @ np.array([log_a, b])
    freedom = len(n) - 2
    variance = float(weight @ residuals**2) / freedom if freedom else math.nan
    covariance = variance * inverse
    low, high = _interval(float(b), float(covariance[1, 1]), freedom)
    return PowerLaw(
        float(log_a), float(b), covariance, freedom, low, high, float(n.min()), float(n.max())
    )


def _interval(value: float, variance: float, freedom: float) -> tuple[float, float]:
    from scipy import stats

    if not freedom or math.isnan(variance):
        return math.nan, math.nan
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(variance)
    return value - half, value + half


def saving(baseline: PowerLaw, variant: PowerLaw, loss: float) -> Saving:
    """Returns how many fewer parameters `variant` takes than `baseline` to reach `loss`.

    The two fits count as independent. Losses of the same seeds are not, quite: where both vary
    together over sizes, the interval is too wide rather than too narrow. Raises ValueError where a
    fit does not change with size.
    """
    of_baseline, of_variant = (each.log_parameters(loss) for each in (baseline, variant))
    low, high = _bootstrap(baseline, variant, loss)
    delta_low, delta_high = _delta(baseline, variant, loss)
    sizes = [each.parameters(loss) for each in (baseline, variant)]
    return Saving(
        loss=loss,
        baseline=sizes[0],
        variant=sizes[1],
        share=-math.expm1(min(of_variant - of_baseline, 700.0)),
        low=low,
        high=high,
        delta_low=delta_low,
        delta_high=delta_high,
        is_extrapolated=not (baseline.is_inside(sizes[0]) and variant.is_inside(sizes[1])),
    )


def _bootstrap(baseline: PowerLaw, variant: PowerLaw, loss: float) -> tuple[float, float]:
    """The parametric bootstrap (Efron and Tibshirani 1993, ch. 6.5): (log a, b) drawn from the
    multivariate t of each fit, RESAMPLES times, seeded; percentiles of the share."""
    if not (baseline.freedom and variant.freedom):
        return math.nan, math.nan
    random = np.random.default_rng(0)
    logs = [_draws(each, loss, random) for each in (baseline, variant)]
    shares = -np.expm1(np.minimum(logs[1] - logs[0], 700.0))
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(shares, [tail, 100 - tail])
    return float(low), float(high)


def _draws(law: PowerLaw, loss: float, random: np.random.Generator) -> np.ndarray:
    normal = random.multivariate_normal(np.zeros(2), law.covariance, RESAMPLES, method="cholesky")
    scale = np.sqrt(law.freedom / random.chisquare(law.freedom, RESAMPLES))
    log_a, b = (np.array([law.log_a, law.b]) + normal * scale[:, None]).T
    with np.errstate(divide="ignore"):
        return (math.log(loss) - log_a) / b


def _delta(baseline: PowerLaw, variant: PowerLaw, loss: float) -> tuple[float, float]:
    """The delta method on log(variant n / baseline n), with Welch and Satterthwaite's degrees of
    freedom: d log n / d log a = -1/b, d log n / d b = -log n / b."""
    if not (baseline.freedom and variant.freedom):
        return math.nan, math.nan
    variances, difference = [], variant.log_parameters(loss) - baseline.log_parameters(loss)
    for law in (baseline, variant):
        gradient = np.array([-1.0, -law.log_parameters(loss)]) / law.b
        variances.append(float(gradient @ law.covariance @ gradient))
    total = sum(variances)
    if not total:
        return -math.expm1(difference), -math.expm1(difference)
    terms = zip(variances, (baseline.freedom, variant.freedom), strict=True)
    low, high = _interval(difference, total, total**2 / sum(v**2 / f for v, f in terms))
    return -math.expm1(min(high, 700.0)), -math.expm1(min(low, 700.0))
