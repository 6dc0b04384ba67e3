"""Reference rows of a workload's data: what a nearest neighbour or a bigram reaches."""

from dataclasses import dataclass

from analysis.files.records import Study
from analysis.reading.metrics import Metric
from sweeps.records import layout


@dataclass(frozen=True)
class Reference:
    """A reference row, e.g. nearest neighbour or bigram: split to number or None."""

    name: str
    values: dict[str, float | None]


def of_study(study: Study, shown: Metric) -> tuple[tuple[Reference, ...], str | None]:
    """Returns the reference rows of the study's workload, and the note on its data (what it
    stands in for), None where reference.json has none."""
    entry = study.references.get(study.workload) or {}
    rows = tuple(
        Reference(
            str(row.get("name", "unnamed")),
            {split: shown.reference(row, split) for split in layout.SPLITS},
        )
        for row in entry.get("rows", ())
    )
    return rows, entry.get("note")
