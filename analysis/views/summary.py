"""Several studies at once: what each variant does on every workload, and over all of them.

Columns are studies, one for each workload that they hold. An improvement is how much less error,
WER or loss than the baseline's mean, in per cent of it (more, where more is better).
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare import failed_runs, together
from analysis.compare.error_table import DEFAULT_BASELINE, ErrorTable
from analysis.compare.frames import DETECTABLE, results
from analysis.compare.verdicts import mixture
from analysis.load.records import Problem
from analysis.render import charts, pages
from analysis.statistics import across, comparisons
from analysis.statistics.intervals import Estimate
from analysis.views import sentences, speedup
from attention import table as variants

# Why a column adds no evidence on a variant: its trials stand in another column.
COPIED = "the same trials as"
OVER = ("variant", "workload", "quantity", "unit", "value", "low", "high", "count", "n")
MARKS = {"better": "▲", "worse": "▼", "cannot tell": "≈", "withheld": "○"} | {
    "better so far": "△",
    "worse so far": "▽",
    "equal": "=",
    "equal so far": "=",
}
# The quantities over all workloads: heading, decimals, whether a sign is printed.
QUANTITIES = {
    "effect": ("Mean effect\n[95%]", 2, True),
    "iqm": ("IQM of runs\nless baseline's, %", 1, True),
    "improvement": ("P(better run)\n[95%]", 2, False),
    "failed_to_train": ("Failed\nto train", 0, False),
    "step_time": ("Step time\n÷ baseline's", 2, False),
}


@dataclass(frozen=True)
class Overview:
    """The columns' `tables`, their `headings` (the workload, with the study where two columns are
    of one workload), the baseline that most of them have, and the variants, it first.

    `cells`: one row per variant and column (by its number) in which the variant was to be
    trained beside a baseline. `value` is in % of the baseline's mean over the compared seeds, which
    is treated as exact; it is NaN if no seeds are compared. `low` and `high` bound the 95% interval
    of the difference. `n` of the seeds `trained` are compared. p is corrected by Holm. The verdict
    may be `withheld`; then the column `withheld` has the reason. `left_out` says why the column is
    not in `over`.

    `over`, OVER: one row per variant and quantity over the columns that `workload` lists by their
    numbers from 1, of the runs that the columns' tests compare: `effect`, the mean standardised
    effect, nan if the columns' effects differ in kind, its `unit`; `iqm`, the interquartile mean
    of the runs' improvements less the baseline's, in %; `improvement`, the probability that one of
    its runs beats one of the baseline's; `step_time` over the baseline's; and over all columns of
    the baseline that can tell, `failed_to_train`, the share of its n runs that did.

    `problems` name studies that have no column and are no budget of a speed-up either.
    """

    tables: tuple[ErrorTable, ...]
    headings: tuple[str, ...]
    baseline: str
    variants: tuple[str, ...]
    cells: pd.DataFrame
    over: pd.DataFrame
    problems: tuple[Problem, ...]


def of_tables(tables: Sequence[ErrorTable]) -> Overview:
    """Returns the summary of error tables. Raises ValueError if none of them compares anything
    with a baseline, or if as many have one baseline as another."""
    left_out = {table: why for table in tables if (why := _why_no_column(table))}
    compared = [table for table in tables if table not in left_out]
    if not compared:
        reasons = "; ".join(f"{table.study.name}: {why}" for table, why in left_out.items())
        raise ValueError(f"nothing to sum up: {reasons}")
    baseline = _common_baseline(compared)
    others = {name for table in compared for name in table.by_variant if name != table.baseline}
    names = (baseline, *sorted(others - {baseline}, key=variants.order))
    workloads = [table.workload for table in compared]
    cells = _cells(compared, names, baseline)
    budgets = {table for experiment in speedup.experiments(tables) for table in experiment}
    return Overview(
        tables=tuple(compared),
        headings=tuple(
            table.workload
            if workloads.count(table.workload) == 1
            else f"{table.study.name}: {table.workload}"
            for table in compared
        ),
        baseline=baseline,
        variants=names,
        cells=cells,
        over=_over(compared, cells, baseline),
        problems=tuple(
            Problem("left out", "", "", f"{table.study.name}: {why}")
            for table, why in left_out.items()
            if table not in budgets
        ),
    )


def _why_no_column(table: ErrorTable) -> str:
    """Returns why a table has no column, empty if the baseline has numbers and another variant
    was to be trained."""
    base = table.baseline_row
    if base is None:
        return f"no variant {table.baseline} to compare with"
    if not table.of(base).values:
        return f"{table.baseline_label} has no number in stage {table.stage}"
    return "" if len(table.rows) > 1 else f"no variant beside {table.baseline_label}"


def _common_baseline(tables: Sequence[ErrorTable]) -> str:
    common = pd.Series([table.baseline for table in tables]).mode().tolist()
    if DEFAULT_BASELINE in common:
        return DEFAULT_BASELINE
    if len(common) > 1:
        raise ValueError(
            f"as many studies are compared with {' as with '.join(common)}: choose by --baseline"
        )
    return str(common[0])


def _cells(tables: Sequence[ErrorTable], names: Sequence[str], baseline: str) -> pd.DataFrame:
    rows = []
    p_all = together.p_over_all(tables)
    places: dict[str, str] = {}
    for name, (number, table) in itertools.product(names, enumerate(tables)):
        if name != table.baseline and name in table.by_variant:
            comparison = table.comparisons.get(name, comparisons.Comparison())
            scale = _scale(table, comparison.baseline)
            bounds = sorted((scale * comparison.low, scale * comparison.high))
            is_withheld = comparison.withheld and comparison.verdict == "cannot tell"
            verdict = "withheld" if is_withheld else comparison.verdict
            is_within = comparison.within and "equal" not in verdict
            why = "another baseline" if table.baseline != baseline else why_left_out(table, name)
            ids = {run.id for run in table.runs(table.by_variant[name]) if run.id}
            if copied := sorted({places[trial] for trial in ids if trial in places}):
                why = f"{COPIED} {', '.join(copied)}"
            places |= dict.fromkeys(ids - places.keys(), table.study.name)
            rows.append(
                {
                    "variant": name,
                    "column": number,
                    "study": table.study.name,
                    "workload": table.workload,
                    "quantity": "improvement_percent",
                    "value": scale * comparison.difference,
                    "low": bounds[0],
                    "high": bounds[1],
                    "n": comparison.pairs or comparison.n,
                    "trained": comparison.n,
                    "p": comparison.p_holm,
                    "p_all": p_all[number].get(name, math.nan),
                    "verdict": verdict,
                    # Of a difference that is shown and within the margin: `▼=`.
                    "mark": MARKS[verdict] + ("=" if is_within else ""),
                    "within": comparison.within,
                    "withheld": comparison.withheld,
                    "left_out": why,
                }
            )
    return pd.DataFrame(rows)


def _scale(table: ErrorTable, mean: float) -> float:
    """Returns what a difference is multiplied by to be an improvement in % of the baseline's mean,
    nan if that is 0 or unknown."""
    sign = -1 if table.metric.lower_is_better else 1
    return 100 * sign / abs(mean) if abs(mean) > 0 else math.nan


def why_left_out(table: ErrorTable, variant: str) -> str:
    """Returns why a column says nothing of a variant that the lines over all may use."""
    comparison = table.comparisons.get(variant, comparisons.Comparison())
    sides = [table.by_variant[name] for name in (variant, table.baseline)]
    reasons = {
        "lost seeds": any(row.lost or table.of(row).non_finite for row in sides),
        "fewer than 2 seeds to compare": not comparison.is_tested,
        "runs of different lengths": comparison.withheld == "lengths",
        "differences without a spread": math.isnan(comparison.effect),
        "a baseline's mean of 0": not abs(comparison.baseline) > 0,
    }
    return mixture(*sides) or next((reason for reason, holds in reasons.items() if holds), "")


def _over(tables: Sequence[ErrorTable], cells: pd.DataFrame, baseline: str) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for name, own in cells[cells["left_out"] == ""].groupby("variant", sort=False):
        listed = ", ".join(str(number + 1) for number in own["column"])
        estimates = _estimates([tables[number] for number in own["column"]], str(name))
        for (quantity, unit), estimate in estimates.items():
            row = {"variant": name, "workload": listed, "quantity": quantity, "unit": unit}
            rows.append(row | vars(estimate))
    copies = cells.groupby("column")["left_out"].agg(lambda why: why.str.startswith(COPIED).all())
    failures = [
        failed_runs.of_table(table)
        for number, table in enumerate(tables)
        if table.baseline == baseline and not copies.get(number, False)
    ]
    counts = pd.DataFrame(
        [
            {"variant": name, "count": failures.rate.count, "n": failures.rate.n}
            for failed in failures
            if failed.limit is not None
            for name, failures in failed.by_variant.items()
        ],
        columns=["variant", "count", "n"],
    )
    for name, count, n in counts.groupby("variant").sum().itertuples():
        rate = vars(comparisons.rate(count, n)) | {"value": count / n}
        row = {"variant": name, "workload": "", "quantity": "failed_to_train", "unit": ""}
        rows.append(row | rate)
    return pd.DataFrame(rows, columns=OVER)


def _estimates(tables: Sequence[ErrorTable], variant: str) -> dict[tuple[str, str], Estimate]:
    """Returns the estimates by quantity and unit."""
    compared = [table.comparisons[variant] for table in tables]
    effects = [
        math.copysign(comparison.effect, _scale(table, comparison.baseline) * comparison.difference)
        for table, comparison in zip(tables, compared, strict=True)
    ]
    kinds = " and ".join(sorted({comparison.effect_kind for comparison in compared}))
    runs = scores(tables, variant)
    mine, base = (runs.xs(side, axis=1, level=1).to_numpy() for side in ("variant", "baseline"))
    paired = [comparison.is_paired for comparison in compared]
    return {
        ("effect", kinds): across.mean_effect(effects, compared),
        ("iqm", ""): across.bootstrapped(across.iqm_difference, mine, base, paired),
        ("improvement", ""): across.bootstrapped(
            across.probability_of_improvement, mine, base, paired
        ),
        ("step_time", ""): across.mean_ratio([_step_ratios(table, variant) for table in tables]),
    }


def scores(tables: Sequence[ErrorTable], variant: str) -> pd.DataFrame:
    """Returns the improvements in % of the runs that the comparisons of `variant` are over, on the
    deciding splits: a row per seed, columns (number of the table, `variant` or `baseline`), nan
    if a table compares no such run."""
    improvements = {}
    for number, table in enumerate(tables):
        comparison = table.comparisons[variant]
        names = {"variant": variant, "baseline": table.baseline}
        runs = pd.DataFrame(
            {
                side: pd.Series(table.of(table.by_variant[name]).values)
                for side, name in names.items()
            }
        )
        runs = runs.dropna() if comparison.is_paired else runs
        improvements[number] = _scale(table, comparison.baseline) * (runs - comparison.baseline)
    return pd.concat(improvements, axis=1).sort_index()


def _step_ratios(table: ErrorTable, variant: str) -> np.ndarray:
    """Returns the logs of the seconds of a step over the baseline's, of each seed that has both."""
    ours, base = (
        {
            run.seed: run.trained_seconds / (run.last_step or 1)
            for run in table.runs(table.by_variant[name], ("done",))
        }
        for name in (variant, table.baseline)
    )
    ratios = (pd.Series(ours, dtype=float) / pd.Series(base, dtype=float)).sort_index()
    return np.log(ratios[ratios.gt(0) & np.isfinite(ratios)].to_numpy())


