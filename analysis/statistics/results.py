"""What the statistics of seeds are: the summary of one variant, its comparison with another."""

import math
from dataclasses import dataclass
from typing import Literal

IntervalMethod = Literal["t", "equal", "none"]
BootstrapMethod = Literal["BCa", "percentile", "equal", "none"]
Test = Literal["t", "sign", "permutation", "none"]
Verdict = Literal["better", "worse", "cannot tell"]
Frequency = Literal["more often", "less often", "cannot tell"]


@dataclass(frozen=True)
class Summary:
    """n values over seeds. `sd` has n - 1 in its denominator, nan for n = 1.

    `low` and `high` bound the 95% interval of the mean by `method`: `t` (Student's), `equal` (all
    values equal: that value), `none` (n = 1: no interval, nan). `bca_low` and `bca_high` bound
    the bootstrap's by `bca_method`: `BCa`, `percentile` (BCa came out nan), `equal`, or `none`
    below `intervals.LEAST_BCA` values, of which it says too little.
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
    paired differences, else the pooled one; `effect` is `difference` in units of `sd`, d_z or g by
    `effect_kind` (`comparisons.standardised`); both nan where undefined. `baseline` is the mean of
    the baseline's runs that are compared. `withheld` is why there is no verdict in spite of
    `p_holm`: `lost seeds` or `lengths` (`compare/verdict_rules.py`), else empty.
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
    baseline: float = math.nan
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

    @property
    def is_partial(self) -> bool:
        """Returns whether runs are left out: those whose seed only one of the two has."""
        return self.is_paired and self.pairs < max(self.n, self.n_baseline)

    @property
    def effect_kind(self) -> str:
        """Returns the unit of `effect`: `d_z`, sds of paired differences, or `g`, pooled sds."""
        return "d_z" if self.is_paired else "g"


@dataclass(frozen=True)
class Rate:
    """`count` of `n` runs, and the 95% interval of the probability behind it."""

    count: int
    n: int
    low: float
    high: float


@dataclass(frozen=True)
class RateComparison:
    """A variant's rate against the baseline's: two-sided `p`, `p_holm` corrected over the variants
    compared, and what follows from it at 0.05."""

    p: float
    p_holm: float = math.nan
    verdict: Frequency = "cannot tell"


@dataclass(frozen=True)
class Estimate:
    """A number and the bounds of its 95% interval, nan where undefined."""

    value: float
    low: float
    high: float
