"""Power: the smallest difference that n seeds can show, and the seeds that a difference needs.

Exact for normal noise, by the noncentral t distribution: Cohen (1988), "Statistical power analysis
for the behavioral sciences", chapter 2; as in statsmodels' TTestPower and TTestIndPower, which
give nan at some shifts (effect in standard errors) above 3.6.
"""

import math

POWER = 0.8
# More are more than anybody trains, and far more make scipy's t distribution overflow.
MOST_SEEDS = 10_000
# In standard errors: beyond it power is 1 at any level of ours, and from 1e12 scipy gives nan.
_LARGEST_SHIFT = 1e9


def power_at(
    effect: float,
    sd: float,
    n: int,
    alpha: float,
    paired: bool = True,
    n_baseline: int | None = None,
) -> float:
    """Returns the probability that the two-sided t-test at `alpha` finds a true difference.

    `effect` and `sd` have the same unit. Paired: `sd` is that of the differences over `n` seeds.
    Not paired: that of either group, of `n` and `n_baseline` seeds (`n` unless given). Raises
    ValueError where `n` is below 2, `sd` is not above 0, or the power is undefined (an `effect` or
    `alpha` that is nan).
    """
    from scipy import stats

    m = n_baseline or n
    if min(n, m) < 2 or not sd > 0:
        raise ValueError(f"power needs n > 1 seeds and sd > 0; it was given n = {n}, sd = {sd}")
    degrees = n - 1 if paired else n + m - 2
    shift = abs(effect) / (sd * math.sqrt(1 / n if paired else 1 / n + 1 / m))
    limit = stats.t.isf(alpha / 2, degrees)
    # Of -effect, whose power is the same: of a positive shift scipy's lower tail is nan from 3.6 on
    # and its upper one at some from 37 on, of a negative one neither.
    mirrored = -min(shift, _LARGEST_SHIFT)
    found = float(stats.nct.cdf(-limit, degrees, mirrored) + stats.nct.sf(limit, degrees, mirrored))
    if math.isnan(found):
        raise ValueError(f"no power for effect = {effect}, sd = {sd}, n = {n}, alpha = {alpha}")
    return found


def detectable(
    sd: float,
    n: int,
    alpha: float,
    power: float = POWER,
    paired: bool = True,
    n_baseline: int | None = None,
) -> float:
    """Returns the smallest true difference, in the unit of `sd`, that the test finds with
    probability `power`; arguments and errors as for the function `power`."""
    from scipy import optimize

    def missing(effect: float) -> float:
        return power_at(effect, 1.0, n, alpha, paired, n_baseline) - power

    if not sd > 0:
        raise ValueError(f"a detectable difference needs sd > 0; it was given {sd}")
    most = 1.0
    while missing(most) < 0:
        most *= 2
    return sd * float(optimize.brentq(missing, 0.0, most, xtol=1e-12))


def seeds_needed(
    effect: float, sd: float, alpha: float, power: float = POWER, paired: bool = True
) -> int | None:
    """Returns the fewest seeds (not paired: of either group) with which the test finds a true
    difference of `effect` with probability `power`, at least 2; None where MOST_SEEDS do not.

    Raises ValueError for an effect of 0, which no number of seeds finds, and as `power` does.
    """
    if not abs(effect) > 0:
        raise ValueError(f"no number of seeds finds a difference of {effect}")

    def enough(n: int) -> bool:
        return power_at(effect, sd, n, alpha, paired) >= power

    if not enough(MOST_SEEDS):
        return None
    least, most = 2, MOST_SEEDS
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if enough(middle) else (middle + 1, most)
    return most
