"""AlgoPerf's scores of submissions: times, performance profile, what its studies can tell apart."""

import math
from collections.abc import Sequence

import numpy as np

from analysis.compare import scores
from analysis.compare.error_table import ErrorTable
from analysis.render import pages

# Places of the profile that are printed.
SHOWN = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)


def page(tables: Sequence[ErrorTable], workloads: int | None = None) -> pages.Page:
    """Returns three tables; `data` is the profile, a row per submission and tau."""
    result = scores.of_tables(tables, workloads)
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
                f"What {scores.STUDIES} studies of each submission can tell",
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
            f"What {scores.STUDIES} studies tell: two submissions with this SD of log times and "
            f"{scores.STUDIES} studies each, times log-normal, studies not paired. Interval: the "
            "measured ratio is multiplied and divided by this. Detectable: the smallest true ratio "
            "found with 80 % power at 0.05, one comparison.",
        ),
        problems=result.problems,
        data=lambda: profile.stack().rename("share").reset_index(),
    )
