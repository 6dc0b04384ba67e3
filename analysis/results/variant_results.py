"""One variant's results, in all and on one split: the rows of an error table."""

from dataclasses import dataclass, field
from typing import Any

from analysis.documents import variants
from analysis.paper.paper import PaperCell
from analysis.statistics.statistics import Comparison, Summary


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
    verdicts take into account (`withheld.py`); the others have not finished. `last_step` is the
    median of the n trials' last evaluations' steps, None without any.
    """

    variant: str
    point: int | None
    n: int
    splits: dict[str, SplitResult]
    hyperparameters: dict[str, Any]
    planned: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    last_step: float | None = None

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
