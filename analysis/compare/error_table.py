"""A study's error table as data: what is measured of each variant, before anything is laid out."""

import functools
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from analysis.load import metrics
from analysis.load.metrics import Metric
from analysis.load.paper import PaperCell
from analysis.load.records import Run, StudyRuns
from analysis.statistics.results import Comparison, Summary
from attention import table as variants

LAST = 5


@dataclass(frozen=True)
class SplitResult:
    """One variant on one split: `values` maps a seed to the number at the step that validation
    chose, `last` a seed to its last evaluations (not all finite, perhaps). `summary` is None
    without values, `comparison` for the baseline and without values, `paper` wherever the paper
    prints no such number or the study is not the paper's. `non_finite` seeds have none here,
    though validation chose a step of theirs."""

    values: dict[int, float] = field(default_factory=dict)
    summary: Summary | None = None
    comparison: Comparison | None = None
    paper: PaperCell | None = None
    last: dict[int, tuple[float, ...]] = field(default_factory=dict)
    non_finite: int = 0


@dataclass(frozen=True)
class VariantResult:
    """One row: the variant, the point whose trials it reports, n trials, a result per split.

    Of the `planned` seeds of that point, n have an evaluation that validation chose; `lost` maps
    why a seed has no number (`diverged`, `failed`, `non-finite`) to how many have none, which
    verdicts take into account (`verdict_rules`); the others have not finished. `last_step` is the
    median of the n trials' last evaluations' steps, None without any. `chosen` maps a seed to the
    validation metric that chose its step, as that metric is shown (an error, not an accuracy).
    """

    variant: str
    point: int | None
    n: int
    splits: dict[str, SplitResult]
    hyperparameters: dict[str, Any]
    planned: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    last_step: float | None = None
    chosen: dict[int, float] = field(default_factory=dict)

    @property
    def unfinished(self) -> int:
        """Returns how many seeds have no number yet."""
        return max(0, self.planned - self.n - sum(self.lost.values()))

    @property
    def seeds(self) -> str:
        """Returns n in words: `5`, or `3 of 5 (1 diverged, 1 unfinished)`."""
        missing = self.lost | ({"unfinished": self.unfinished} if self.unfinished else {})
        if not missing:
            return str(self.n)
        said = ", ".join(f"{count} {state}" for state, count in missing.items())
        return f"{self.n} of {self.planned} ({said})"

    @property
    def label(self) -> str:
        """Returns the variant as the paper calls it."""
        return variants.label(self.variant)

    @property
    def group(self) -> str:
        """Returns the group within which the best is marked."""
        return variants.group(self.variant)


@dataclass(frozen=True)
class Reference:
    """A reference row, e.g. nearest neighbour or bigram: split to number or None. `constant`: the
    same answer for every example; then `chosen` is what it has of the metric that chooses, as that
    is shown, on validation, None where that is not recorded."""

    name: str
    values: dict[str, float | None]
    constant: bool = False
    chosen: float | None = None


@dataclass(frozen=True)
class ErrorTable:
    """What the views are given. `decisive` is the split of the verdict, `last` how many of a
    trial's last evaluations the results keep."""

    study: StudyRuns
    workload: str
    stage: str
    metric: Metric
    chosen_by: Metric
    baseline: str
    decisive: str
    rows: tuple[VariantResult, ...]
    references: tuple[Reference, ...]
    reference_note: str | None
    problems: tuple[str, ...]
    last: int = LAST

    @functools.cached_property
    def by_variant(self) -> dict[str, VariantResult]:
        """Returns each variant's row."""
        return {row.variant: row for row in self.rows}

    @property
    def groups(self) -> list[list[VariantResult]]:
        """Returns the rows of each group within which the best is marked."""
        found: dict[str, list[VariantResult]] = {}
        for row in self.rows:
            found.setdefault(row.group, []).append(row)
        return list(found.values())

    @property
    def baseline_row(self) -> VariantResult | None:
        """Returns the row that the others are compared with, None where there is none."""
        return self.by_variant.get(self.baseline)

    @property
    def has_baseline(self) -> bool:
        """Returns whether there is a row that the others are compared with."""
        return self.baseline in self.by_variant

    @property
    def baseline_label(self) -> str:
        """Returns the baseline as the paper calls it, whether or not it has a row."""
        return variants.label(self.baseline)

    @property
    def what(self) -> str:
        """Returns what verdicts are on: `test error`."""
        return f"{self.decisive} {self.metric.label}"

    @property
    def has_perplexity(self) -> bool:
        """Returns whether exp(loss) stands beside the loss: where the loss is the target."""
        return self.metric == self.chosen_by == metrics.get("loss")

    @property
    def is_paper(self) -> bool:
        """Returns whether the paper's column stands beside ours."""
        return any(cell.paper for row in self.rows for cell in row.splits.values())

    def of(self, row: VariantResult) -> SplitResult:
        """Returns a row's result on the deciding split."""
        return row.splits[self.decisive]

    @property
    def comparisons(self) -> dict[str, Comparison]:
        """Returns the comparisons on the deciding split by variant, of those that have one."""
        found = {row.variant: self.of(row).comparison for row in self.rows}
        return {name: each for name, each in found.items() if each is not None}

    def runs(self, row: VariantResult, states: Collection[str] = ()) -> list[Run]:
        """Returns the stage's runs of a row's variant and point, in `states` where given."""
        return [
            run
            for run in self.study.stage(self.stage)
            if (run.variant, run.point) == (row.variant, row.point)
            and (not states or run.state in states)
        ]
