"""Scores on the tasks of suites: variants x tasks, means, each task against the baseline; and a
figure of the scores with their intervals.

Percentages have two decimals, as the paper's.
"""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare import suite_scores
from analysis.compare.error_table import ErrorTable
from analysis.compare.suite_scores import MEAN, SuiteTable
from analysis.load import paper
from analysis.render import charts, pages
from attention import table as variants

PERCENT = 100.0
# Formats of percentages and of their differences.
SCORE, CHANGE = ".2f", "+.2f"
PRINTED_CELL = operator.attrgetter("text")


# A column of the scores to its heading and how it is printed; fractions as percentages.
PRINTED: dict[str, tuple[str, Any]] = {
    "label": ("Variant", ""),
    "task": ("Task", ""),
    "n": ("Questions", ","),
    "seeds": ("Seeds", ""),
    "score": ("Score", SCORE),
    "interval": ("95 %, other\nquestions", str),
    "difference": ("Difference", CHANGE),
    "seeds_compared": ("Seeds\ncompared", ""),
    "seeds_baseline": ("Seeds of the\nbaseline", ""),
    "difference_interval": ("95 % of it,\nother questions", str),
    "right_alone": ("Right: it\nalone", ""),
    "baseline_alone": ("Right: baseline\nalone", ""),
    "p": ("p", pages.p_text),
    "p_holm": ("p (Holm),\nquestions", pages.p_text),
    "seeds_interval": ("95 % of it,\nother seeds", str),
    "seeds_p_holm": ("p (Holm),\nseeds", pages.p_text),
    "paper": ("Paper", PRINTED_CELL),
    "paper_difference": ("Paper's\ndifference", CHANGE),
}
MEANS = (
    *("label", "seeds", "score", "interval", "difference", "difference_interval"),
    *("seeds_compared", "seeds_baseline", "p_holm", "seeds_interval", "seeds_p_holm"),
    *("paper", "paper_difference"),
)
TASKS = (
    *("label", "task", "n", "score", "interval", "difference", "difference_interval"),
    *("seeds_compared", "seeds_baseline", "right_alone", "baseline_alone", "p", "p_holm"),
    "paper_difference",
)
# What the last rows of the first table say of each task.
QUESTIONS = {"questions": "n", "published questions": "published_n", "contexts cut": "truncated"}
INTERVALS = (
    ("interval", "low", "high"),
    ("difference_interval", "difference_low", "difference_high"),
    ("seeds_interval", "seeds_low", "seeds_high"),
)


def page(
    table: ErrorTable, suite: str | None = None, metric: str | None = None, step: int | None = None
) -> pages.Page | None:
    """Returns the tables of every suite that the trials of `table` were asked, or of one, None
    if they were asked none. `metric` and `step` as `compare.suite_scores.of_table` has them.

    `data` has the rows of SuiteTable.scores, fractions at full precision, `metrics` as name=value
    and `paper`, the fraction that the paper prints where the study is the paper's.
    """
    suites = suite_scores.of_table(table, suite, metric, step)
    if not suites:
        return None
    tables: list[pages.Table] = []
    notes: list[str] = []
    data = []
    for scored in suites:
        rows = _with_paper(scored, table)
        metrics = rows["metrics"].map(
            lambda values: " ".join(f"{name}={value!r}" for name, value in values.items()),
            na_action="ignore",
        )
        fractions = [cell.value / PERCENT if cell else np.nan for cell in rows["paper"]]
        data.append(rows[[*suite_scores.COLUMNS]].assign(metrics=metrics, paper=fractions))
        if len(rows):
            made = _tables(scored, rows)
            tables += [task_table for task_table in made if len(task_table.frame)]
            notes += _notes(scored, rows)
    problems = [problem for scored in suites for problem in scored.problems]
    return pages.Page(
        title=f"{table.study.name}: downstream tasks on {table.workload}, stage {table.stage}",
        tables=tuple(tables),
        notes=tuple(notes),
        problems=tuple(dict.fromkeys(problems)),
        data=lambda: pd.concat(data, ignore_index=True),
    )


