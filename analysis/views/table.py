"""The page on an error table: one table with verdicts; in detail the spread over seeds, comparisons
per split, failed runs, the power analysis and the last evaluations."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare import failed_runs, sensitivity, sentences
from analysis.compare.error_table import ErrorTable, VariantResult
from analysis.compare.failed_runs import FailedRuns
from analysis.compare.frames import costs, results
from analysis.load import metrics
from analysis.render import pages
from analysis.render.pages import Page, Table
from analysis.statistics.comparisons import Comparison
from sweeps.records import layout

PERPLEXITY = metrics.get("perplexity")
UNTESTED = Comparison()
# Headings of what `frames.costs` gives, and how it is printed.
COSTS = {"Training\nFLOP": ".2e", "Training\nseconds": ",.0f"}
# How a column's numbers are printed, as in `Table.formats`; None for words.
Form = str | Callable[[Any], str] | None


def page(table: ErrorTable, effect: float | None = None, details: bool = False) -> Page:
    """Returns the table of medians and verdicts with at most five notes, and with `details` the
    tables behind it. `effect` is a difference of the metric for the power analysis; what stands in
    for None: `sensitivity.expected`; what is raised: `sensitivity.check`. `data` is `results`; its
    power analysis takes as long as all the rest and is left out of the short table."""
    sensitivity.check(table, effect)
    failures = failed_runs.of_table(table)
    tables, notes = [_verdicts(table, failures)], sentences.notes(table)
    if details:
        measured = results(table, effect).query("kind == 'variant'")
        compared = measured[measured["n_baseline"].notna()]
        tables += [_spread(table, measured), _comparisons(table, compared)]
        if failures.any:
            tables.append(_rates(measured[measured["split"] == table.decisive]))
            tables.append(_without_failed(table, failures))
        tables.append(_power(table, compared[compared["split"] == table.decisive]))
        tables.append(_last_evaluations(table, measured[measured["last_n"].fillna(0) > 0]))
        notes += sentences.details(table)
    title = f"{table.study.name}: {table.metric.label} on {table.workload}, stage {table.stage}"
    shown = tuple(each for each in tables if len(each.frame))
    return Page(title, shown, tuple(notes), table.problems, lambda: results(table, effect))


def _table(
    caption: str, columns: Sequence[tuple[str, Sequence[Any], Form]], group: Iterable[Any] = ()
) -> Table:
    """Returns a table of columns: each a heading, the cells, how numbers are printed."""
    frame = pd.DataFrame({heading: list(cells) for heading, cells, _ in columns})
    formats = {heading: form for heading, _, form in columns if form is not None}
    return Table(caption, frame, formats, group=list(group))


def _verdicts(table: ErrorTable, failures: FailedRuns) -> Table:
    rows, form = table.rows, f".{table.metric.digits}f"
    columns: list[tuple[str, list[Any], Form]] = [
        ("Variant", [row.label for row in rows], None),
        ("n", [row.seeds for row in rows], ""),
    ]
    bold: dict[str, list[bool]] = {}
    if failures.any:
        rates = [failures.by_variant.get(row.variant) for row in rows]
        counts = [f"{each.rate.count} of {each.rate.n}" if each else None for each in rates]
        columns.append(("Failed\nto train", counts, ""))
    headings = {
        split: f"{split.title()}\nmeasured" if table.is_paper else split.title()
        for split in layout.SPLITS
    }
    for split, heading in headings.items():
        cells = [row.splits[split].paper for row in rows]
        if table.is_paper:
            printed = f"{split.title()}\npaper"
            columns.append((printed, [cell.text if cell else None for cell in cells], ""))
            bold[printed] = [cell is not None and cell.bold for cell in cells]
        summaries = [row.splits[split].summary for row in rows]
        medians = [summary.median if summary else math.nan for summary in summaries]
        columns.append((heading, medians, form))
        bold[heading] = _best(table, medians)
    title = table.decisive.title()
    if table.has_perplexity:
        perplexities = [_perplexity(table, row) for row in rows]
        columns.append((f"{title}\nperplexity", perplexities, f".{PERPLEXITY.digits}f"))
    if table.baseline_row:
        means = [summary.mean if (summary := table.of(row).summary) else None for row in rows]
        compared = [table.of(row).comparison or UNTESTED for row in rows]
        differences = [each.difference for each in compared]
        columns.append((f"{title},\nmean", means, form))
        columns.append((f"Mean -\n{table.baseline_label}", differences, f"+{form}"))
        if any(each.is_partial for each in compared):
            counts = [each.seeds if each.n else None for each in compared]
            columns.append(("n of\ntest", counts, ""))
        columns.append(("p\n(Holm)", [each.p_holm for each in compared], pages.p_text))
        columns.append(("Verdict", [_verdict(table, row) for row in rows], None))
    trained = [costs(table, row) for row in rows]
    for number, (heading, shown) in enumerate(COSTS.items()):
        of_rows = [of_row[number] for of_row in trained]
        if np.isfinite(of_rows).any():
            columns.append((heading, of_rows, shown))
    for reference in table.references:
        loss = reference.values[table.decisive]
        line: dict[str, Any] = {headings[split]: reference.values[split] for split in layout.SPLITS}
        line |= {"Variant": f"{reference.name} (reference)", "Verdict": "reference"}
        line[f"{title}\nperplexity"] = None if loss is None else PERPLEXITY.shown(loss)
        for heading, cells, _ in columns:
            cells.append(line.get(heading))
    unmarked = [False for _ in table.references]
    return dataclasses.replace(
        _table(f"{table.metric.title}, median over seeds; differences are of means", columns),
        bold={heading: [*marks, *unmarked] for heading, marks in bold.items()},
        group=[row.group for row in rows] + ["reference" for _ in table.references],
    )


def _best(table: ErrorTable, medians: Sequence[float]) -> list[bool]:
    """Returns for each variant whether none of its group has a better median, as printed: ties
    share it. The best of one is none."""
    printed = pd.Series([round(median, table.metric.digits) for median in medians])
    groups = printed.groupby([row.group for row in table.rows])
    best = groups.transform("min" if table.metric.lower_is_better else "max")
    return ((printed == best) & (groups.transform("count") > 1)).tolist()


def _perplexity(table: ErrorTable, row: VariantResult) -> float:
    """Returns the median over seeds of each seed's perplexity."""
    losses = list(table.of(row).values.values())
    return float(np.median(PERPLEXITY.shown(np.array(losses)))) if losses else math.nan


