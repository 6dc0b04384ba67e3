"""The baseline of a table: which variant it is, and how the others compare with it."""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from analysis.files.records import Study
from analysis.reading.metrics import Metric
from analysis.results import withheld
from analysis.statistics import comparisons, statistics
from analysis.statistics.statistics import Comparison
from sweeps.records import layout

if TYPE_CHECKING:
    from analysis.results.error_table import VariantResult

DEFAULT = "standard"


def name(study: Study, asked: str | None) -> str:
    """Returns the variant to compare with: the one `asked` for, else the study's."""
    return asked or str(study.config.get("baseline", DEFAULT))


def check(studies: Iterable[Study], asked: str | None) -> None:
    """Raises ValueError where none of the studies has a variant called `asked`, unless None."""
    if asked is None:
        return
    planned = (str(name) for study in studies for name in study.config.get("variants", ()))
    known = {run.variant for study in studies for run in study.runs} | set(planned)
    if asked not in known:
        there = ", ".join(sorted(known)) or "none"
        raise ValueError(f"no variant {asked!r} to compare with; there are {there}: give one")


def compared(
    rows: "list[VariantResult]", baseline: str, shown: Metric, shares_seeds: bool
) -> "list[VariantResult]":
    """Returns the rows with their comparisons, corrected over the variants of each split, verdicts
    that the runs do not bear withheld; as they are where no row is the baseline's."""
    against = next((row for row in rows if row.variant == baseline), None)
    if against is None:
        return rows
    for split in layout.SPLITS:
        others = [row for row in rows if row.variant != baseline and row.splits[split].values]
        pairs = [
            comparisons.compare(
                row.splits[split].values, against.splits[split].values, shares_seeds
            )
            for row in others
        ]
        judged = statistics.judged(pairs, shown.lower_is_better)
        rows = _with_comparisons(
            rows,
            split,
            {
                row.variant: withheld.judged(comparison, row, against, split)
                for row, comparison in zip(others, judged, strict=True)
            },
        )
    return rows


def _with_comparisons(
    rows: "list[VariantResult]", split: str, found: dict[str, Comparison]
) -> "list[VariantResult]":
    def updated(row: "VariantResult") -> "VariantResult":
        result = dataclasses.replace(row.splits[split], comparison=found.get(row.variant))
        return dataclasses.replace(row, splits=row.splits | {split: result})

    return [updated(row) for row in rows]
