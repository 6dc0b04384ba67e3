"""Differences from the baseline over seeds and items, from the answers that trials kept."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis.compare.error_table import ErrorTable
from analysis.compare.verdicts import VariantResult
from analysis.load import selection
from analysis.load.records import STEP
from analysis.statistics import comparisons, items
from analysis.statistics.intervals import Estimate
from sweeps.records import answers

# Metrics that are the mean of an item's values, or one minus it.
LINEAR = ("error", "accuracy", "wer", "loss")


@dataclass(frozen=True)
class ItemComparison:
    """A variant against the baseline on the `count` items of the deciding split, over seeds and
    items; `over_items` is None where there is no interval, and `why` then says why."""

    row: VariantResult
    count: int = 0
    over_items: Estimate | None = None
    why: str = ""


def of_table(table: ErrorTable) -> list[ItemComparison]:
    """Returns a comparison for each variant that the table compares with the baseline. Raises
    ValueError for damaged answers."""
    compared = [row for row in table.rows if row.variant in table.comparisons]
    known = kept(table) if compared else {}
    made = []
    for row in compared:
        try:
            made.append(_compared(table, row, known))
        except LookupError as error:
            made.append(ItemComparison(row, why=str(error.args[0])))
    return made


def kept(table: ErrorTable) -> dict[answers.Key, answers.ItemRecord]:
    """Returns the answers of the table's runs, by variant and seed: those of the step that counts,
    on the deciding split. Raises ValueError for damaged ones."""
    runs = [run for row in table.rows for run in table.runs(row, ("done",))]
    folders = {run.path if run.path.is_dir() else run.path.parent for run in runs}
    found = {key: record for path in folders for key, record in answers.read(path).items()}
    records = {}
    for run in runs:
        key = run.variant, run.seed
        counted = selection.best_step(run, table.chosen_by) or {}
        if key in found and found[key][:2] == (counted.get(STEP), table.decisive):
            records[key] = found[key]
    return records


def _compared(
    table: ErrorTable, row: VariantResult, known: Mapping[answers.Key, answers.ItemRecord]
) -> ItemComparison:
    """Raises LookupError, with the reason, where there is no interval."""
    seeds = comparisons.paired_seeds(
        table.of(row).values,
        table.of(table.by_variant[table.baseline]).values,
        table.study.shares_seeds,
    )
    if len(seeds) < 2:
        raise LookupError("fewer than two seeds are paired")
    pairs = [known.get((name, seed)) for name in (row.variant, table.baseline) for seed in seeds]
    records = [record for record in pairs if record is not None]
    if missing := len(pairs) - len(records):
        raise LookupError(
            f"{missing} of {len(pairs)} runs kept no answers of the evaluation that counts"
        )
    first = records[0]
    if first.metric != table.metric.source or table.metric.name not in LINEAR:
        raise LookupError(f"answers are kept of the {first.metric}, --metric={first.metric}")
    if not all(np.array_equal(record.weights, first.weights) for record in records):
        raise LookupError("its runs were evaluated on other items than the baseline's")
    values = np.array([record.values for record in records], float)
    differences = values[: len(seeds)] - values[len(seeds) :]
    sign = -1.0 if table.metric.name == "error" else 1.0
    estimate = items.two_way(sign * differences, first.weights)
    if not math.isclose(
        estimate.value, table.comparisons[row.variant].difference, rel_tol=1e-3, abs_tol=1e-5
    ):
        raise LookupError("answers do not give the difference of the table; keep both or neither")
    return ItemComparison(row, first.weights.size, estimate)