def page(overview: Overview) -> pages.Page:
    """Returns three tables: improvements by variant and workload; a line for each variant over all
    of them; the smallest differences that the seeds can detect. `data` is the former two's."""
    count = sum(table.baseline == overview.baseline for table in overview.tables)
    baseline = variants.label(overview.baseline)
    title = f"{count} {'study' if count == 1 else 'studies'} against {baseline}"
    if count < len(overview.tables):
        title += f", {len(overview.tables) - count} against another baseline"
    problems = dict.fromkeys(
        problem for table in overview.tables for problem in table.named_problems
    )
    power = pd.DataFrame(map(_power, overview.headings, overview.tables))
    return pages.Page(
        title=title,
        tables=(
            _by_workload(overview),
            *_over_all(overview),
            pages.text_table(
                f"Smallest differences that these seeds can detect {sentences.POWER}", power
            ),
        ),
        notes=tuple(_notes(overview)),
        problems=(*overview.problems, *problems),
        data=lambda: pd.concat([overview.cells.drop(columns=["column", "mark"]), overview.over]),
    )


def _by_workload(overview: Overview) -> pages.Table:
    cells = {}
    for cell in overview.cells.dropna(subset="value").itertuples():
        text = pages.estimate(cell.value, cell.low, cell.high, 1, signed=True)
        cells[cell.variant, cell.column] = f"{text} {cell.mark}"
    columns: dict[str, list[str | None]] = {"Variant": [*map(variants.label, overview.variants)]}
    for number, (heading, table) in enumerate(zip(overview.headings, overview.tables, strict=True)):
        lines = [heading, table.what]
        if table.baseline != overview.baseline:
            lines.append(f"against {table.baseline_label}")
        if any(row.unfinished for row in table.rows):
            lines.append("(unfinished)")
        columns["\n".join(lines)] = [
            "baseline" if name == table.baseline else cells.get((name, number))
            for name in overview.variants
        ]
    return pages.text_table(
        "Improvement in % of the baseline's mean [95% interval]: + is better",
        pd.DataFrame(columns),
    )


