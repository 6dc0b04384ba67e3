"""The time to a target: steps and seconds per variant and seed, speed-ups; time_to_target."""

from collections.abc import Iterable

import altair as alt
import numpy as np
import pandas as pd

from analysis.compare import target_times
from analysis.compare.error_table import ErrorTable
from analysis.load import paper
from analysis.load.metrics import UnknownTargetError
from analysis.load.records import Problem
from analysis.render import charts, pages
from attention import table as variants
from sweeps.records import layout

# What a mark of the figure stands for, and its shape.
SHAPES = {"one seed": "circle", "never, at its budget": "triangle-right", "median": "M0,-1.5V1.5"}
SEED, LATE, MEDIAN = SHAPES
HOUR = 3600.0
RULES = {
    "chosen": "of each variant the trials at the hyperparameter point that validation chose over "
    "all seeds; AlgoPerf scores otherwise, by --points=fastest",
    "fastest": "AlgoPerf's, of each seed (study) the trial that reaches the target at the earliest "
    "evaluation; more points make it faster",
    "all": "every hyperparameter point is a row of its own",
}
# The paper's hours until the 2.2 B language model reaches a test loss.
PAPER_WORKLOAD, PAPER_LOSS, PAPER_SPLIT = "c4_lm_2b", 2.327, "test"
PAPER_HOURS = (
    *("text_hours_to_loss.csv", "decoder-LM-2.2B"),
    f"hours to test loss {PAPER_LOSS} on TPU v5",
)


def page(table: ErrorTable) -> pages.Page | None:
    """Returns the times at the points that validation chose and the target that the trials or
    AlgoPerf state, None if no run has an evaluation or nothing states a target."""
    times = _by_default(table)
    return None if times is None else page_of(times)


def _by_default(table: ErrorTable) -> target_times.TargetTimes | None:
    try:
        return target_times.build(table)
    except UnknownTargetError:
        return None


def without_target(table: ErrorTable, why: UnknownTargetError) -> pages.Page:
    """Returns the page of a study whose target nothing states."""
    return pages.Page(
        f"{table.study.name}: time to a target on {table.workload}",
        tables=(),
        problems=(Problem("note", "", "", str(why)), *table.problems),
    )


def page_of(times: target_times.TargetTimes) -> pages.Page:
    """Returns two tables, medians with speed-ups and every seed, and a third for the paper's
    hours where the study is of the model that it gives them for. `data` has a row per variant, its
    seed empty, and one per seed."""
    study = times.table.study.name
    data = pd.concat([times.rows, times.seeds]).assign(study=study)
    return pages.Page(
        title=f"{study}: time to {times.target.words} on {times.table.workload}",
        tables=(_medians(times), *_paper_hours(times.table), _seeds(times)),
        notes=tuple(_notes(times)),
        problems=times.problems,
        data=lambda: data,
    )


def _unit(times: target_times.TargetTimes) -> tuple[float, str, int]:
    """Returns the seconds of one unit of time, its name, and its decimals, hours from 2 h on."""
    is_long = times.seeds["last_seconds"].max() >= 2 * HOUR
    return (HOUR, "h", 2) if is_long else (1.0, "s", 1)


def _medians(times: target_times.TargetTimes) -> pages.Table:
    seconds, unit, digits = _unit(times)
    rows = times.rows
    columns = {
        "Variant": rows["label"],
        "Seeds\nreached": _reached(rows),
        "Steps": _median_texts(rows, "step", 1.0, 0),
        f"Time\n({unit})": _median_texts(rows, "seconds", seconds, digits),
    }
    if "step_ratio" in rows:
        if times.table.study.shares_seeds:
            columns["Pairs"] = rows["step_n"].where(rows["step_method"] != "Welch")
        columns["Speed-up\nin steps"] = _ratio_texts(rows, "step")
        columns["Speed-up\nin time"] = _ratio_texts(rows, "seconds")
    return pages.text_table(
        "Median over seeds until the target is first reached",
        pd.DataFrame(columns),
        Pairs=".0f",
    )


def _reached(rows: pd.DataFrame) -> pd.Series:
    return rows["reached"].astype(str) + " of " + rows["n"].astype(str)


def _median_texts(rows: pd.DataFrame, name: str, unit: float, digits: int) -> pd.Series:
    texts = (rows[name] / unit).map(f"{{:,.{digits}f}}".format, na_action="ignore")
    # Without a single number the column is of floats, and has no text to add to.
    return texts.mask(rows[f"{name}_is_bound"], "> " + texts.astype(object))


def _ratio_texts(rows: pd.DataFrame, name: str) -> list[str]:
    columns = [f"{name}_{key}" for key in ("method", "ratio", "low", "high")] + ["withheld"]
    texts = []
    for method, ratio, low, high, withheld in rows[columns].itertuples(index=False):
        text = pages.estimate(ratio, low, high, 3)
        if low == high:
            text = f"{ratio:.3f} (all equal)"
        words = {"medians": f"{text} (no interval)", "units": "other units"}
        if withheld:
            text, words = f"withheld ({withheld})", {}
        texts.append("baseline" if pd.isna(method) else words.get(method, text))
    return texts


