"""Statistics over seeds: summaries with intervals, Holm's correction, verdicts.

Comparisons with a baseline are made in `comparisons.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from analysis.statistics import bootstrap, confidence
from analysis.statistics.bootstrap import BootstrapMethod
from analysis.statistics.confidence import IntervalMethod

ALPHA = 0.05

Test = Literal["t", "sign", "permutation", "none"]
Verdict = Literal["better", "worse", "cannot tell"]


@dataclass(frozen=True)
class Summary:
    """n values over seeds. `sd` has n - 1 in its denominator, nan for n = 1.

    `low` and `high` bound the 95% interval of the mean by `method`: `t` (Student's), `equal` (all
    values equal: that value), `none` (n = 1: no interval, nan). `bca_low` and `bca_high` bound
    the bootstrap's by `bca_method`: `BCa`, `percentile` (BCa came out nan), `equal` or `none`.
    """

    n: int
    median: float
    mean: float
    sd: float
    low: float
    high: float
    method: IntervalMethod
    bca_low: float
    bca_high: float
    bca_method: BootstrapMethod


@dataclass(frozen=True)
class Comparison:
    """A variant against the baseline: over the `pairs` seeds that both have, or (`pairs` = 0)
    over `n` seeds of the one and `n_baseline` of the other.

    `difference` is the mean of variant minus baseline, `low` and `high` its 95% interval (not
    corrected). `p` is two-sided; `p_holm` is corrected over the variants; both nan where `test`
    is `none`. `test` is `t` (paired), `sign` (paired, all differences equal, t undefined: exact
    sign flips), or `permutation` (not paired; p is Welch's t-test's where that is larger).
    `smallest_p` is the least that the test can give at these n, 0 for t. `sd` is that of the
    paired differences, else the pooled one; `effect` is Hedges' g, `difference` in units of `sd`
    (`effect_size.py`); both nan where undefined. `withheld` is why there is no verdict in spite
    of `p_holm`: `lost seeds` or `lengths` (`withheld.py`), else empty.
    """

    pairs: int
    difference: float
    low: float
    high: float
    p: float
    test: Test
    p_holm: float = math.nan
    verdict: Verdict = "cannot tell"
    n: int = 0
    n_baseline: int = 0
    sd: float = math.nan
    effect: float = math.nan
    smallest_p: float = math.nan
    withheld: str = ""

    @property
    def is_tested(self) -> bool:
        """Returns whether there is a p-value."""
        return self.test != "none"

    @property
    def seeds(self) -> str:
        """Returns over how many: `3` that both have, or `3 v 5` of the two."""
        return str(self.pairs) if self.is_paired else f"{self.n} v {self.n_baseline}"

    @property
    def is_paired(self) -> bool:
        """Returns whether it is over shared seeds."""
        return self.pairs > 0


def summarise(values: Sequence[float]) -> Summary:
    """Returns the summary of one number per seed. Raises ValueError where there is none, or
    where one is not finite."""
    array = np.asarray(values, dtype=float)
    if not array.size or not np.isfinite(array).all():
        raise ValueError(f"a summary needs finite numbers, one per seed; it was given {values}")
    bounds = (*confidence.interval(array), *bootstrap.interval(array))
    if array.size > 1 and confidence.all_equal(array):
        return Summary(array.size, bounds[0], bounds[0], 0.0, *bounds)
    sd = float(array.std(ddof=1)) if array.size > 1 else math.nan
    return Summary(array.size, float(np.median(array)), float(array.mean()), sd, *bounds)


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns p-values [..., m] corrected for their number, in the order given; nan stays nan
    and is not counted. Holm (1979), "A simple sequentially rejective multiple test procedure":
    the i-th smallest of m (from 0) times m - i, at most 1, never below a smaller one's."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, axis=-1)
    ascending = np.take_along_axis(p, order, axis=-1)
    defined = np.sum(~np.isnan(p), axis=-1, keepdims=True)
    stepped = np.minimum(1.0, ascending * (defined - np.arange(p.shape[-1])))
    # nan sorts last, so what is accumulated before it stays defined.
    corrected = np.empty_like(p)
    np.put_along_axis(corrected, order, np.maximum.accumulate(stepped, axis=-1), axis=-1)
    return corrected


def verdict(difference: float, p_holm: float, lower_is_better: bool) -> Verdict:
    """Returns better or worse where the corrected p-value is below 0.05, else cannot tell."""
    if not p_holm < ALPHA:
        return "cannot tell"
    return "better" if (difference < 0) == lower_is_better else "worse"


def judged(comparisons: Sequence[Comparison], lower_is_better: bool) -> list[Comparison]:
    """Returns the comparisons with `p_holm` corrected over them all, and the verdicts."""
    corrected = holm([comparison.p for comparison in comparisons])
    return [
        replace(
            comparison,
            p_holm=float(p_holm),
            verdict=verdict(comparison.difference, float(p_holm), lower_is_better),
        )
        for comparison, p_holm in zip(comparisons, corrected, strict=True)
    ]
