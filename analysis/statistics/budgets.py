"""The steps that a baseline needs for a variant's result, of a baseline trained at several budgets.

Between budgets its result is the polynomial through them in the logarithm of the steps. Where that
of the means meets the variant's mean are the steps needed. The 95 % interval holds the steps at
which a paired t-test does not tell the baseline from the variant: what each seed has there is
linear in its results at the budgets, so that the test is exact for normal noise, whatever the
budgets of a seed have in common (Fieller 1954, "Some problems in interval estimation"). Straight
lines between budgets would cover 77 to 91 % where noise is a tenth of what a doubling gains, since
curves bend (`tests/analysis/test_budgets.py`). Nothing is extrapolated: an end beyond the budgets
is 0 or infinite.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import interpolate

from analysis.statistics.comparisons import Seeds
from analysis.statistics.intervals import t_interval

# Places between the budgets: of 8-fold budgets 0.1 % apart.
_PLACES = 2001


@dataclass(frozen=True)
class Budgets:
    """A baseline's results, lower is better, over the seeds that it and a variant have.

    `steps` [m], ascending; `baseline` [m, n]; `variant` [n].
    """

    steps: np.ndarray
    baseline: np.ndarray
    variant: np.ndarray

    @property
    def turn(self) -> tuple[float, float] | None:
        """Returns the first two neighbouring budgets of which the larger is worse by a t-test at
        0.05, None where there are none: the baseline then overfits, and steps do not buy results.
        """
        worse, _ = t_interval(np.diff(self.baseline, axis=0))
        places = np.flatnonzero(worse > 0)
        return None if not len(places) else tuple(self.steps[places[0] : places[0] + 2])

    def differences(self, steps: np.ndarray) -> np.ndarray:
        """Returns the baseline's result at `steps` [...] minus the variant's, by seed, [..., n]."""
        curves = interpolate.BarycentricInterpolator(np.log(self.steps), self.baseline)
        return np.asarray(curves(np.log(steps))) - self.variant


@dataclass(frozen=True)
class Needed:
    """Steps that the baseline needs, with a 95 % interval: 0 for less than the least budget,
    infinite for more than the largest."""

    steps: float
    low: float
    high: float


def of_seeds(baseline: Mapping[float, Seeds], variant: Seeds) -> Budgets:
    """Returns the results of a baseline by its steps, over the seeds that all have.

    Raises ValueError for fewer than two budgets, or fewer than three seeds.
    """
    steps = sorted(baseline)
    seeds = sorted(set(variant).intersection(*(baseline[each] for each in steps)))
    if len(steps) < 2 or len(seeds) < 3:
        raise ValueError(
            f"{len(steps)} budget(s) of the baseline with {len(seeds)} seed(s) that all have; two "
            "budgets and three seeds are the least"
        )
    return Budgets(
        np.array(steps, float),
        np.array([[baseline[each][seed] for seed in seeds] for each in steps]),
        np.array([variant[seed] for seed in seeds]),
    )


def needed(budgets: Budgets) -> Needed:
    """Returns the steps that the baseline needs for the variant's mean result."""
    places = np.geomspace(budgets.steps[0], budgets.steps[-1], _PLACES)
    differences = budgets.differences(places)
    low, high = t_interval(differences)
    return Needed(
        _first(places, differences.mean(axis=-1) <= 0, 0.0, math.inf),
        _first(places, low <= 0, 0.0, places[-1]),
        _first(places[::-1], high[::-1] >= 0, math.inf, places[0]),
    )


def _first(places: np.ndarray, holds: np.ndarray, before: float, behind: float) -> float:
    """Returns the first place where something holds; `before` if it does from the first on,
    `behind` if nowhere."""
    if not holds.any():
        return behind
    first = int(np.argmax(holds))
    return float(places[first]) if first else before