def _over_all(overview: Overview) -> Iterable[pages.Table]:
    """Yields the table of the baseline and of the variants with estimates, if there are any."""
    columns = overview.over.groupby("variant")["workload"].max()
    shown = [name for name in overview.variants if columns.get(name) or name == overview.baseline]
    if len(shown) < 2:
        return
    known = overview.over.dropna(subset="value")
    texts = known.assign(text=known.apply(_over_text, axis=1))
    frame = texts.pivot(index="variant", columns="quantity", values="text")
    frame = frame.reindex(index=shown, columns=[*QUANTITIES])
    frame.columns = [heading for heading, *_ in QUANTITIES.values()]
    frame.insert(0, "Variant", [*map(variants.label, shown)])
    frame.insert(1, "Columns", [columns.get(name) or None for name in shown])
    yield pages.text_table("Over all workloads, not corrected for the variants", frame)


def _over_text(row: pd.Series) -> str:
    if row["quantity"] == "failed_to_train":
        return f"{row['count']:.0f} of {row['n']:.0f}"
    _, digits, signed = QUANTITIES[row["quantity"]]
    text = pages.estimate(row["value"], row["low"], row["high"], digits, signed)
    return f"{row['unit']} {text}".strip()


def _power(heading: str, table: ErrorTable) -> dict[str, str | None]:
    """Returns what the seeds of a column can detect, in % of the baseline's mean, and the paper's
    effect of LASER, a share of the baseline's median (`sensitivity`)."""
    rows = results(table, None)
    rows = rows[rows["split"].eq(table.decisive) & rows["variant"].notna()].set_index("variant")
    base, laser = (rows.reindex([name]).iloc[0] for name in (table.baseline, "laser"))
    sizes = rows[[*DETECTABLE]].dropna().sort_values("detectable")
    sizes[[*DETECTABLE[:3]]] *= 100 / abs(base["mean"])
    texts = itertools.starmap(sentences.detectable_text, sizes.to_numpy())
    seeds = sorted(rows["n"][rows["n"] > 0])
    share = 100 * laser["expected_effect"] / abs(base["median"])
    needed = laser[["seeds_needed", "seeds_needed_low", "seeds_needed_high"]].astype(float)
    return {
        "Workload": heading,
        "Seeds": pages.span(map(str, seeds)),
        "Smallest difference\nfound (80% power), %": pages.span(texts),
        "Paper's effect\nof LASER, %": pages.decimals(share, 1),
        "Seeds it needs\n(LASER)": sentences.seeds_text(*needed),
    }


