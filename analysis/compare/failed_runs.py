"""Runs that failed to train: finished without having learned anything.

A median hides them and they inflate a mean, so they are counted, and their rates compared. A run
has failed to train where validation, at the step that it chose, removes less than LEAST_REMOVED of
a constant answer's error, WER or loss. The constant answer is the best of the reference rows marked
`constant`: a class, a transcript (or none), the frequencies of tokens. CTC's plateau is not the
constant transcript to the letter (a WER of 0.88, where that has 0.8955). A run that diverged has
failed to train, too; one that crashed says nothing.
"""

import dataclasses
from dataclasses import dataclass

from analysis.compare.error_table import ErrorTable
from analysis.compare.verdicts import NON_FINITE
from analysis.load import metrics
from analysis.statistics import comparisons

LEAST_REMOVED = 0.1
# How the verdict on a rate is shown before the study has finished.
SO_FAR: dict[str, comparisons.Frequency] = {
    "more often": "more often so far",
    "less often": "less often so far",
}
# Constant answers that hold by definition, where no row is recorded: an empty transcript makes an
# error of every word; of ImageNet's 1,000 classes each has as many images of validation and test.
# By the metric that chooses, as it is shown, and the beginning of the workload's name.
BY_DEFINITION = {
    ("wer", ""): (1.0, "empty transcript"),
    ("error", "imagenet"): (0.999, "always one class"),
}


@dataclass(frozen=True)
class VariantFailures:
    """One variant's: its `rate`, compared with the baseline's; the `seeds` of finished runs that
    failed."""

    rate: comparisons.Rate
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class FailedRuns:
    """`answer` names the best constant answer, whose number is `constant`, and a run has failed
    whose number is above `limit`; empty and None if none is recorded, so that only runs that
    diverged are counted. Variants without a run that ended are not among `by_variant`."""

    answer: str
    constant: float | None
    limit: float | None
    by_variant: dict[str, VariantFailures]

    @property
    def any(self) -> bool:
        """Returns whether any run failed to train."""
        return any(failures.rate.count for failures in self.by_variant.values())


def of_table(table: ErrorTable) -> FailedRuns:
    """Returns the runs of a table that failed to train."""
    constant, answer = _constant_answer(table)
    limit = None if constant is None else (1 - LEAST_REMOVED) * constant
    seeds: dict[str, tuple[int, ...]] = {}
    rates: dict[str, comparisons.Rate] = {}
    for row in table.rows:
        above = [seed for seed, value in row.chosen.items() if limit is not None and value > limit]
        seeds[row.variant] = tuple(above)
        diverged = row.lost.get("diverged", 0) + row.lost.get(NON_FINITE, 0)
        if n := row.n + diverged:
            rates[row.variant] = comparisons.rate(len(above) + diverged, n)
    rates = comparisons.compare_rates(rates, table.baseline, table.family, table.threshold)
    for name, rate in rates.items():
        if rate.verdict in SO_FAR and table.withheld(name):
            rates[name] = dataclasses.replace(rate, verdict="cannot tell")
        elif rate.verdict in SO_FAR and not table.unfinished.isdisjoint((name, table.baseline)):
            rates[name] = dataclasses.replace(rate, verdict=SO_FAR[rate.verdict])
    by_variant = {name: VariantFailures(rate, seeds[name]) for name, rate in rates.items()}
    return FailedRuns(answer, constant, limit, by_variant)


def _constant_answer(table: ErrorTable) -> tuple[float | None, str]:
    """Returns the best constant answer's number of the metric that chooses, and its name."""
    shown = metrics.shown_for(table.chosen_by)
    if not shown.lower_is_better:
        return None, ""  # how much of BLEU's or SSIM's best an answer lacks has no such measure
    known = [
        (reference.constant, reference.name)
        for reference in table.references
        if reference.constant is not None
    ]
    workload = table.workload.removeprefix("algoperf:")
    defined = [
        answer
        for (metric, begins), answer in BY_DEFINITION.items()
        if metric == shown.name and workload.startswith(begins)
    ]
    return min(known or defined, key=lambda answer: answer[0], default=(None, ""))
