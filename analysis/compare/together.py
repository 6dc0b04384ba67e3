"""What holds of the comparisons of several studies together: one correction, and the runs of the
baseline that they share."""

import math
from collections.abc import Sequence
from typing import Any

from analysis.compare.error_table import ErrorTable
from analysis.statistics import comparisons


def p_over_all(tables: Sequence[ErrorTable]) -> list[dict[str, float]]:
    """Returns of each table p by variant, by Holm over all comparisons of the tables. At declared
    looks p has thresholds of its own: these tests are counted, and their p is nan here."""
    tested = [
        (number, variant, math.nan if table.looks else comparison.p)
        for number, table in enumerate(tables)
        for variant, comparison in table.comparisons.items()
    ]
    family = sum(table.family for table in tables if table.comparisons)
    corrected = comparisons.holm([p for *_, p in tested], family).tolist()
    by_table: list[dict[str, float]] = [{} for _ in tables]
    for (number, variant, _), p in zip(tested, corrected, strict=True):
        by_table[number][variant] = p
    return by_table


def shared_baselines(tables: Sequence[ErrorTable]) -> list[tuple[list[ErrorTable], int]]:
    """Returns the tables that share runs of the baseline, and how many runs these groups have;
    tables that share none stand alone."""
    groups: list[tuple[list[ErrorTable], set[Any]]] = []
    for table in tables:
        runs = _runs(table) if table.comparisons else set()
        joined = [group for group in groups if group[1] & runs]
        groups = [group for group in groups if group not in joined]
        members = [*(member for group in joined for member in group[0]), table]
        groups.append((members, runs.union(*(group[1] for group in joined))))
    return [(members, len(runs)) for members, runs in groups if runs]


def _runs(table: ErrorTable) -> set[Any]:
    """Returns the baseline's runs: workload, seed, value on validation and on the deciding split,
    which are equal in every digit of the same run only. Results files have no ids."""
    base = table.by_variant[table.baseline]
    return {
        (table.workload, table.metric.name, seed, base.chosen.get(seed), value)
        for seed, value in table.of(base).values.items()
    }