def _notes(overview: Overview) -> Iterable[str]:
    yield (
        "▲ better, ▼ worse, = equal, ≈ cannot tell (△, ▽: so far), by each study's own test on its "
        "deciding split, corrected; intervals are not. `python -m analysis table` has each test."
    )
    reasons = sorted(set(overview.cells["withheld"][overview.cells["verdict"] == "withheld"]))
    if reasons:
        yield f"○: the verdict is withheld ({', '.join(reasons)})."
    yield from sentences.over_studies(overview.tables)
    yield from sentences.caveats_of(overview.tables)
    partial = [
        f"{overview.headings[cell.column]}: {variants.label(cell.variant)} "
        f"{cell.n} of {cell.trained}"
        for cell in overview.cells.itertuples()
        if cell.n < cell.trained
    ]
    if partial:
        yield f"Tests over fewer seeds than were trained, those shared: {'; '.join(partial)}."
    left_out = [
        f"{variants.label(cell.variant)} on {overview.headings[cell.column]} ({cell.left_out})"
        for cell in overview.cells.itertuples()
        if cell.left_out
    ]
    if left_out:
        yield f"Not in the lines over all: {'; '.join(left_out)}."
    counted = overview.cells[overview.cells["left_out"] == ""]
    repeated = sorted(set(counted["workload"][counted.duplicated(["variant", "workload"])]))
    twice = f" These count several times: {', '.join(repeated)}." if repeated else ""
    yield (
        "Over all: docs/analysis.md, `Several studies at once`, defines the quantities. Lines over "
        f"different columns do not compare. Step times also depend on the machine's load.{twice}"
    )


