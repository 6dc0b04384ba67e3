"""The page on an error table: one table with verdicts; in detail the spread over seeds, comparisons
per split, failed runs, the power analysis and the last evaluations."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare import failed_runs, item_intervals, sensitivity
from analysis.compare.error_table import ErrorTable, Reference
from analysis.compare.frames import DETECTABLE, TO_REACH, costs, results
from analysis.compare.verdicts import VariantResult
from analysis.load import metrics
from analysis.render import pages
from analysis.statistics.comparisons import Comparison
from analysis.views import sentences
from sweeps.records import layout

PERPLEXITY = metrics.get("perplexity")
UNTESTED = Comparison()
FAILED, N_OF_TEST = "Failed\nto train", "n of\ntest"
ITEMS = (
    "Over seeds: what other seeds would give on these items (images, utterances, sequences). Over "
    "seeds and items: what other items of the same kind would give, too. Neither covers other "
    "training data; where points were chosen, only the former repeats the choice."
)
# How a column's numbers are printed, as in `Table.formats`; None for words.
Form = str | Callable[[Any], str] | None


def page(
    table: ErrorTable,
    effect: float | None = None,
    details: bool = False,
    target: float | None = None,
    items: bool = False,
) -> pages.Page:
    """Returns the table of medians and verdicts with at most five notes, with `target`, a number of
    the metric, the tests of it, with `items` the intervals over seeds and items, and with `details`
    the tables behind the verdicts. `effect` is a
    difference of the metric for the power analysis; what stands in for None:
    `sensitivity.expected`; what is raised: `sensitivity.check`. `data` is `results`; its power
    analysis takes as long as all the rest and is left out of the short table."""
    sensitivity.check(table, "--effect", effect)
    sensitivity.check(table, "--target", target)
    # Without a target as other pages ask, which share the frame.
    data = functools.partial(results, table, effect, *([] if target is None else [target]))
    failures = failed_runs.of_table(table)
    tables, notes = [_verdicts(table, failures)], sentences.notes(table)
    if target is not None:
        tables.append(_targets(table, target, data().dropna(subset="target")))
    if items:
        tables.append(_items(table))
        notes.append(ITEMS)
    if details:
        tables += _details(table, data().query("kind == 'variant'"), failures)
        tables.append(_points(table, data().query("kind == 'point' and split == @table.decisive")))
        notes += [*sentences.details(table), "Bold: the best median of a group of mechanisms."]
    else:
        notes.append(
            "How to read this: docs/analysis.md, section Tables; `--details` prints the rest."
        )
    title = f"{table.study.name}: {table.metric.label} on {table.workload}, stage {table.stage}"
    shown = tuple(printed for printed in tables if len(printed.frame))
    return pages.Page(title, shown, tuple(notes), table.problems, data)


def _table(
    caption: str, columns: Sequence[tuple[str, Iterable[Any], Form]], group: Iterable[Any] = ()
) -> pages.Table:
    """Returns a table of columns: each a heading, the cells, how numbers are printed."""
    frame = pd.DataFrame({heading: list(cells) for heading, cells, _ in columns})
    formats = {heading: form for heading, _, form in columns if form is not None}
    return pages.Table(caption, frame, formats, group=list(group))


def _headings(table: ErrorTable) -> dict[str, str]:
    """Returns the headings of the short table by the names of its columns: `median_test` is the
    median over seeds on test, `paper_test` the paper's number."""
    title, ours = table.decisive.title(), "\nmeasured" if table.is_paper else ""
    of_splits = {}
    for split in layout.SPLITS:
        of_splits[f"paper_{split}"] = f"{split.title()}\npaper"
        of_splits[f"median_{split}"] = f"{split.title()}{ours}"
    return {
        "label": "Variant",
        "point": "Point",
        "n": "n",
        "failed": FAILED,
        **of_splits,
        "perplexity": f"{title}\nperplexity",
        "mean": f"{title},\nmean",
        "difference": f"Mean -\n{table.baseline_label}",
        "interval": "95% interval",
        "n_of_test": N_OF_TEST,
        "p_holm": _corrected(table),
        "verdict": "Verdict",
        "flop": "Training\nFLOP",
        "seconds": "Training\nseconds",
    }


