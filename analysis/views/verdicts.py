"""What a study says, in sentences: one for each variant, and one above them all."""

import math
from dataclasses import dataclass

from analysis.compare import failed_runs as failed
from analysis.compare.error_table import ErrorTable, VariantResult
from analysis.render import pages
from analysis.statistics.results import Comparison
from analysis.views.table import failed_runs

MARKS = {"better": "▲", "worse": "▼", "cannot tell": "≈", "baseline": "●"} | {
    "not compared": "○",
    "no number": "–",
}


# Why a verdict is withheld although the test gives one: `verdict_rules` has the rules.
WITHHELD = {
    "lost seeds": "no verdict, since seeds were lost that may have been worse",
    "lengths": "no verdict, since the runs differ in length: see the time to the target",
}


@dataclass(frozen=True)
class VariantVerdict:
    """One variant's: `word` is better, worse, cannot tell, baseline, not compared (there is no
    baseline) or no number; `mark` is a sign that does without colour, `sentence` gives the
    numbers."""

    label: str
    word: str
    mark: str
    sentence: str


def of_table(table: ErrorTable) -> list[VariantVerdict]:
    """Returns the verdict of every variant, in the table's order."""
    found = [(row, _word(table, row)) for row in table.rows]
    return [
        VariantVerdict(row.label, word, MARKS[word], _sentence(table, row, word))
        for row, word in found
    ]


def headline(table: ErrorTable) -> str:
    """Returns which variants are better or worse than the baseline, by how much and with which p,
    how many are not told apart from it, and which rows' runs failed to train."""
    if not table.has_baseline:
        return f"No verdict: no variant called {table.baseline_label} to compare with."
    base, what = table.baseline_label, table.what
    if not table.of(table.by_variant[table.baseline]).values:
        return f"No verdict on {what}: {base}, the baseline, has no number."
    words: dict[str, list[str]] = {"better": [], "worse": [], "cannot tell": []}
    for name, comparison in table.comparisons.items():
        label = table.by_variant[name].label
        words[comparison.verdict].append(f"{label} ({_numbers(table, comparison)})")
    parts = [
        f"{', '.join(labels)} {word} than {base}"
        for word, labels in words.items()
        if labels and word != "cannot tell"
    ]
    if unclear := words["cannot tell"]:
        whom = f"the {'other ' if parts else ''}{len(unclear)} variants"
        whom = whom if len(unclear) > 2 else " or ".join(unclear)
        parts.append(f"cannot tell {whom} from {base}")
    if not parts:
        return f"No verdict on {what}: nothing but the baseline has numbers."
    said = "; ".join(parts)
    failures = failed_runs.sentence(table, failed.of_table(table))
    return f"{what[0].upper()}{what[1:]}: {said}.{' ' if failures else ''}{failures}"


def _word(table: ErrorTable, row: VariantResult) -> str:
    result = table.of(row)
    if result.summary is None:
        return "no number"
    if row.variant == table.baseline:
        return "baseline"
    return result.comparison.verdict if result.comparison else "not compared"


def _sentence(table: ErrorTable, row: VariantResult, word: str) -> str:
    result, digits = table.of(row), table.metric.digits
    if result.summary is None:
        return f"no trial that is done has a {table.what}."
    mean, middle = (
        pages.number(value, digits).text for value in (result.summary.mean, result.summary.median)
    )
    several = f"on average over {row.seeds} seeds (median {middle})"
    said = f"{table.what} {mean} {'of 1 seed' if row.seeds == '1' else several}"
    if word == "baseline" or result.comparison is None:
        return f"{said}."
    return f"{said}; {_difference(table, result.comparison)}."


def _numbers(table: ErrorTable, comparison: Comparison) -> str:
    """Returns the mean difference and p: `-0.0300, p <0.001`."""
    difference = pages.number(comparison.difference, table.metric.digits, signed=True).text
    p = "" if math.isnan(comparison.p_holm) else f", {pages.p_in_words(comparison.p_holm)}"
    return f"{difference}{p}"


def _difference(table: ErrorTable, comparison: Comparison) -> str:
    digits = table.metric.digits
    texts = [pages.number(comparison.difference, digits, signed=True).text]
    if abs(comparison.baseline) > 0:  # not of nan either
        texts.append(f"({comparison.difference / abs(comparison.baseline):+.1%})")
    if math.isfinite(comparison.low):
        bounds = (comparison.low, comparison.high)
        low, high = (pages.number(bound, digits, signed=True).text for bound in bounds)
        texts.append(f"[{low}, {high}]")
    said = f"mean difference {' '.join(texts)}"
    if comparison.is_partial:
        said += f" over the {comparison.pairs} seeds that both have"
    if math.isnan(comparison.p_holm):
        return f"{said}, too few seeds for a test"
    tested = f"{said}, {pages.p_in_words(comparison.p_holm)} after Holm"
    return f"{tested}; {WITHHELD[comparison.withheld]}" if comparison.withheld else tested
