"""Rules by which a verdict is withheld although the test gives one: no fair comparison.

Lost seeds: a trial that diverged or failed has no number, and leaving it out flatters its variant:
3 of 5 seeds that went well say nothing of the other two. How bad they were cannot be put in
numbers, only on which side: a lost seed counts as worse than any that was measured. So a variant
that lost seeds is never better than the baseline, and where the baseline did none is worse.

Lengths: a run that went on for longer is better for that alone. AlgoPerf's end at their target, so
that fast submissions would be the worse ones; there it is the time to the target that compares.
"""

import dataclasses
from collections.abc import Iterable

from analysis.compare.error_table import ErrorTable, VariantResult
from analysis.statistics.results import Comparison

# By how much of the longer one the median last steps may differ: one evaluation of 20.
LENGTHS_APART = 0.05


def applied(
    comparison: Comparison, row: VariantResult, baseline: VariantResult, split: str
) -> Comparison:
    """Returns the comparison of `row` with `baseline` on `split`; its verdict is `cannot tell`,
    and `withheld` says why, where one of the rules above forbids the one it had."""
    lost = {"better": _lost(row, split), "worse": _lost(baseline, split)}
    if comparison.verdict != "cannot tell" and _lengths_differ(row, baseline):
        reason = "lengths"
    elif lost.get(comparison.verdict):
        reason = "lost seeds"
    else:
        return comparison
    return dataclasses.replace(comparison, verdict="cannot tell", withheld=reason)


def _lost(row: VariantResult, split: str) -> int:
    return sum(row.lost.values()) + row.splits[split].non_finite


def _lengths_differ(row: VariantResult, baseline: VariantResult) -> bool:
    """Whether the medians of the trials' last steps are more than LENGTHS_APART apart."""
    if row.last_step is None or baseline.last_step is None:
        return False
    low, high = sorted((row.last_step, baseline.last_step))
    return high - low > LENGTHS_APART * high


def footnotes(table: ErrorTable) -> Iterable[str]:
    """Yields what was lost, which lengths differ, and what follows from either."""
    some = [row.label for row in table.rows if _lost(row, table.decisive)]
    if some:
        yield (
            f"Lost seeds ({', '.join(some)}): trials that diverged or failed, or whose numbers are "
            "not finite, have no number here and count as worse than any: a variant with lost "
            "seeds is never better, and where the baseline lost some no variant is worse."
            f"{_kept_back(table, 'lost seeds')}"
        )
    baseline = table.baseline_row
    others = [row for row in table.rows if baseline and _lengths_differ(row, baseline)]
    if baseline and others:
        ends = ", ".join(f"{row.label} {row.last_step:,.0f}" for row in (baseline, *others))
        why = "AlgoPerf ends a run at its target, and " if table.study.published else ""
        yield (
            f"Runs of different lengths (median last step: {ends}; more than {LENGTHS_APART:.0%} "
            f"apart): {why}what longer training gives is no merit of a variant, so these are not "
            "judged by their final numbers; `python -m analysis time` compares how soon each "
            f"reaches the target.{_kept_back(table, 'lengths')}"
        )


def _kept_back(table: ErrorTable, reason: str) -> str:
    labels = [
        table.by_variant[name].label
        for name, each in table.comparisons.items()
        if each.withheld == reason
    ]
    return f" Cannot tell for that, whatever p is: {', '.join(labels)}." if labels else ""
