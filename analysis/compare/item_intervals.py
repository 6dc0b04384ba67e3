"""Differences from the baseline over seeds and items, from the answers that trials kept."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from analysis.compare.error_table import ErrorTable
from analysis.compare.verdicts import VariantResult
from analysis.load import selection
from analysis.load.records import STEP
from analysis.statistics import comparisons, intervals
from sweeps.records import answers

# Metrics that are the mean of an item's values, or one minus it.
LINEAR = ("error", "accuracy", "wer", "loss")


class ItemComparison(NamedTuple):
    """A variant against the baseline on a `number` of items of the deciding split, over seeds and
    items; `over_items` is None where there is no interval, and `why` then says why."""

    row: VariantResult
    number: int
    over_items: intervals.Estimate | None
    why: str = ""


def of_table(table: ErrorTable) -> list[ItemComparison]:
    """Returns a comparison for each variant that the table compares with the baseline. Raises
    ValueError for damaged answers."""
    compared = [row for row in table.rows if row.variant in table.comparisons]
    known = kept(table) if compared else {}
    return [_compared(table, row, known) for row in compared]


def kept(table: ErrorTable) -> dict[answers.Key, answers.ItemRecord]:
    """Returns the answers of the table's runs, by variant and seed: those of the step that counts,
    on the deciding split. Raises ValueError for damaged ones."""
    runs = [run for row in table.rows for run in table.runs(row, ("done",))]
    folders = {run.path if run.path.is_dir() else run.path.parent for run in runs}
    records = {key: record for path in folders for key, record in answers.read(path).items()}
    steps = {
        (run.variant, run.seed): (selection.best_step(run, table.chosen_by) or {}).get(STEP)
        for run in runs
    }
    return {
        key: record
        for key, record in records.items()
        if (record.global_step, record.split) == (steps.get(key), table.decisive)
    }


def _compared(
    table: ErrorTable, row: VariantResult, known: Mapping[answers.Key, answers.ItemRecord]
) -> ItemComparison:
    values, base = (table.of(x).values for x in (row, table.by_variant[table.baseline]))
    seeds = comparisons.paired_seeds(values, base, table.study.shares_seeds)
    keys = [(name, seed) for name in (row.variant, table.baseline) for seed in seeds]
    records = [known[key] for key in keys if key in known]
    if len(seeds) < 2 or len(records) < len(keys):
        missing = f"{len(keys) - len(records)} of {len(keys)} runs kept no answers of the "
        why = f"{missing}evaluation that counts" if len(seeds) > 1 else "no two seeds are paired"
        return ItemComparison(row, 0, None, why)
    first = records[0]
    if first.metric != table.metric.source or table.metric.name not in LINEAR:
        why = f"answers are kept of the {first.metric}, --metric={first.metric}"
        return ItemComparison(row, 0, None, why)
    if not all(np.array_equal(record.weights, first.weights) for record in records):
        return ItemComparison(row, 0, None, "runs were evaluated on other items than the baseline")
    ours, theirs = np.split(np.array([record.values for record in records], float), 2)
    sign = -1.0 if table.metric.name == "error" else 1.0
    estimate = intervals.two_way(sign * (ours - theirs), first.weights)
    difference = table.comparisons[row.variant].difference
    if not math.isclose(estimate.value, difference, rel_tol=1e-3, abs_tol=1e-5):
        return ItemComparison(row, 0, None, "answers do not give the difference of the table")
    return ItemComparison(row, first.weights.size, estimate)
