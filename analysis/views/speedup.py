"""How much compute a variant saves: the baseline's steps for its result, over several budgets.

The studies are of one experiment. Each trains the baseline for a number of steps of its own, with
the whole schedule and a rate tuned there; one of them or more have variants. Compute is model FLOP:
those of a step, as trials record them, times the steps.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare import experiment, frames
from analysis.compare.error_table import ErrorTable
from analysis.compare.verdicts import VariantResult
from analysis.load import results
from analysis.load.records import Problem
from analysis.render import pages
from analysis.statistics import across, budgets, intervals
from analysis.statistics.comparisons import Seeds
from attention import table as variants

# The headings of the ratios.
COMPUTE, TIME = "Speed-up,\ncompute", "Speed-up,\ntime"
RULE = "budgets are of one experiment and differ in steps alone"


@dataclass(frozen=True)
class SpeedUps:
    """Of the experiment that `table` is of: the baseline's `budgets`, a row each: study, steps, n,
    value (the mean), flop and seconds of a step, nan if trials do not record them; and `rows`,
    the same per variant and study, and:
    `needed`, `low`, `high`, the baseline's steps (`budgets.needed`); `seeds_used`; `by_pchip`, the
    steps by a monotone curve; `compute` and `time`, what steps are multiplied by for the speed-up
    in model FLOP and in seconds; `time_low`, `time_high`, the steps' ends for the latter;
    `verdict`; `why`, why there is no number, else empty."""

    table: ErrorTable
    budgets: pd.DataFrame
    rows: pd.DataFrame
    problems: tuple[Problem, ...]


def of_tables(tables: Sequence[ErrorTable], times: pathlib.Path | None = None) -> SpeedUps:
    """Returns the speed-ups of all variants in tables of one experiment; in seconds by the step
    times that `workloads bench` wrote to `times`, else by those that trials recorded.

    Raises ValueError for tables that differ in more than steps, for two that train the baseline
    equally long, for a metric of which more is better, where there is nothing to compare, and for
    step times without one of the workload's variants.
    """
    first = tables[0]
    conditions = experiment.settings(tables).drop(columns=[*experiment.LENGTHS])
    notes = experiment.check(conditions, RULE)
    if not first.metric.lower_is_better:
        raise ValueError(f"more {first.metric.name} is better; give a metric of which less is")
    planned = [(table, row) for table in tables if (row := table.baseline_row)]
    based = [(table, row) for table, row in planned if row.n]
    if not based:
        raise ValueError(f"no trial of {first.baseline} has finished")
    known = pd.DataFrame([_costs(table, row) for table, row in based])
    for steps, same in known.groupby("steps"):
        if len(same) > 1:
            names = ", ".join(same["study"])
            raise ValueError(f"{names} train {first.baseline} for {steps:,} steps each: name one")
    results = [table.of(row).values for table, row in based]
    curves: dict[float, Seeds] = dict(zip(known["steps"], results, strict=True))
    lost = [table.study.name for table, row in planned if row.lost_on(table.decisive)]
    measured = _step_times(times, first.workload) if times else {}
    rows = [
        _row(table, row, known, curves, lost, experiment.withheld(tables, row.variant), measured)
        for table in tables
        for row in table.rows
        if row.variant != first.baseline and row.n
    ]
    if not rows:
        raise ValueError(f"no study has results of a variant beside {first.baseline}")
    rows.sort(key=lambda row: variants.order(row["variant"]))
    problems = [*notes, *(problem for table in tables for problem in table.named_problems)]
    return SpeedUps(first, known, pd.DataFrame(rows), tuple(problems))


def experiments(tables: Sequence[ErrorTable]) -> list[list[ErrorTable]]:
    """Returns for each table with variants it and the budgets beside it: tables of the same
    experiment that train the baseline alone. Only where there are three numbers of steps or more,
    of a metric of which less is better. `of_tables` still refuses equal budgets and other data."""
    stated = experiment.settings(tables)
    steps = stated["steps"]
    conditions = stated.drop(columns=[*experiment.LENGTHS, "study", experiment.DATA]).fillna("")
    groups = []
    for number, table in enumerate(tables):
        base = table.baseline_row
        if len(table.rows) < 2 or not (base and base.n and table.metric.lower_is_better):
            continue
        is_same = conditions.eq(conditions.iloc[number]).all(axis=1)
        beside = [
            place
            for place in is_same.index[is_same]
            if [row.variant for row in tables[place].rows if row.n] == [table.baseline]
        ]
        if steps[[number, *beside]].nunique() >= budgets.LEAST:
            groups.append([table, *(tables[place] for place in beside)])
    return groups


def _costs(table: ErrorTable, row: VariantResult) -> dict[str, Any]:
    """Returns what a row's trials cost and reach. Raises ValueError if their number of steps is
    not one."""
    steps = {run.steps for run in table.runs(row) if run.steps is not None}
    if len(steps) != 1:
        reason = "is stated by no trial" if not steps else f"is not one: {sorted(map(str, steps))}"
        raise ValueError(f"{table.study.name}: the number of steps of {row.variant} {reason}")
    planned = steps.pop()
    trained = frames.costs(table, row)
    return {
        "variant": row.variant,
        "study": table.study.name,
        "steps": planned,
        "n": row.n,
        "value": float(np.mean(list(table.of(row).values.values()))),
        "flop": trained["train_flop"] / planned,
        "seconds": trained["train_seconds"] / planned,
    }


def _row(
    table: ErrorTable,
    row: VariantResult,
    known: pd.DataFrame,
    curves: Mapping[float, Seeds],
    lost: Sequence[str],
    withheld: str,
    times: Mapping[str, Seeds],
) -> dict[str, Any]:
    line, half = _costs(table, row), 0.0
    # Of the study itself where it has the baseline: other machines have other seconds.
    beside = known[known["study"] == line["study"]]
    base = (beside if len(beside) else known).median(numeric_only=True)
    line |= {
        "compute": base["flop"] / line["flop"] / line["steps"],
        "time": base["seconds"] / line["seconds"] / line["steps"],
        "why": "",
    }
    if times:
        ratio = across.speed_up(times.get(row.variant, {}), times.get(table.baseline, {}))
        if ratio.method != "paired":
            raise ValueError(
                f"--times: {', '.join(times)} are timed, not {table.baseline} and {row.variant} in "
                "two rounds or more: give both to `python -m workloads bench` by --variants"
            )
        line["time"] = ratio.ratio / line["steps"]
        half = math.log(ratio.high / ratio.ratio)
    line |= dict.fromkeys(("needed", "low", "high", "time_low", "time_high"), math.nan)
    line |= dict.fromkeys(("by_pchip", "seeds_used"), math.nan) | {"verdict": ""}
    if withheld:
        return line | {"why": f"withheld ({withheld})"}
    if row.lost_on(table.decisive) or lost:
        whose = ", ".join([*lost, *([row.label] if row.lost_on(table.decisive) else [])])
        return line | {"why": f"seeds are lost of {whose}, and those left are not all"}
    try:
        curve = budgets.of_seeds(curves, table.of(row).values)
    except ValueError as error:
        return line | {"why": str(error)}
    if turn := curve.turn:
        return line | {
            "why": f"the baseline is worse after {turn[1]:,.0f} steps than after {turn[0]:,.0f}"
        }
    if bend := curve.bend:
        return line | {
            "why": f"its curve bends too much between {bend[0]:,.0f} and {bend[1]:,.0f} steps: "
            "add a budget there"
        }
    needed = budgets.needed(curve, line["steps"] * line["flop"] / base["flop"])
    timed = intervals.widened(needed, half)
    line |= {"needed": needed.value, "low": needed.low, "high": needed.high}
    line |= {"time_low": timed.low, "time_high": timed.high, "seeds_used": curve.variant.size}
    by_pchip = budgets.by_pchip(curve)
    is_exploratory = budgets.is_of_form(needed, by_pchip)
    return line | {"by_pchip": by_pchip, "verdict": _verdict(line, bool(times), is_exploratory)}


def _verdict(line: Mapping[str, Any], is_timed: bool, is_exploratory: bool) -> str:
    """Returns what a row's intervals of compute and of time say together; of compute alone where no
    step times were measured: those that trials record depend on the load of the machine."""

    def of(name: str, low: str, high: str) -> str:
        if math.isnan(line[name]):
            return "not measured"
        if line[low] * line[name] > 1:
            return "saves"
        return "costs more" if line[high] * line[name] < 1 else "cannot tell"

    compute = of("compute", "low", "high")
    time = of("time", "time_low", "time_high") if is_timed else "not measured"
    verdict = compute if compute == time else f"compute: {compute}; time: {time}"
    return f"{verdict} (exploratory)" if is_exploratory else verdict


def _step_times(path: pathlib.Path, workload: str) -> Mapping[str, Seeds]:
    """Returns the seconds of a step by variant and round, of a workload."""
    times: dict[str, dict[int, float]] = {}
    for row in results.rows_of(results.find(path) or path):
        if (row.workload, row.metric) == (workload, "step_seconds"):
            times.setdefault(row.variant, {})[row.seed] = row.value
    return times


def pages_of(tables: Sequence[ErrorTable]) -> list[pages.Page]:
    """Returns a page for each experiment of several budgets among the tables, without the problems,
    which are those of the tables; a page with the reason alone where there is no speed-up."""
    made = []
    for group in experiments(tables):
        try:
            made.append(dataclasses.replace(page(of_tables(group)), problems=()))
        except ValueError as error:
            names = ", ".join(table.study.name for table in group)
            reason = Problem("note", "", "", str(error))
            made.append(pages.Page(f"No speed-up: {names}", (), (), (reason,)))
    return made


def page(speedups: SpeedUps) -> pages.Page:
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
            "for the number of variants). < and >: beyond the budgets; nothing is extrapolated. "
            "Exploratory: a monotone curve through the same means (PCHIP) moves the number by more "
            "than a quarter of its interval's half-width, so add a budget near it.",
            "Compute is model FLOP, time the seconds of a step, as trials recorded them; these "
            "also depend on the load of the machine, which no interval covers. With `--times` they "
            "are `workloads bench`'s, without the optimizer's update, and the interval covers more "
            "rounds of that process. docs/analysis.md has the method.",
            *(
                f"No number for {variants.label(row.variant)} ({row.study}): {row.why}."
                for row in speedups.rows[speedups.rows["why"] != ""].itertuples()
            ),
        ),
        problems=speedups.problems,
        data=lambda: _data(speedups),
    )


def _data(speedups: SpeedUps) -> pd.DataFrame:
    rows = speedups.rows.copy()
    for of, *ends in (("compute", "low", "high"), ("time", "time_low", "time_high")):
        for name, steps in zip(("", "_low", "_high"), ("needed", *ends), strict=True):
            rows[f"speedup_{of}{name}"] = rows[steps] * rows[of]
    rows = rows.drop(columns=["compute", "time", "time_low", "time_high"])
    return pd.concat([speedups.budgets, rows])


def _speedups(speedups: SpeedUps) -> pages.Table:
    ends = speedups.budgets["steps"].min(), speedups.budgets["steps"].max()
    rows = []
    for row in speedups.rows.itertuples():
        cells = {
            "Variant": variants.label(row.variant),
            "Study": row.study,
            "Steps": f"{row.steps:,}",
        }
        if not row.why:
            cells |= {
                "Seeds": f"{row.seeds_used:.0f}",
                "Steps of\nbaseline": _within(row, 1.0, ends, "{:,.0f}"),
                COMPUTE: _within(row, row.compute, ends, "{:.2f}"),
                TIME: _within(
                    row._replace(low=row.time_low, high=row.time_high), row.time, ends, "{:.2f}"
                ),
                "Compute,\nby PCHIP": pages.decimals(row.by_pchip * row.compute, 2),
                "Verdict": row.verdict,
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
    value, low, high = (
        beyond.get(steps) or form.format(steps * factor)
        for steps in (row.needed, row.low, row.high)
    )
    return f"{value} [{low}, {high}]"
