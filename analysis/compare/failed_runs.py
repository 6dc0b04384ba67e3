"""Runs that failed to train: finished, and hardly better than the same answer for every example.

A median hides them and a mean is inflated by them, so they are counted, their rates compared, and
the table repeated without them. The same answer is the best of the reference rows that are marked
`constant`: a class, a transcript (or none), the frequencies of tokens. A run has failed to train
where validation, at the step that it chose, removes less than LEAST_REMOVED of that answer's error,
WER or loss: what CTC's plateau says is not the constant transcript to the letter (a WER of 0.88,
where that has 0.8955). A run that diverged has failed to train, too; one that crashed says nothing.
"""

from dataclasses import dataclass

from analysis.compare.build import NON_FINITE
from analysis.compare.error_table import ErrorTable, Reference, VariantResult
from analysis.load import metrics
from analysis.statistics import comparisons, intervals, rates
from analysis.statistics.results import Comparison, Rate, RateComparison, Summary

LEAST_REMOVED = 0.1
# Other limits, as shares of the constant answer's number, at which runs are counted, too: where the
# counts change, runs lie on both sides of the rule's edge.
OTHER_LIMITS = (0.5, 0.8, 0.95)
# What is so by definition where no row is recorded: who says nothing makes an error of every word,
# and of ImageNet's 1,000 classes each has as many images of validation and test. By the metric
# that chooses, as it is shown, and the beginning of the workload's name.
BY_DEFINITION = {
    ("wer", ""): Reference("empty transcript", {}, constant=True, chosen=1.0),
    ("error", "imagenet"): Reference("always one class", {}, constant=True, chosen=0.999),
}


@dataclass(frozen=True)
class VariantFailures:
    """One variant's: its `rate`, the `seeds` of finished runs that failed, how the rate compares
    with the baseline's (None for the baseline, and without one), and its numbers on the deciding
    split without those runs: None where nothing is left, or nothing is compared, or no run of any
    variant failed, so that it is what the table says."""

    rate: Rate
    seeds: tuple[int, ...]
    against: RateComparison | None
    summary: Summary | None
    comparison: Comparison | None


@dataclass(frozen=True)
class FailedRuns:
    """`answer` is the best constant answer and `limit` the number from which on a run has failed;
    both None where none is recorded, so that only runs that diverged are counted. Variants without
    a run that ended are not among `by_variant`."""

    answer: Reference | None
    limit: float | None
    by_variant: dict[str, VariantFailures]

    def beyond(self, table: ErrorTable, share: float) -> dict[str, int]:
        """Returns how many finished runs of each variant are above `share` of the answer's number,
        none where there is no answer."""
        if self.answer is None or self.answer.chosen is None:
            return {}
        limit = share * self.answer.chosen
        return {
            name: sum(value > limit for value in table.by_variant[name].chosen.values())
            for name in self.by_variant
        }

    @property
    def any(self) -> bool:
        """Returns whether any run failed to train."""
        return any(each.rate.count for each in self.by_variant.values())


def of_table(table: ErrorTable) -> FailedRuns:
    """Returns what failed to train in a table's runs, and what the table says without them."""
    answer = _constant(table)
    limit = None if answer is None or answer.chosen is None else _limit(answer.chosen)
    seeds = {row.variant: _failed(row, limit) for row in table.rows}
    found = {row.variant: _rate(row, seeds[row.variant]) for row in table.rows}
    known = {name: each for name, each in found.items() if each is not None}
    others = [name for name in known if name != table.baseline]
    against: dict[str, RateComparison] = {}
    if base := known.get(table.baseline):
        corrected = rates.corrected([known[name] for name in others], base)
        against = dict(zip(others, corrected, strict=True))
    failed = any(each.count for each in known.values())
    left: dict[str, dict[int, float]] = {row.variant: {} for row in table.rows}
    left |= {
        row.variant: {
            seed: value
            for seed, value in table.of(row).values.items()
            if seed not in seeds[row.variant]
        }
        for row in table.rows
        if failed
    }
    without = _comparisons(table, left)
    return FailedRuns(
        answer if limit is not None else None,
        limit,
        {
            name: VariantFailures(
                rate=each,
                seeds=seeds[name],
                against=against.get(name),
                summary=intervals.summarise(list(left[name].values())) if left[name] else None,
                comparison=without.get(name),
            )
            for name, each in known.items()
        },
    )


def _constant(table: ErrorTable) -> Reference | None:
    """Returns the best constant answer that the metric which chooses is known of."""
    shown = metrics.shown_for(table.chosen_by.source)
    if not shown.lower_is_better:
        return None  # how much of BLEU's or SSIM's best an answer lacks has no such measure
    known = [each for each in table.references if each.constant and each.chosen is not None]
    known = known or [
        answer
        for (metric, begins), answer in BY_DEFINITION.items()
        if metric == shown.name and table.workload.removeprefix("algoperf:").startswith(begins)
    ]
    return min(known, key=lambda each: each.chosen or 0.0, default=None)


def _limit(constant: float) -> float:
    return (1 - LEAST_REMOVED) * constant


def _failed(row: VariantResult, limit: float | None) -> tuple[int, ...]:
    if limit is None:
        return ()
    return tuple(seed for seed, value in row.chosen.items() if value > limit)


def _rate(row: VariantResult, seeds: tuple[int, ...]) -> Rate | None:
    """Returns a row's rate over its runs that trained to an end, None where there are none."""
    diverged = row.lost.get("diverged", 0) + row.lost.get(NON_FINITE, 0)
    n = row.n + diverged
    return rates.rate(len(seeds) + diverged, n) if n else None


def _comparisons(table: ErrorTable, left: dict[str, dict[int, float]]) -> dict[str, Comparison]:
    """Returns each variant's comparison on what is left of the deciding split, p corrected."""
    base = left.get(table.baseline)
    names = [name for name, values in left.items() if values and name != table.baseline]
    if not base or not names:
        return {}
    pairs = [comparisons.compare(left[name], base, table.study.shares_seeds) for name in names]
    found = comparisons.corrected(pairs, table.metric.lower_is_better)
    return dict(zip(names, found, strict=True))
