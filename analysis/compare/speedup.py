"""How much compute a variant saves: the baseline's steps for its result, over several budgets.

The studies are of one workload. Each trains the baseline for a number of steps of its own, with the
whole schedule and a rate tuned there; one of them or more have variants. C of a run is its model
FLOP: those of a step, the mechanism's own products included, times its steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.compare import sensitivity
from analysis.compare.error_table import ErrorTable, VariantResult
from analysis.load.records import FLOPS, Problem
from analysis.statistics import budgets, power_law
from analysis.statistics.comparisons import ALPHA, Seeds
from attention import table as variants

# The speed-up that the seeds asked for would tell from 1.
TOLD = 1.05


@dataclass(frozen=True)
class SpeedUps:
    """The baseline's `budgets`, a row each: study, steps, n, value (the mean), flop and seconds of
    a step, nan where they are not known; and `rows`, one per variant and study: variant, study,
    steps, n, value; `needed`, `low`, `high`, the baseline's steps; `by_law`, those by a power law;
    `compute` and `seconds`, what the baseline's steps are multiplied by for the speed-up in model
    FLOP and in time; `seeds` that would tell a speed-up of TOLD in compute, None where unknown;
    `why`, why there is no number, else empty."""

    baseline: str
    workload: str
    what: str
    budgets: pd.DataFrame
    rows: pd.DataFrame
    problems: tuple[Problem, ...]


def of_tables(tables: Sequence[ErrorTable]) -> SpeedUps:
    """Returns the speed-ups of all variants in tables of one workload.

    Raises ValueError for tables of several workloads, metrics or baselines, for two that train the
    baseline equally long, and where none has a variant.
    """
    kinds = {
        f"{table.what} of {table.workload} against {table.baseline}, batch_size "
        f"{table.study.config.get('batch_size') or 'its own'}"
        for table in tables
    }
    if len(kinds) > 1:
        raise ValueError(f"budgets are of one experiment; these are {'; '.join(sorted(kinds))}")
    first = tables[0]
    based = [(table, row) for table in tables if (row := table.baseline_row) and row.n]
    known = pd.DataFrame([_budget(table, row) for table, row in based])
    for steps, same in known.groupby("steps") if len(known) else ():
        if len(same) > 1:
            names = ", ".join(same["study"])
            raise ValueError(f"{names} train {first.baseline} for {steps:,} steps each: name one")
    values: dict[float, Seeds] = {_steps(table, row): table.of(row).values for table, row in based}
    rows = [
        _row(table, row, known, values)
        for table in tables
        for row in table.rows
        if row.variant != first.baseline and row.n
    ]
    if not rows:
        raise ValueError(f"no study has results of a variant beside {first.baseline}")
    rows.sort(key=lambda row: variants.order(str(row["variant"])))
    problems = tuple(problem for table in tables for problem in table.problems)
    return SpeedUps(first.baseline, first.workload, first.what, known, pd.DataFrame(rows), problems)


def _steps(table: ErrorTable, row: VariantResult) -> int:
    """Returns the budget of a row's trials. Raises ValueError where they have several."""
    steps = {run.steps for run in table.runs(row)} - {None}
    if len(steps) != 1:
        raise ValueError(f"{table.study.name}: the budget of {row.variant} is not one: {steps}")
    return int(steps.pop() or 0)


def _budget(table: ErrorTable, row: VariantResult) -> dict[str, object]:
    """Returns what a row's trials cost and reach."""
    runs = [run for run in table.runs(row) if run.last_step and run.trained_seconds]
    flop = [run.meta[FLOPS] for run in runs if run.meta.get(FLOPS)]
    return {
        "study": table.study.name,
        "steps": _steps(table, row),
        "n": row.n,
        "value": float(np.mean(list(table.of(row).values.values()))),
        "flop": float(np.median(flop)) if flop else math.nan,
        "seconds": float(np.median([run.trained_seconds / (run.last_step or 1) for run in runs]))
        if runs
        else math.nan,
    }


def _row(
    table: ErrorTable, row: VariantResult, known: pd.DataFrame, values: dict[float, Seeds]
) -> dict[str, object]:
    own = {"variant": row.variant, **_budget(table, row)}
    steps = own["steps"]
    assert isinstance(steps, int)
    ratios = {
        name: known[of].median() / own[of] / steps
        for name, of in (("compute", "flop"), ("seconds", "seconds"))
    }
    found: dict[str, object] = dict.fromkeys(("needed", "low", "high", "by_law"), math.nan)
    found |= {"seeds": None, "why": ""}
    try:
        curve = budgets.of_seeds(values, table.of(row).values)
    except ValueError as error:
        return own | ratios | found | {"why": str(error)}
    if turn := curve.turn:
        why = f"the baseline is worse after {turn[1]:,.0f} steps than after {turn[0]:,.0f}"
        return own | ratios | found | {"why": why}
    needed = budgets.needed(curve)
    law = power_law.fit(curve.steps.tolist(), curve.baseline.mean(axis=1).tolist())
    found |= {"needed": needed.steps, "low": needed.low, "high": needed.high}
    if law.falls:
        found["by_law"] = math.exp(law.log_parameters(float(curve.variant.mean())))
    return own | ratios | found | {"seeds": _seeds(curve, 1 / ratios["compute"])}


def _seeds(curve: budgets.Budgets, equal: float) -> int | None:
    """Returns the seeds that would tell TOLD from 1; equal: the baseline's steps for as much
    compute as the variant takes. None beyond the budgets."""
    places = np.array([equal, TOLD * equal])
    if not (places[0] >= curve.steps[0] and places[1] <= curve.steps[-1]):
        return None
    at, later = curve.differences(places)
    effect, sd = float((at - later).mean()), float(at.std(ddof=1))
    return sensitivity.seeds_needed(effect, sd, ALPHA) if effect > 0 and sd > 0 else None
