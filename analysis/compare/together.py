"""What holds of the comparisons of several studies together: one correction, and the runs of the
baseline that they share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.compare.error_table import ErrorTable
from analysis.statistics import comparisons


@dataclass(frozen=True)
class SharedBaseline:
    """`tables` whose `rows` comparisons are with `runs` runs of the baseline, of which every table
    shares one or more with another."""

    tables: tuple[ErrorTable, ...]
    rows: int
    runs: int


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


def shared_baselines(tables: Sequence[ErrorTable]) -> list[SharedBaseline]:
    """Returns the groups of tables that share runs of the baseline, those of a single table
    included, where two comparisons or more are with them."""
    groups: list[tuple[list[ErrorTable], set[Any]]] = []
    for table in tables:
        if not table.comparisons:
            continue
        joined, runs = [table], _runs(table)
        for group in [group for group in groups if group[1] & runs]:
            groups.remove(group)
            joined, runs = [*group[0], *joined], group[1] | runs
        groups.append((joined, runs))
    shared = [
        SharedBaseline(tuple(joined), sum(len(table.comparisons) for table in joined), len(runs))
        for joined, runs in groups
    ]
    return [group for group in shared if group.rows > 1]


def _runs(table: ErrorTable) -> set[Any]:
    """Returns the baseline's runs: workload, seed, value on validation and on the deciding split,
    which are equal in every digit of the same run only. Results files have no ids."""
    base = table.by_variant[table.baseline]
    values = table.of(base).values
    return {
        (table.workload, table.metric.name, seed, base.chosen.get(seed), value)
        for seed, value in values.items()
    }