def _corrected(table: ErrorTable) -> str:
    """Returns the heading of corrected p-values."""
    return "p\n(look)" if table.threshold else "p\n(Holm)"


def _line(
    table: ErrorTable,
    row: VariantResult,
    failures: failed_runs.FailedRuns,
    points: Mapping[int | None, str],
) -> dict[str, Any]:
    """Returns a variant's cells by their columns."""
    result, failed = table.of(row), failures.by_variant.get(row.variant)
    compared, trained = result.comparison or UNTESTED, costs(table, row)
    # Of each seed's perplexity, not of the losses.
    perplexities = PERPLEXITY.shown(np.array(list(result.values.values())))
    line = {
        "label": row.label,
        "point": points.get(row.point),
        "n": row.seeds,
        "failed": f"{failed.rate.count} of {failed.rate.n}" if failed else None,
        "perplexity": float(np.median(perplexities)) if result.values else math.nan,
        "mean": result.summary.mean if result.summary else math.nan,
        "difference": compared.difference,
        "interval": pages.interval(compared.low, compared.high, table.metric.digits, signed=True),
        "n_of_test": compared.seeds if compared.n else None,
        "p_holm": compared.p_holm,
        "verdict": sentences.outcome(
            sentences.word(table, row), compared.withheld, compared.within
        ),
        "flop": trained["train_flop"],
        "seconds": trained["train_seconds"],
    }
    for split, of_split in row.splits.items():
        line[f"paper_{split}"] = of_split.paper.text if of_split.paper else None
        line[f"median_{split}"] = of_split.summary.median if of_split.summary else math.nan
    return line


def _reference_line(table: ErrorTable, reference: Reference) -> dict[str, Any]:
    """Returns a reference's cells by their columns."""
    loss = reference.values[table.decisive]
    return {
        "label": f"{reference.name} (reference)",
        "verdict": "reference",
        "perplexity": None if loss is None else PERPLEXITY.shown(loss),
        **{f"median_{split}": value for split, value in reference.values.items()},
    }


def _verdicts(table: ErrorTable, failures: failed_runs.FailedRuns) -> pages.Table:
    """Returns the short table: a line for each variant, then for each reference, without columns
    that have no cell."""
    headings, form = _headings(table), f".{table.metric.digits}f"
    printed = [f"paper_{split}" for split in layout.SPLITS]
    measured = [f"median_{split}" for split in layout.SPLITS]
    points = sentences.points(table)
    lines = [_line(table, row, failures, points) for row in table.rows]
    lines += [_reference_line(table, reference) for reference in table.references]
    frame = pd.DataFrame(lines, columns=[*headings])
    is_shown = {
        **dict.fromkeys(("point", "interval"), any(row.points for row in table.rows)),
        "failed": failures.any,
        **dict.fromkeys(printed, table.is_paper),
        # Where the loss is the target, exp(loss) stands beside it.
        "perplexity": table.metric == table.chosen_by == metrics.get("loss"),
        **dict.fromkeys(("mean", "difference", "p_holm", "verdict"), bool(table.baseline_row)),
        "n_of_test": any(comparison.is_partial for comparison in table.comparisons.values()),
        **frame[["flop", "seconds"]].notna().any().to_dict(),
    }
    formats: dict[str, Any] = {
        **dict.fromkeys(("n", "failed", "interval", "n_of_test", *printed), ""),
        **dict.fromkeys((*measured, "mean"), form),
        "perplexity": f".{PERPLEXITY.digits}f",
        "difference": f"+{form}",
        "p_holm": pages.p_text,
        "flop": ".2e",
        "seconds": ",.0f",
    }
    unmarked = [False for _ in table.references]
    bold = {}
    for split in layout.SPLITS:
        cells = [row.splits[split].paper for row in table.rows]
        bold[headings[f"paper_{split}"]] = [bool(cell and cell.bold) for cell in cells] + unmarked
        medians = frame[f"median_{split}"].iloc[: len(table.rows)]
        bold[headings[f"median_{split}"]] = _best(table, medians) + unmarked
    return pages.Table(
        f"{table.metric.title}, median over seeds; differences are of means",
        frame[[name for name in headings if is_shown.get(name, True)]].rename(columns=headings),
        {headings[name]: form for name, form in formats.items()},
        bold,
        [row.group for row in table.rows] + ["reference" for _ in table.references],
    )


