"""AlgoPerf's scores of submissions: times to targets, performance profiles, what studies can tell.

The rules are those of its scoring/performance_profile.py and score_submissions.py. Of a study the
trial counts that reaches the target at the earliest evaluation; of a workload the median over
studies. A held-out variant that is not reached takes its base workload with it, and has no place of
its own. More than 4 times the fastest submission's time counts as never. The profile is the share
of workloads within tau times the fastest, the score its mean over tau from 1 to 4.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import integrate, stats

from analysis.compare import sensitivity
from analysis.compare.error_table import ErrorTable
from analysis.load import metrics
from analysis.load.records import Problem
from analysis.render import pages
from analysis.statistics.comparisons import ALPHA
from analysis.views import time

# Beyond so many times the fastest a workload counts as not reached.
LARGEST = 4.0
TAUS = np.linspace(1.0, LARGEST, 100)
# Studies of a submission that AlgoPerf asks for.
STUDIES = 3
SPREADS = ("submission", "workload", "studies", "sd", "interval", "detectable")
# Places of the profile that are printed.
SHOWN = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True)
class Scores:
    """`times` [submission, workload], median seconds to the target, inf for never; `shares`
    [submission, tau], the profile; `scores` [submission]; `spreads`, a row per submission and
    workload that every study of its reached: studies, sd of the log of the seconds, and of two
    submissions with that sd and STUDIES studies each: `interval`, the factor from the ratio of
    their times to either end of its 95 % interval, and `detectable`, the smallest true ratio that
    Welch's t-test finds with 80 % power."""

    times: pd.DataFrame
    shares: pd.DataFrame
    scores: pd.Series
    spreads: pd.DataFrame
    problems: tuple[Problem, ...]


def of_tables(tables: Sequence[ErrorTable], workloads: int | None = None) -> Scores:
    """Returns the scores of the submissions in `tables`, one per workload. The profile is a share
    of `workloads`, the base workloads of the tables unless given.

    Raises ValueError if a workload comes twice, where no target is known, and where there are
    more base workloads than `workloads`.
    """
    names = [table.workload for table in tables]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"several studies are of {', '.join(repeated)}; give the logs of each once"
        )
    reached = [time.build(table, points="fastest") for table in tables]
    medians = {}
    for name, of_workload in zip(names, reached, strict=True):
        rows = of_workload.rows.set_index("variant")
        medians[name] = rows["seconds"].mask(rows["seconds_is_bound"], math.inf)
    times = pd.DataFrame(medians).fillna(math.inf).sort_index(axis=1)
    ratios = _ratios(times)
    count = workloads or ratios.shape[1]
    if ratios.shape[1] > count:
        raise ValueError(
            f"the logs are of {ratios.shape[1]} base workloads; {count} were asked for"
        )
    shares = pd.DataFrame({tau: ratios.le(tau).sum(axis=1) / count for tau in TAUS})
    return Scores(
        times=times,
        shares=shares,
        scores=pd.Series(integrate.trapezoid(shares, TAUS) / (LARGEST - 1), times.index),
        spreads=pd.DataFrame(itertools.chain(*map(_spreads, reached)), columns=SPREADS),
        problems=tuple(problem for of_workload in reached for problem in of_workload.problems),
    )


def _ratios(times: pd.DataFrame) -> pd.DataFrame:
    """Returns the times over the fastest submission's, of base workloads, inf if they do not
    count."""
    bases = {name: _base(name) for name in times}
    times = times.copy()
    held_out = {name: base for name, base in bases.items() if base != name and base in times}
    for name, base in held_out.items():
        times[name] = times[name].where(np.isfinite(times[base]), math.inf)
    times = times.where(times <= LARGEST * times.min(), math.inf)
    for name, base in held_out.items():
        times[base] = times[base].where(np.isfinite(times[name]), math.inf)
    times = times.drop(columns=[*held_out])
    return times / times.min()


def _base(workload: str) -> str:
    """Returns the base workload of one of AlgoPerf's held-out variants, else the workload."""
    known = {target.workload for target in metrics.algoperf_targets()}
    longer = [name for name in known if workload.startswith(f"{name}_")]
    return min(longer, key=len, default=workload)


def _spreads(times: time.TargetTimes) -> Iterator[tuple[object, ...]]:
    """Yields the rows of SPREADS of a workload."""
    half = stats.t.isf(ALPHA / 2, 2 * STUDIES - 2) * math.sqrt(2 / STUDIES)
    for label, seeds in times.seeds.groupby("label", sort=False):
        seconds = seeds["seconds"].to_numpy(float)
        if len(seconds) < 2 or not np.isfinite(seconds).all():
            continue
        sd = float(np.log(seconds).std(ddof=1))
        least = sensitivity.detectable(sd, STUDIES, ALPHA, paired=False) if sd > 0 else math.nan
        place = (label, times.table.workload, len(seconds))
        yield (*place, sd, math.exp(half * sd), math.exp(least))


def page(tables: Sequence[ErrorTable], workloads: int | None = None) -> pages.Page:
    """Returns three tables; `data` is the profile, a row per submission and tau."""
    result = of_tables(tables, workloads)
    hours = (result.times / 3600).map(
        lambda time: f"{time:.2f}" if math.isfinite(time) else "never"
    )
    # Of the last tau that is not larger, but for rounding.
    shares = result.shares.reindex(columns=np.array(SHOWN) * (1 + 1e-9), method="ffill")
    shares.columns = [f"τ = {tau:g}" for tau in SHOWN]
    share_formats = dict.fromkeys(shares, ".2f") | {"Score": ".4f"}
    shares.insert(0, "Score", result.scores)
    spread_formats = {"SD of\nlog time": ".4f", "Interval\n×/÷": ".3f", "Detectable\nratio": ".3f"}
    profile = result.shares.rename_axis("submission").rename_axis("tau", axis=1)
    return pages.Page(
        title="AlgoPerf's scores",
        tables=(
            pages.text_table("Hours to the target", hours.rename_axis("Submission").reset_index()),
            pages.Table(
                "Share of workloads within τ times the fastest",
                shares.rename_axis("Submission").reset_index(),
                share_formats,
            ),
            pages.Table(
                f"What {STUDIES} studies of each submission can tell",
                result.spreads.set_axis(
                    ["Submission", "Workload", "Studies", *spread_formats], axis=1
                ),
                spread_formats,
            ),
        ),
        notes=(
            "Time: median over studies of the fastest trial of each. A submission scores the mean, "
            "over tau from 1 to 4, of the share of workloads that it reaches within tau times the "
            "fastest submission's time. AlgoPerf divides by its 8 base workloads, also where logs "
            "have fewer: --workloads=8.",
            f"What {STUDIES} studies tell: two submissions with this SD of log times and "
            f"{STUDIES} studies each, times log-normal, studies not paired. Interval: the "
            "measured ratio is multiplied and divided by this. Detectable: the smallest true ratio "
            "found with 80 % power at 0.05, one comparison.",
        ),
        problems=result.problems,
        data=lambda: profile.stack().rename("share").reset_index(),
    )