def draw(overview: Overview) -> charts.Chart | None:
    """Returns the improvements with their intervals, a panel for each column, of which a decided
    one has its verdict's mark; None if nothing is compared."""
    panels = []
    for number, table in enumerate(overview.tables):
        cells = overview.cells[overview.cells["column"] == number].dropna(subset="value")
        labels = [f"{variants.label(cell.variant)} {cell.mark}" for cell in cells.itertuples()]
        rows = charts.interval_rows(
            cells.assign(label=labels),
            charts.channel("value:Q", title=f"% better than {table.baseline_label}"),
            charts.channel("label:N", title=None, sort=labels),
            [f"{name}:N" for name in ("variant", "study", "verdict")]
            + [f"{name}:Q" for name in ("value", "low", "high", "n", "p")],
        )
        zero = charts.reference_line("x", 0.0, charts.BLACK)
        title = {"text": f"{overview.headings[number]}, {table.what}", "fontSize": 12}
        panel = {"layer": [zero, *rows], "title": title, "width": 230, "height": {"step": 28}}
        panels.append(panel)
    if overview.cells["value"].isna().all():
        return None
    apart = {"scale": {"color": "independent", "shape": "independent"}}
    return {"concat": panels, "columns": 3, "resolve": apart}


PLOTS = (
    charts.FigureSpec(
        file="summary",
        draw=draw,
        alt_text=lambda overview: _by_workload(overview).alt_text(),
        absent="no variant is compared with a baseline",
        caption="Improvement over the baseline's mean, mean over seeds, with the difference's own "
        "95% interval, not corrected for the number of variants as the marks are: ▲ better, "
        "▼ worse, = equal, ≈ cannot tell, ○ withheld.",
    ),
)