def _with_paper(scored: SuiteTable, table: ErrorTable) -> pd.DataFrame:
    """Returns the scores with the paper's cells, those over the last checkpoints, and the paper's
    difference from the baseline, a fraction; of a study that is not the paper's, all undefined."""
    entry, study, scores = paper.SUITES.get(scored.suite), table.study, scored.scores
    is_paper = bool(study.paper_table or study.paper_note)
    suite = scored.suite if entry and is_paper and entry.workload == table.workload else ""
    places = [
        (variant, None if task == MEAN else task)
        for variant, task in zip(scores["variant"], scores["task"], strict=True)
    ]
    cells = [paper.of_suite(suite, variant, task) for variant, task in places]
    values = pd.Series([cell.value / PERCENT if cell else np.nan for cell in cells], scores.index)
    is_baseline = scores["variant"] == scored.baseline
    base = dict(zip(scores["task"][is_baseline], values[is_baseline], strict=True))
    return scores.assign(
        paper=cells,
        paper_difference=(values - scores["task"].map(base)).where(~is_baseline),
    )


def _tables(scored: SuiteTable, rows: pd.DataFrame) -> Iterator[pages.Table]:
    rows = rows.assign(
        group=rows["variant"].map(lambda name: variants.group(name) if name else "reference"),
    )
    for name, low, high in INTERVALS:
        rows[name] = [
            None if np.isnan(ends[0]) else pages.interval(*ends, 2, signed=name != "interval")
            for ends in zip(PERCENT * rows[low], PERCENT * rows[high], strict=True)
        ]
    fractions = [name for name, (_, form) in PRINTED.items() if form in (SCORE, CHANGE)]
    rows[fractions] = PERCENT * rows[fractions].astype(float)
    place = f"suite {scored.suite}, step {scored.step}"
    yield _overview(scored, rows, f"Right answers in percent, {place}")
    rows = rows[rows["kind"] == "variant"]
    is_mean = rows["task"] == MEAN
    over = f"{len(scored.tasks)} tasks" if len(scored.tasks) > 1 else "one task"
    yield _table(f"Mean over {over} in percent, {place}", rows[is_mean], MEANS)
    base = variants.label(scored.baseline)
    yield _table(
        f"Each task against {base}, {place}", rows[~is_mean & rows["difference"].notna()], TASKS
    )


def _table(caption: str, rows: pd.DataFrame, names: Sequence[str]) -> pages.Table:
    """Returns the columns `names` as a table, but for those that no row has."""
    printed = {name: PRINTED[name] for name in names if rows[name].notna().any()}
    frame = rows[[*printed]].set_axis([heading for heading, _ in printed.values()], axis=1)
    bold = {
        heading: [bool(cell and cell.bold) for cell in rows[name]]
        for name, (heading, form) in printed.items()
        if form is PRINTED_CELL
    }
    return pages.Table(
        caption,
        frame.reset_index(drop=True),
        formats={heading: form for heading, form in printed.values() if form},
        bold=bold,
        group=rows["variant" if "task" in printed else "group"].tolist(),
    )


def _overview(scored: SuiteTable, rows: pd.DataFrame, caption: str) -> pages.Table:
    """Returns variants x tasks, below them answers without a model, the paper's rows and how many
    questions there are."""
    is_ours = rows["kind"] == "variant"
    best = rows["score"].where(is_ours).groupby(rows["task"]).transform("max")
    is_best = is_ours & np.isclose(rows["score"], best, rtol=0, atol=1e-10)
    theirs = rows[rows["paper"].notna()]
    theirs = theirs.assign(
        group="paper",
        label="paper: " + theirs["label"],
        score=theirs["paper"].map(PRINTED_CELL),
        bold=[cell.bold for cell in theirs["paper"]],
    )
    counts = [
        {"group": "questions", "variant": "", "label": label, "task": name, "bold": False}
        | {"score": f"{getattr(task, key):,}"}
        for label, key in QUESTIONS.items()
        for name, task in scored.tasks.items()
        if getattr(task, key)
    ]
    body = pd.concat([rows.assign(bold=is_best), theirs, pd.DataFrame(counts)]).astype(
        {"score": object}
    )
    keys = ["group", "variant", "label"]
    order = pd.MultiIndex.from_frame(body[keys].drop_duplicates())
    scores, bold = (
        body.pivot(index=keys, columns="task", values=name)
        .reindex(index=order, columns=[*scored.tasks, MEAN])
        .rename(columns={MEAN: "Mean"})
        for name in ("score", "bold")
    )
    scores.insert(0, "Variant", order.get_level_values("label"))
    return pages.Table(
        caption,
        scores.reset_index(drop=True),
        formats=dict.fromkeys(bold.columns, SCORE),
        bold={name: marks.eq(True).tolist() for name, marks in bold.items()},
        group=order.get_level_values("group").tolist(),
    )