def _verdict(table: ErrorTable, row: VariantResult) -> str:
    word, comparison = sentences.word(table, row), table.of(row).comparison
    return f"{word} ({comparison.withheld})" if comparison and comparison.withheld else word


def _intervals(
    lines: pd.DataFrame, low: str, high: str, digits: int, signed: bool = False
) -> list[str]:
    bounds = zip(lines[low], lines[high], strict=True)
    return [pages.interval(*pair, digits, signed) for pair in bounds]


def _seeds(table: ErrorTable, lines: pd.DataFrame) -> list[str]:
    """Returns over how many seeds each line's comparison is."""
    compared = [
        table.by_variant[variant].splits[split].comparison or UNTESTED
        for variant, split in zip(lines["variant"], lines["split"], strict=True)
    ]
    return [comparison.seeds for comparison in compared]


def _spread(table: ErrorTable, lines: pd.DataFrame) -> Table:
    digits = table.metric.digits
    return _table(
        f"{table.metric.title} over seeds",
        [
            ("Variant", lines["label"], None),
            ("Split", lines["split"], None),
            ("n", lines["n"], ""),
            ("Median", lines["median"], f".{digits}f"),
            ("Mean", lines["mean"], f".{digits}f"),
            ("SD", lines["sd"], f".{digits}f"),
            ("95% interval\n(t)", _intervals(lines, "interval_low", "interval_high", digits), ""),
        ],
        lines["group"],
    )


