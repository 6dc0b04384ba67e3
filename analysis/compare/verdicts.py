"""A variant's result on each split, and its verdict against the baseline.

A verdict is withheld, although the test gives one, if the comparison is not fair. Lost seeds: a
trial that diverged or failed counts as worse than any that was measured, so a variant that lost
seeds cannot be called better; if the baseline did, none can be called worse. Lengths: a longer run
is better for its length alone. Different data: the trials were trained on several data sets. Other
points: an earlier plan compared other points, and its results could be chosen from. Unfinished:
planned trials have not ended; stopping at the first verdict gives a false one in 19 % of studies.
At a look that the study declared (`looks`) a verdict is given, by that look's own threshold.

Equal is a verdict as the others are; neither side may have lost seeds. A difference can be shown to
exist and to be smaller than the margin: then both are said, as in `worse, within 0.5%`.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.load.paper import PaperCell
from analysis.load.records import Run
from analysis.statistics import choice, comparisons, intervals
from analysis.statistics.comparisons import Comparison, Verdict
from attention import table as variants
from sweeps.records import layout

# By how much of the longer one the median last steps may differ: one evaluation of 20.
LENGTHS_APART = 0.05
# Why a seed is lost whose validation metric is never finite.
NON_FINITE = "non-finite"
# Why a verdict is withheld until the study has finished, and how it is shown before.
UNFINISHED = "unfinished"
SO_FAR: dict[str, Verdict] = {
    "better": "better so far",
    "worse": "worse so far",
    "equal": "equal so far",
}


@dataclass(frozen=True)
class SplitResult:
    """One variant on one split: `values` maps a seed to the number at the step that validation
    chose. `summary` is None without values, `comparison` for the baseline and without values,
    `paper` where the paper prints no such number or the study is not the paper's. `non_finite`
    seeds have a step that validation chose and no finite number here."""

    values: dict[int, float] = field(default_factory=dict)
    summary: intervals.Summary | None = None
    comparison: Comparison | None = None
    paper: PaperCell | None = None
    non_finite: int = 0


@dataclass(frozen=True)
class VariantResult:
    """One variant: the point whose trials are reported, n trials, a result per split.

    Of the `planned` seeds of that point, the most that were ever planned, n have an evaluation that
    validation chose; `lost` maps why a seed has no number (`diverged`, `failed`, `non-finite`) to
    how many have none; the others have not finished. `planned_at_first` is the number of seeds of
    the first plan with the variant, where seeds were added to it, else 0. `last_step` is the median
    of the n trials' last evaluations' steps, nan without any. `data` are the digests of the data
    that the n trials were trained on, as far as they are known. `chosen` maps a seed to the
    validation metric that chose its step, as that metric is shown (an error, not an accuracy).
    `uncounted` are ended trials at points that an earlier plan compared (`selection.uncounted`).
    `is_lost_in_tuning`: no point can be chosen, so nothing is to come. `losses` maps the seed of
    each ended trial to what the choice of a point is made by: less is better, inf of a lost seed.
    `points` are the variant's results at each point that it was chosen from, if these trials chose.
    """

    variant: str
    point: int | None
    n: int
    splits: dict[str, SplitResult]
    hyperparameters: dict[str, Any]
    planned: int = 0
    planned_at_first: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    last_step: float = math.nan
    data: frozenset[str] = frozenset()
    chosen: dict[int, float] = field(default_factory=dict)
    uncounted: tuple[Run, ...] = ()
    is_lost_in_tuning: bool = False
    losses: dict[int, float] = field(default_factory=dict)
    points: tuple["VariantResult", ...] = ()

    @property
    def ended(self) -> int:
        """Returns how many seeds have a number or are lost."""
        return self.n + sum(self.lost.values())

    @property
    def unfinished(self) -> int:
        """Returns how many seeds have no number yet."""
        return max(0, self.planned - self.ended)

    @property
    def seeds(self) -> str:
        """Returns n as a text: `5`, `3 of 5 (1 diverged, 1 unfinished)`, `0 (lost in tuning)`, `12
        (6 planned at first)`."""
        if self.is_lost_in_tuning:
            return f"{self.n} (lost in tuning)"
        more = {"unfinished": self.unfinished, "planned at first": self.planned_at_first}
        reasons = ", ".join(
            f"{count} {state}" for state, count in (self.lost | more).items() if count
        )
        n = f"{self.n} of {self.planned}" if self.n < self.planned else str(self.n)
        return f"{n} ({reasons})" if reasons else n

    def lost_on(self, split: str) -> int:
        """Returns how many seeds are lost on a split."""
        return sum(self.lost.values()) + self.splits[split].non_finite

    @property
    def label(self) -> str:
        """Returns the variant as the paper calls it."""
        return variants.label(self.variant)

    @property
    def group(self) -> str:
        """Returns the group within which the best is marked."""
        return variants.group(self.variant)


def unfair(comparison: Comparison, row: VariantResult, baseline: VariantResult, split: str) -> str:
    """Returns why a rule of this module forbids the verdict better, worse or equal, whatever trials
    are still to come; empty if none does."""
    losers = {"better": [row], "worse": [baseline], "equal": [row, baseline]}.get(
        comparison.verdict
    )
    if losers is None:
        return ""
    if mixed := mixture(row, baseline):
        return mixed
    if lengths_differ(row, baseline):
        return "lengths"
    return "lost seeds" if any(side.lost_on(split) for side in losers) else ""


def mixture(row: VariantResult, baseline: VariantResult) -> str:
    """Returns why no comparison of two rows is fair, whatever it compares: `different data`, or
    `other points`; empty if it may be."""
    if len(row.data | baseline.data) > 1:
        return "different data"
    return "other points" if row.uncounted or baseline.uncounted else ""


def lengths_differ(row: VariantResult, baseline: VariantResult) -> bool:
    """Returns whether the medians of the trials' last steps are more than LENGTHS_APART apart."""
    low, high = sorted((row.last_step, baseline.last_step))
    return high - low > LENGTHS_APART * high


def choice_errors(row: VariantResult, base: VariantResult, shares_seeds: bool) -> dict[str, float]:
    """Returns by split the standard error of the difference of two rows' best points, the choice
    repeated, over the seeds that ended at every point; 0 where there is no such seed."""
    sides = [side.points or (side,) for side in (row, base)]
    seeds = [sorted(set.intersection(*(set(point.losses) for point in points))) for points in sides]
    shared = comparisons.paired_seeds(seeds[0], seeds[1], shares_seeds)
    if shared:
        seeds = [shared, shared]
    if not all(seeds):
        return dict.fromkeys(layout.SPLITS, 0.0)
    losses, values = [], []
    for points, of_side in zip(sides, seeds, strict=True):
        losses.append(np.array([[[x.losses[seed] for seed in of_side]] for x in points]))
        measured = [
            [[x.splits[split].values.get(seed, math.nan) for seed in of_side] for split in x.splits]
            for x in points
        ]
        values.append(np.array(measured))
    errors = choice.standard_errors((losses[0], losses[1]), (values[0], values[1]), bool(shared))
    return dict(zip(row.splits, errors.tolist(), strict=True))
