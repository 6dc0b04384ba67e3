"""How often something happens to a run: rates with intervals, and whether two of them differ."""

from collections.abc import Sequence
from dataclasses import replace

from analysis.statistics.comparisons import ALPHA, holm
from analysis.statistics.intervals import CONFIDENCE
from analysis.statistics.results import Frequency, Rate, RateComparison


def rate(count: int, n: int) -> Rate:
    """Returns `count` of `n` with Wilson's 95% interval (Wilson 1927, "Probable inference, the law
    of succession, and statistical inference"), which Brown, Cai and DasGupta (2001) recommend for
    few runs: it is never empty at 0 of n. Raises ValueError unless 0 <= count <= n, n > 0."""
    from scipy import stats

    if not 0 <= count <= n or n < 1:
        raise ValueError(f"a rate needs 0 <= count <= n and n > 0; it was given {count} of {n}")
    found = stats.binomtest(count, n).proportion_ci(CONFIDENCE, method="wilson")
    return Rate(count, n, float(found.low), float(found.high))


def compare(one: Rate, baseline: Rate) -> RateComparison:
    """Returns Fisher's exact test, two-sided (Fisher 1935; scipy.stats.fisher_exact), of `one`
    against `baseline`. Runs of one seed are taken as independent, as the test's two groups are."""
    from scipy import stats

    groups = [[each.count, each.n - each.count] for each in (one, baseline)]
    return RateComparison(float(stats.fisher_exact(groups).pvalue))


def corrected(rates: Sequence[Rate], baseline: Rate) -> list[RateComparison]:
    """Returns the comparisons of all rates with the baseline's, p corrected over them (Holm)."""
    found = [compare(each, baseline) for each in rates]
    p_holm = holm([each.p for each in found])
    return [
        replace(each, p_holm=float(p), verdict=_verdict(one, baseline, float(p)))
        for one, each, p in zip(rates, found, p_holm, strict=True)
    ]


def _verdict(one: Rate, baseline: Rate, p_holm: float) -> Frequency:
    if not p_holm < ALPHA:
        return "cannot tell"
    more = one.count * baseline.n > baseline.count * one.n
    return "more often" if more else "less often"
