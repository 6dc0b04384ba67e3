"""How many times faster than the baseline: ratios of steps or seconds to a target."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.statistics.comparisons import paired_seeds, welch_interval
from analysis.statistics.intervals import t_interval

Method = Literal["paired", "Welch", "medians", "none", "units"]


@dataclass(frozen=True)
class SpeedUp:
    """Baseline's over the variant's: 1.1 is a ratio of 1.1, that is 9.1 % less time.

    `low` and `high` bound the 95% interval, nan where there is none. `method`: `paired`, the t
    interval of the mean log ratio over shared seeds; `Welch`, of the difference of mean logs
    where most seeds are not shared; `medians`, the ratio of the two medians, without an interval,
    where a seed never reached the target or there is one pair; `none`, no ratio; `units`, none
    either, as the two sides count different things. `n`: how many pairs
    there are, or, where runs are not paired, the smaller number of seeds.
    """

    ratio: float
    low: float
    high: float
    n: int
    method: Method


NONE = SpeedUp(math.nan, math.nan, math.nan, 0, "none")
OTHER_UNITS = dataclasses.replace(NONE, method="units")


def of(values: Mapping[int, float], baseline: Mapping[int, float], paired: bool = True) -> SpeedUp:
    """Returns the speed-up of `values` over `baseline`, seed to steps or seconds.

    inf is a seed that never reached the target. Leaving such a seed out would flatter the slower
    side, whether or not the other side has that seed: there is no interval then, the medians are
    over all seeds of each side, and there is no ratio where one is not finite. nan is a seed whose
    time is unknown, left out. `paired` says whether equal seeds belong together; they are paired
    where most are shared (`comparisons.paired_seeds`).
    """
    ours, theirs = _known(values), _known(baseline)
    shared = paired_seeds(ours, theirs, paired)
    n = len(shared) or min(len(ours), len(theirs))
    is_known = all(math.isfinite(value) for side in (ours, theirs) for value in side.values())
    if shared and is_known:
        ours, theirs = ({seed: side[seed] for seed in shared} for side in (ours, theirs))
    mine, base = (np.array([*side.values()], dtype=float) for side in (ours, theirs))
    if not mine.size or not base.size:
        return NONE
    if not is_known or n < 2:
        medians = [float(np.median(side)) for side in (base, mine)]
        if not np.isfinite(medians).all():
            return dataclasses.replace(NONE, n=n)
        return SpeedUp(medians[0] / medians[1], math.nan, math.nan, n, "medians")
    if shared:
        # Student's t on the logs of the ratios: the ratio is their geometric mean.
        logs = np.log(base / mine)
        return _with_interval(logs.mean(), t_interval(logs), n, "paired")
    base, mine = np.log(base), np.log(mine)
    mean = base.mean() - mine.mean()
    is_constant = not (base.var(ddof=1) or mine.var(ddof=1))
    bounds = (mean, mean) if is_constant else welch_interval(base, mine)
    return _with_interval(mean, bounds, n, "Welch")


def _known(values: Mapping[int, float]) -> dict[int, float]:
    """Returns the seeds with a number above 0: a time of 0 has no ratio."""
    return {seed: value for seed, value in values.items() if value > 0}


def _with_interval(
    mean: np.floating, bounds: tuple[np.ndarray, np.ndarray], n: int, method: Method
) -> SpeedUp:
    ratio, low, high = (math.exp(float(log)) for log in (mean, *bounds))
    return SpeedUp(ratio, low, high, n, method)