def _notes(scored: SuiteTable, rows: pd.DataFrame) -> Iterator[str]:
    """Yields how to read a suite's tables; docs/analysis.md has the rest."""
    metrics = pd.Series(scored.metrics)
    listed = "; ".join(
        f"{metric}: {', '.join(tasks.index)}" for metric, tasks in metrics.groupby(metrics)
    )
    shots = " or ".join(map(str, sorted({task.shots for task in scored.tasks.values()})))
    harness = " and ".join(filter(None, scored.harness)) or "an unnamed harness"
    yield (
        f"Suite {scored.suite}, {shots} shots, judged by {harness}. Metrics: {listed}. Bold: the "
        "highest of a column."
    )
    if rows["difference"].notna().any():
        yield (
            "Intervals and p are over other questions for the same trained models, unless a column "
            "says seeds. p of a task is exact (McNemar's test for one seed). Holm's correction is "
            "over variants and tasks. See docs/analysis.md, Downstream tasks."
        )
    elif scored.baseline not in set(rows["variant"]):
        base = variants.label(scored.baseline)
        yield f"Nothing is compared: no trial of {base} was asked; --baseline=NAME takes another."
    if rows["paper"].notna().any():
        place = paper.SUITES[scored.suite].place
        yield f"paper: {paper.SOURCE}, {place}; digits and bold as printed."


def draw(table: ErrorTable) -> charts.Chart | None:
    """Returns the scores of each suite beside the differences from the baseline, None if no
    trial was asked any."""
    suites = [_panels(scored) for scored in _suites(table)]
    if not suites:
        return None
    return {"vconcat": suites, "title": f"{table.study.name}: scores on downstream tasks"}


def _suites(table: ErrorTable) -> list[SuiteTable]:
    return [
        scored for scored in suite_scores.of_table(table, None, None, None) if len(scored.scores)
    ]


def _panels(scored: SuiteTable) -> charts.Chart:
    """Returns a suite's scores and their differences from the baseline's, a row for each task."""
    numbers = ["score", "low", "high", "difference", "difference_low", "difference_high"]
    rows = scored.scores.assign(**(PERCENT * scored.scores[numbers]))
    scores = rows[rows["kind"] == "variant"]
    compared = scores.dropna(subset=["difference"]).assign(
        low=scores["difference_low"], high=scores["difference_high"]
    )
    names = list(scores["variant"].unique())
    y = charts.channel("task:N", sort=[*scored.tasks, MEAN], title=None)
    size = {"width": 300, "height": (len(scored.tasks) + 1) * (10 + 9 * len(names))}

    def intervals(frame: pd.DataFrame, x: str, title: str) -> list[charts.Chart]:
        axis = charts.channel(f"{x}:Q", title=title, scale={"zero": False})
        tooltip = ["label:N", "task:N", f"{x}:Q", "low:Q", "high:Q", "n:Q", "seeds:Q"]
        layers = charts.interval_rows(frame, axis, y, tooltip, legend=True)
        for layer in layers:
            layer["encoding"]["yOffset"] = charts.channel("variant:N", sort=names)
        return layers

    references = charts.marks(
        "tick",
        rows[rows["kind"] == "reference"].dropna(subset=["score"]),
        {"x": charts.channel("score:Q"), "y": y, "tooltip": ["label:N", "task:N", "score:Q"]},
        color=charts.GREY,
        thickness=2,
        size=16,
    )
    base = variants.label(scored.baseline)
    right = [references, *intervals(scores, "score", "right answers (%)")]
    minus = intervals(compared, "difference", f"minus {base} (points)")
    return {
        "hconcat": [
            {"layer": right, "title": f"{scored.suite}, step {scored.step}", **size},
            {"layer": [charts.reference_line("x", 0.0), *minus], **size},
        ]
    }


def alt_text(table: ErrorTable) -> str:
    """Returns every variant's mean over tasks, suite by suite."""
    scores = pd.concat([scored.scores for scored in _suites(table)])
    means = scores[(scores["kind"] == "variant") & (scores["task"] == MEAN)]
    printed = means[["label", "suite", "score"]].assign(score=PERCENT * means["score"])
    return pages.Table(
        "Right answers on downstream tasks by variant, mean over tasks, in %",
        printed,
        {"score": SCORE},
    ).alt_text()


PLOTS = (
    charts.FigureSpec(
        file="downstream",
        draw=draw,
        alt_text=alt_text,
        absent="no suite has a task that can be read",
        caption="Scores on each task with 95 % intervals over questions, and differences from the "
        "baseline, paired question by question. Intervals are not corrected for their number; "
        "p-values are. Within a task variants stand in the order of the legend. Grey: answers "
        "without a model, such as chance and the majority class.",
        applies=lambda table: bool(suite_scores.of_table(table, None, None, None)),
    ),
)