def _targets(table: ErrorTable, target: float, lines: pd.DataFrame) -> pages.Table:
    """Returns the tests of whether each mean reaches `target`, of which `lines` are."""
    form, side = f".{table.metric.digits}f", "≤" if table.metric.lower_is_better else "≥"
    untested = "no test (" + lines["target_untested"] + ")"
    p_values = lines["target_p"].map(pages.p_text, na_action="ignore").fillna(untested)
    seeds = itertools.starmap(sentences.seeds_text, lines[[*TO_REACH]].to_numpy())
    return _table(
        f"Is the mean {table.what} {side} {target:g}? One-sided t-tests, not corrected",
        [
            ("Variant", lines["label"], None),
            ("n", lines["n"], ""),
            ("Mean", lines["mean"], form),
            ("Mean -\ntarget", lines["mean"] - target, f"+{form}"),
            ("p", p_values, ""),
            (f"Seeds for\np < {sensitivity.REACHED}", seeds, ""),
        ],
        lines["group"],
    )


def _items(table: ErrorTable) -> pages.Table:
    """Returns the differences with both intervals, and why there is none over items."""
    digits, form = table.metric.digits, f".{table.metric.digits}f"
    lines = item_intervals.of_table(table)
    compared = [table.comparisons[line.row.variant] for line in lines]
    return _table(
        f"Mean {table.what} - {table.baseline_label}, with 95% intervals",
        [
            ("Variant", [line.row.label for line in lines], None),
            ("n", [comparison.seeds for comparison in compared], ""),
            ("Items", [line.number or None for line in lines], ","),
            ("Mean\ndiff.", [comparison.difference for comparison in compared], f"+{form}"),
            ("Over seeds", [pages.interval(x.low, x.high, digits, True) for x in compared], ""),
            (
                "Over seeds and items",
                [
                    pages.interval(x.over_items.low, x.over_items.high, digits, True)
                    if x.over_items
                    else f"none: {x.why}"
                    for x in lines
                ],
                "",
            ),
        ],
        [line.row.group for line in lines],
    )


def _best(table: ErrorTable, medians: pd.Series) -> list[bool]:
    """Returns for each variant whether none of its group has a better median, as printed: ties
    share it. The best of one is none."""
    printed = medians.astype(float).round(table.metric.digits)
    groups = printed.groupby([row.group for row in table.rows])
    best = groups.transform("min" if table.metric.lower_is_better else "max")
    return ((printed == best) & (groups.transform("count") > 1)).tolist()


def _intervals(
    lines: pd.DataFrame, low: str, high: str, digits: int, signed: bool = False
) -> list[str]:
    bounds = zip(lines[low], lines[high], strict=True)
    return [pages.interval(*ends, digits, signed) for ends in bounds]


def _seeds(table: ErrorTable, lines: pd.DataFrame) -> list[str]:
    """Returns over how many seeds each line's comparison is."""
    return [
        (table.by_variant[variant].splits[split].comparison or UNTESTED).seeds
        for variant, split in zip(lines["variant"], lines["split"], strict=True)
    ]