def _comparisons(table: ErrorTable, lines: pd.DataFrame) -> Table:
    digits, tested = table.metric.digits, lines["test"] != "none"
    kinds = sorted(set(lines["effect_kind"][tested]))
    words = {"d_z": ", paired by seed", "g": ", seeds not paired"}
    bounds = _intervals(lines, "difference_low", "difference_high", digits, signed=True)
    return _table(
        f"Against {table.baseline_label}{words[kinds[0]] if len(kinds) == 1 else ''}",
        [
            ("Variant", lines["label"], None),
            ("Split", lines["split"], None),
            ("Mean\ndiff.", lines["difference"], f"+.{digits}f"),
            ("95% interval", bounds, ""),
            (" or ".join(kinds) or "Effect", lines["effect_size"], "+.1f"),
            ("n", _seeds(table, lines), ""),
            ("Test", lines["test"].where(tested), None),
            ("p", lines["p"], pages.p_text),
            ("p\n(Holm)", lines["p_holm"], pages.p_text),
            ("Verdict", lines["verdict"], None),
        ],
        lines["group"],
    )


def _rates(lines: pd.DataFrame) -> Table:
    lines = lines[lines["failed_of"].notna()]
    fails = lines["failed_verdict"].where(lines["verdict"] != "baseline", "baseline")
    return _table(
        "Runs that failed to train",
        [
            ("Variant", lines["label"], None),
            ("Runs", lines["failed_of"], ""),
            ("Failed", lines["failed"], ""),
            ("Rate", lines["failed"] / lines["failed_of"], ".2f"),
            ("95% interval", _intervals(lines, "failed_low", "failed_high", 2), ""),
            ("p\n(Fisher)", lines["failed_p"], pages.p_text),
            ("p\n(Holm)", lines["failed_p_holm"], pages.p_text),
            ("Fails", fails, None),
        ],
    )


def _without_failed(table: ErrorTable, failures: FailedRuns) -> Table:
    digits = table.metric.digits
    left = {name: each for name, each in failures.by_variant.items() if each.summary}
    summaries = [each.summary for each in left.values() if each.summary]
    compared = [each.comparison or UNTESTED for each in left.values()]
    bounds = [pages.interval(each.low, each.high, digits, signed=True) for each in compared]
    return _table(
        f"{table.metric.title} on {table.decisive} without the runs that failed to train",
        [
            ("Variant", [table.by_variant[name].label for name in left], None),
            ("n", [summary.n for summary in summaries], ""),
            ("Median", [summary.median for summary in summaries], f".{digits}f"),
            ("Mean", [summary.mean for summary in summaries], f".{digits}f"),
            ("SD", [summary.sd for summary in summaries], f".{digits}f"),
            ("Mean\ndiff.", [each.difference for each in compared], f"+.{digits}f"),
            ("95% interval", bounds, ""),
            ("n of\ntest", [each.seeds if each.n else None for each in compared], ""),
            ("p\n(Holm)", [each.p_holm for each in compared], pages.p_text),
        ],
    )


def _power(table: ErrorTable, lines: pd.DataFrame) -> Table:
    form = f".{table.metric.digits}f"
    kinds = tuple(set(lines["effect_kind"][lines["difference_sd"].notna()]))
    headings = {("d_z",): "SD of\ndifferences", ("g",): "Pooled\nSD"}
    needed = [None if n is None else sentences.seeds_text(n) for n in lines["seeds_needed"]]
    return _table(
        f"What these seeds can detect, on {table.decisive}",
        [
            ("Variant", lines["label"], None),
            ("n", _seeds(table, lines), ""),
            (headings.get(kinds, "SD"), lines["difference_sd"], form),
            (
                "Detectable\n(80% power)",
                lines["detectable"],
                lambda size: "none" if math.isinf(size) else f"{size:{form}}",
            ),
            ("Effect\nasked for", lines["expected_effect"], form),
            ("Seeds\nneeded", needed, ""),
        ],
    )


def _last_evaluations(table: ErrorTable, lines: pd.DataFrame) -> Table:
    form = f".{table.metric.digits}f"
    return _table(
        f"{table.metric.title} over the last {table.last} evaluations",
        [
            ("Variant", lines["label"], None),
            ("Split", lines["split"], None),
            ("n", lines["last_n"], ""),
            (f"Mean of\nlast {table.last}", lines["last_mean"], form),
            ("SD over\ncheckpoints", lines["last_sd_checkpoints"], form),
            ("SD over\nseeds", lines["last_sd_seeds"], form),
        ],
        lines["group"],
    )
