"""Several studies on one page: variants by workloads, each variant over all of them, and what these
seeds could have seen."""

import itertools
from collections.abc import Iterable

import altair as alt
import pandas as pd

from analysis.compare.error_table import ErrorTable
from analysis.compare.frames import DETECTABLE, results
from analysis.compare.summary import Overview
from analysis.render import charts, pages
from analysis.views import sentences
from attention import table as variants

MARKS = {"better": "▲", "worse": "▼", "cannot tell": "≈", "withheld": "○"} | {
    "better so far": "△",
    "worse so far": "▽",
}
# The quantities over all workloads: heading, decimals, whether a sign is printed.
OVER = {
    "effect": ("Mean effect\n[95%]", 2, True),
    "iqm": ("IQM of runs\nless baseline's, %", 1, True),
    "improvement": ("P(better run)\n[95%]", 2, False),
    "failed_to_train": ("Failed\nto train", 0, False),
    "step_time": ("Step time\n÷ baseline's", 2, False),
}


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
        data=lambda: pd.concat([overview.cells.drop(columns="column"), overview.over]),
    )


def _by_workload(overview: Overview) -> pages.Table:
    cells = {}
    for cell in overview.cells.dropna(subset="value").itertuples():
        text = pages.estimate(cell.value, cell.low, cell.high, 1, signed=True)
        cells[cell.variant, cell.column] = f"{text} {MARKS[cell.verdict]}"
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
    frame = frame.reindex(index=shown, columns=[*OVER])
    frame.columns = [heading for heading, *_ in OVER.values()]
    frame.insert(0, "Variant", [*map(variants.label, shown)])
    frame.insert(1, "Columns", [columns.get(name) or None for name in shown])
    yield pages.text_table("Over all workloads, not corrected for the variants", frame)


def _over_text(row: pd.Series) -> str:
    if row["quantity"] == "failed_to_train":
        return f"{row['count']:.0f} of {row['n']:.0f}"
    _, digits, signed = OVER[row["quantity"]]
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
        "▲ better, ▼ worse, ≈ cannot tell (△, ▽: so far), by each study's own test on its deciding "
        "split after Holm's correction; intervals are not corrected. `python -m analysis table` "
        "has each test."
    )
    reasons = sorted(set(overview.cells["withheld"][overview.cells["verdict"] == "withheld"]))
    if reasons:
        yield f"○: the verdict is withheld ({', '.join(reasons)})."
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


def draw(overview: Overview) -> alt.ConcatChart | None:
    """Returns the improvements with their intervals, a panel for each column, of which a decided
    one has its verdict's mark; None if nothing is compared."""
    panels = []
    for number, table in enumerate(overview.tables):
        cells = overview.cells[overview.cells["column"] == number].dropna(subset="value")
        labels = [
            f"{variants.label(cell.variant)} {MARKS[cell.verdict]}" for cell in cells.itertuples()
        ]
        rows = charts.interval_rows(
            cells.assign(label=labels),
            alt.X("value:Q", title=f"% better than {table.baseline_label}"),
            alt.Y("label:N", title=None, sort=labels),
            ["variant", "study", "value", "low", "high", "n", "p", "verdict"],
        )
        zero = charts.reference_line("x", 0.0, charts.BLACK)
        title = alt.Title(f"{overview.headings[number]}, {table.what}", fontSize=12)
        panels.append(alt.layer(zero, rows).properties(title=title, width=230, height=alt.Step(28)))
    if overview.cells["value"].isna().all():
        return None
    return alt.concat(*panels, columns=3).resolve_scale(color="independent", shape="independent")


PLOTS = (
    charts.FigureSpec(
        file="summary",
        draw=draw,
        alt_text=lambda overview: _by_workload(overview).alt_text(),
        absent="no variant is compared with a baseline",
        caption="Improvement over the baseline's mean, mean over seeds, with the difference's own "
        "95% interval, not corrected for the number of variants as the marks are: ▲ better, "
        "▼ worse, ≈ cannot tell, ○ withheld.",
    ),
)