def _seeds(times: target_times.TargetTimes) -> pages.Table:
    seconds, unit, digits = _unit(times)
    seeds = times.seeds
    frame = seeds[["label", "seed"]].set_axis(["Variant", "Seed"], axis=1)
    if times.rule == "fastest":
        # Which of a seed's trials was the fastest; none where none reached the target.
        frame["Point"] = seeds["point"].where(np.isfinite(seeds["evaluation"]))
    for heading, name, scale, form in (
        ("Steps", "step", 1.0, "{:,.0f}"),
        (f"Time ({unit})", "seconds", seconds, f"{{:,.{digits}f}}"),
    ):
        late = (seeds[f"last_{name}"] / scale).map(f"not in {form}".format)
        texts = (seeds[name] / scale).map(form.format, na_action="ignore")
        frame[heading] = texts.mask(np.isinf(seeds[name]), late)
    return pages.text_table("Every seed", frame.assign(State=seeds["state"]), Point=".0f")


def _paper_hours(table: ErrorTable) -> Iterable[pages.Table]:
    """Yields the paper's hours beside the median over seeds of ours, for the paper's model."""
    if table.workload != PAPER_WORKLOAD:
        return
    try:
        rows = target_times.build(table, PAPER_LOSS, PAPER_SPLIT, "loss").rows
    except ValueError:  # no test loss, or no run that has ended
        return
    printed = [paper.printed(*PAPER_HOURS, name) for name in rows["variant"]]
    columns = {
        "Variant": rows["label"],
        "Seeds\nreached": _reached(rows),
        "Hours\npaper": [cell.text if cell else None for cell in printed],
        "Hours\nmeasured": _median_texts(rows, "seconds", HOUR, 2),
    }
    yield pages.text_table(
        f"Hours to test loss {PAPER_LOSS}; paper: {paper.SOURCE}, on TPU v5",
        pd.DataFrame(columns),
    )


def _notes(times: target_times.TargetTimes) -> Iterable[str]:
    apart = sorted({round(steps) for steps in times.rows["apart"].dropna()})
    spacing = pages.span(f"{steps:,}" for steps in apart) or "an unknown number of"
    yield (
        f"Target: {times.target.words}, {times.target.source}. A time is that of the first "
        f"evaluation which reaches it; evaluations are {spacing} steps apart."
    )
    yield (
        "'> x': the median is of seeds that never reached the target, among them those that "
        f"diverged or failed. Rule: {RULES[times.rule]}."
    )
    seeds = times.seeds
    never = seeds[seeds["state"].isin(layout.LOST) & np.isinf(seeds["step"])]
    ended = [f"{each.label} seed {each.seed} ({each.state})" for each in never.itertuples()]
    ended += [f"{variants.label(name)} (no trial is done)" for name in times.unchosen]
    if ended:
        yield f"Counted as never: {', '.join(ended)}."
    waiting = [
        f"{variants.label(run.variant)} point {run.point} seed {run.seed} ({run.state})"
        for run in times.left_out
    ]
    if waiting:
        yield f"Left out, as they may yet reach the target: {', '.join(waiting)}."
    yield (
        f"Speed-up: {variants.label(times.baseline)}'s over the variant's, on the same machines; "
        "above 1 the variant is faster. docs/analysis.md, `Time, size, spikes`, has the intervals."
    )


def marks(times: target_times.TargetTimes) -> pd.DataFrame:
    """Returns the marks of the figure, one row per quantity and seed or median: variant, label,
    seed (nan for a median), state, `axis`, what `value` is, and `mark`, a key of SHAPES."""
    seconds, unit, _ = _unit(times)
    parts = []
    for name, scale, axis in (
        ("step", 1.0, "training step"),
        ("seconds", seconds, f"training time ({unit})"),
    ):
        is_late = np.isinf(times.seeds[name])
        value = times.seeds[name].mask(is_late, times.seeds[f"last_{name}"])
        seeds = times.seeds.assign(value=value, mark=np.where(is_late, LATE, SEED))
        medians = times.rows[~times.rows[f"{name}_is_bound"]]
        both = pd.concat([seeds, medians.assign(value=medians[name], mark=MEDIAN)])
        parts.append(both.assign(value=both["value"] / scale, axis=axis))
    return pd.concat(parts)[["variant", "label", "seed", "state", "axis", "value", "mark"]].dropna(
        subset="value"
    )


def draw(table: ErrorTable) -> alt.FacetChart | None:
    """Returns the seeds and their medians by step and by training time, at the points and the
    target that `target_times.build` takes by default; None if no run has an evaluation or a
    target, or no seed reaches it."""
    times = _by_default(table)
    if times is None or not times.rows["reached"].any():
        return None
    names = list(times.rows["variant"].unique())
    shapes = alt.Scale(domain=[*SHAPES], range=[*SHAPES.values()])
    return (
        alt.Chart(marks(times))
        .mark_point(size=80, strokeWidth=2)
        .encode(
            x=alt.X("value:Q", title=None, scale=alt.Scale(zero=True)),
            y=alt.Y("label:N", title=None, sort=list(times.rows["label"])),
            color=charts.colour(names, legend=False),
            shape=alt.Shape("mark:N", title=None, scale=shapes),
            opacity=charts.faded(),
            tooltip=["variant", "seed", "state", "value", "mark"],
        )
        .properties(width=300, height=alt.Step(30))
        .facet(column=alt.Column("axis:N", title=None, sort=None))
        .resolve_scale(x="independent")
        .properties(title=f"{times.table.study.name}: {times.target.words}, {table.workload}")
    )


PLOTS = (
    charts.FigureSpec(
        file="time_to_target",
        draw=draw,
        alt_text=lambda table: _medians(target_times.build(table)).alt_text(),
        absent="no target is known, or no seed reached it",
        caption="First evaluation at or past the target, one mark per seed.",
    ),
)
