"""How much compute a variant saves: the speed-ups with intervals, and the baseline's budgets."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.compare import speedup
from analysis.compare.error_table import ErrorTable
from analysis.load.records import Problem
from analysis.render import pages
from attention import table as variants


def pages_of(tables: Sequence[ErrorTable]) -> list[pages.Page]:
    """Returns a page for each experiment of several budgets among the tables, without the problems,
    which are those of the tables; a page with the reason alone where there is no speed-up."""
    made = []
    for budgets in speedup.experiments(tables):
        try:
            made.append(dataclasses.replace(page(speedup.of_tables(budgets)), problems=()))
        except ValueError as error:
            names = ", ".join(table.study.name for table in budgets)
            reason = Problem("note", "", "", str(error))
            made.append(pages.Page(f"No speed-up: {names}", (), (), (reason,)))
    return made


def page(speedups: speedup.SpeedUps) -> pages.Page:
    """Returns the speed-ups and the budgets; `data` has the rows of both."""
    columns = {
        "study": "Study",
        "steps": "Steps",
        "n": "n",
        "value": speedups.table.what.capitalize(),
        "flop": "GFLOP\na step",
        "seconds": "Seconds\na step",
    }
    budgets = speedups.budgets.sort_values("steps").assign(flop=speedups.budgets["flop"] / 1e9)
    formats = {
        "Steps": ",",
        columns["value"]: ".4f",
        columns["flop"]: ".4g",
        columns["seconds"]: ".4g",
    }
    return pages.Page(
        title=f"{speedups.table.workload}: compute for the same {speedups.table.what}",
        tables=(
            _speedups(speedups),
            pages.Table(
                f"Budgets of {speedups.table.baseline_label}",
                budgets[[*columns]].rename(columns=columns),
                formats,
            ),
        ),
        notes=(
            "A speed-up of 2: the baseline would need twice the variant's compute (or time) for "
            "the same mean result. [1.7, 2.5]: what the seeds cannot rule out (95%, not corrected "
            "for the number of variants). < and >: beyond the budgets; nothing is extrapolated.",
            f"Seeds for {speedup.TOLD}: how many would show a saving of 5 % in four of five "
            "repetitions. Compute is model FLOP, time the seconds of a step, as trials recorded "
            "them; these also depend on the load of the machine, which no interval covers. "
            "docs/analysis.md has the method.",
            *(
                f"No number for {variants.label(row.variant)} ({row.study}): {row.why}."
                for row in speedups.rows[speedups.rows["why"] != ""].itertuples()
            ),
        ),
        problems=speedups.problems,
        data=lambda: _data(speedups),
    )


def _data(speedups: speedup.SpeedUps) -> pd.DataFrame:
    rows = speedups.rows.copy()
    for of in ("compute", "time"):
        for name, steps in (("", "needed"), ("_low", "low"), ("_high", "high")):
            rows[f"speedup_{of}{name}"] = rows[steps] * rows[of]
    return pd.concat([speedups.budgets, rows.drop(columns=["compute", "time"])])


def _speedups(speedups: speedup.SpeedUps) -> pages.Table:
    ends = speedups.budgets["steps"].min(), speedups.budgets["steps"].max()
    rows = []
    for row in speedups.rows.itertuples():
        cells = {
            "Variant": variants.label(row.variant),
            "Study": row.study,
            "Steps": f"{row.steps:,}",
        }
        if not row.why:
            seeds = "unknown" if pd.isna(row.seeds) else f"about {row.seeds:,.0f}"
            cells |= {
                "Seeds": f"{row.seeds_used:.0f}",
                "Steps of\nbaseline": _within(row, 1.0, ends, "{:,.0f}"),
                "Speed-up,\ncompute": _within(row, row.compute, ends, "{:.2f}"),
                "Speed-up,\ntime": _within(row, row.time, ends, "{:.2f}"),
                "Compute, by\na power law": pages.decimals(row.by_law * row.compute, 2),
                f"Seeds\nfor {speedup.TOLD}": seeds,
            }
        rows.append(cells)
    return pages.text_table(
        f"What {speedups.table.baseline_label} needs over what the variant took",
        pd.DataFrame(rows),
    )


def _within(row: Any, factor: float, ends: tuple[float, float], form: str) -> str | None:
    """Returns the steps needed with their interval, times a factor; of what lies beyond the budgets
    that it is more or less than at their ends."""
    if math.isnan(factor):
        return None
    beyond = {
        0.0: f"< {form.format(ends[0] * factor)}",
        math.inf: f"> {form.format(ends[1] * factor)}",
    }
    steps = (row.needed, row.low, row.high)
    value, low, high = (beyond.get(each) or form.format(each * factor) for each in steps)
    return f"{value} [{low}, {high}]"