def _details(
    table: ErrorTable, lines: pd.DataFrame, failures: failed_runs.FailedRuns
) -> Iterator[pages.Table]:
    """Yields the tables behind the verdicts: the spread over seeds, comparisons on every split,
    runs that failed to train, the power analysis, the end of training. `lines` are those of
    `results` of variants."""
    digits, form = table.metric.digits, f".{table.metric.digits}f"
    yield _table(
        f"{table.metric.title} over seeds",
        [
            ("Variant", lines["label"], None),
            ("Split", lines["split"], None),
            ("n", lines["n"], ""),
            ("Median", lines["median"], form),
            ("Mean", lines["mean"], form),
            ("SD", lines["sd"], form),
            ("95% interval\n(t)", _intervals(lines, "interval_low", "interval_high", digits), ""),
        ],
        lines["group"],
    )
    compared = lines[lines["n_baseline"].notna()]
    tested = compared["test"] != "none"
    kinds = sorted(set(compared["effect_kind"][tested]))
    words = {"d_z": ", paired by seed", "g": ", seeds not paired"}
    bounds = _intervals(compared, "difference_low", "difference_high", digits, signed=True)
    yield _table(
        f"Against {table.baseline_label}{words[kinds[0]] if len(kinds) == 1 else ''}",
        [
            ("Variant", compared["label"], None),
            ("Split", compared["split"], None),
            ("Mean\ndiff.", compared["difference"], f"+{form}"),
            ("95% interval", bounds, ""),
            (" or ".join(kinds) or "Effect", compared["effect_size"], "+.1f"),
            ("n", _seeds(table, compared), ""),
            ("Test", compared["test"].where(tested), None),
            ("p", compared["p"], pages.p_text),
            (_corrected(table), compared["p_holm"], pages.p_text),
            *([("p\n(equal)", compared["p_equal"], pages.p_text)] if table.margin else []),
            ("Verdict", sentences.outcomes(compared), None),
        ],
        compared["group"],
    )
    if failures.any:
        yield _rates(table, lines[lines["split"].eq(table.decisive) & lines["failed_of"].notna()])
    yield _power(table, compared[compared["split"] == table.decisive])
    ends = lines[lines["last_n"].fillna(0) > 0]
    yield _table(
        f"{table.metric.title} over the last {table.last} evaluations",
        [
            ("Variant", ends["label"], None),
            ("Split", ends["split"], None),
            ("n", ends["last_n"], ""),
            (f"Mean of\nlast {table.last}", ends["last_mean"], form),
            ("SD over\ncheckpoints", ends["last_sd_checkpoints"], form),
            ("SD over\nseeds", ends["last_sd_seeds"], form),
        ],
        ends["group"],
    )


def _points(table: ErrorTable, lines: pd.DataFrame) -> pages.Table:
    """Returns the differences at each point on the deciding split, of which `lines` are."""
    lines = lines.sort_values("point", kind="stable")
    digits, form = table.metric.digits, f".{table.metric.digits}f"
    chosen = {(row.variant, row.point) for row in table.rows}
    places = zip(lines["variant"], lines["point"], strict=True)
    bounds = _intervals(lines, "difference_low", "difference_high", digits, signed=True)
    return _table(
        f"Difference at each point, {table.what}; p is not corrected",
        [
            ("Variant", lines["label"], None),
            ("Point", lines["point"].map(sentences.points(table)), None),
            ("Chosen", ["yes" if place in chosen else "" for place in places], None),
            ("n", lines["n"], ""),
            ("Mean", lines["mean"], form),
            ("Mean\ndiff.", lines["difference"], f"+{form}"),
            ("95% interval", bounds, ""),
            ("p", lines["p"], pages.p_text),
        ],
        lines["point"],
    )


def _rates(table: ErrorTable, lines: pd.DataFrame) -> pages.Table:
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
            (_corrected(table), lines["failed_p_holm"], pages.p_text),
            ("Fails", fails, None),
        ],
    )


def _power(table: ErrorTable, lines: pd.DataFrame) -> pages.Table:
    form = f".{table.metric.digits}f"
    kinds = tuple(set(lines["effect_kind"][lines["difference_sd"].notna()]))
    headings = {("d_z",): "SD of\ndifferences", ("g",): "Pooled\nSD"}
    detectable = lines[[*DETECTABLE]]
    needed = lines[["seeds_needed", "seeds_needed_low", "seeds_needed_high"]].astype(float)
    return _table(
        f"What these seeds can detect, on {table.decisive} {sentences.POWER}",
        [
            ("Variant", lines["label"], None),
            ("n", _seeds(table, lines), ""),
            (headings.get(kinds, "SD"), lines["difference_sd"], form),
            (
                "Detectable\n(80% power)",
                itertools.starmap(sentences.detectable_text, detectable.to_numpy()),
                "",
            ),
            ("Effect\nasked for", lines["expected_effect"], form),
            ("Seeds\nneeded", itertools.starmap(sentences.seeds_text, needed.to_numpy()), ""),
        ],
    )
