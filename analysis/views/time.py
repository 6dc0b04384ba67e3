"""The time to a target: steps and seconds per variant and seed, and speed-ups."""

import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pandas as pd

from analysis.compare.error_table import ErrorTable
from analysis.load import metrics, selection
from analysis.load.measurements import STEP
from analysis.load.metrics import UnknownTargetError
from analysis.load.records import TIME, Problem, Run
from analysis.render import pages
from analysis.statistics.across import SpeedUp, speed_up
from attention import table as variants
from sweeps.records import layout

# Submissions of AlgoPerf's logs ran on the same machines, and their steps differ in price by less;
# one of 2025 logs a step of which takes 218 of another's.
OTHER_UNITS = 10.0
# What is timed; `seconds` are of accumulated_submission_time: training, without evaluation and
# logging.
QUANTITIES = ("step", "seconds")
HOUR = 3600.0
RULES = {
    "chosen": "of each variant the trials at the hyperparameter point that validation chose over "
    "all seeds; AlgoPerf scores otherwise, by --points=fastest",
    "fastest": "AlgoPerf's, of each seed (study) the trial that reaches the target at the earliest "
    "evaluation; more points make it faster",
    "all": "every hyperparameter point is a row of its own",
}


@dataclasses.dataclass(frozen=True)
class TargetTimes:
    """When the runs of `table` reach `target`, by `rule`: chosen, fastest or all.

    `seeds`: one row per seed of a row of `rows`: what `crossings` gives of its trial, and `label`,
    the variant's, with its point where a variant has several.

    `rows`: one row per variant, or per variant and point: variant, point (its first seed's), label,
    `reached` of `n` seeds, `last_seconds`, the longest run's, `apart`, the largest, and `price`,
    the median seconds of a step; for each of QUANTITIES its median over seeds and
    `<quantity>_is_bound` (`medians`); against the baseline, if there is one, what `across.SpeedUp`
    has, as `<quantity>_ratio`, `_low`, `_high`, `_n` and `_method`, nan on its own row.

    `withheld` says why a ratio is no result (`ErrorTable.withheld`), empty if it may be.

    `left_out` are the runs that may yet reach the target, pending or running ones; `unchosen` names
    variants without a chosen point.
    """

    table: ErrorTable
    target: metrics.Target
    baseline: str
    rule: str
    seeds: pd.DataFrame
    rows: pd.DataFrame
    left_out: tuple[Run, ...]
    unchosen: tuple[str, ...]
    problems: tuple[Problem, ...]


@functools.lru_cache(maxsize=8)
def build(
    table: ErrorTable,
    target: float | None = None,
    split: str = selection.VALIDATION,
    metric: str | None = None,
    points: str = "chosen",
    baseline: str | None = None,
) -> TargetTimes:
    """Returns the times of every variant of `table`: at the point that validation chose
    (`points` = chosen), of each seed the fastest trial (AlgoPerf's rule), or of all points. A
    variant of which no point was chosen has never reached the target.

    `target` is in the unit of `metric` (error, wer ...; the target's own metric unless given);
    without it, the runs' or AlgoPerf's. Raises UnknownTargetError if there is none or no run
    has ended, ValueError for a metric other than the target's without a value, or one that no
    evaluation has.
    """
    chosen = {row.variant: row.point for row in table.rows}
    due = [
        run
        for run in table.study.stage(table.stage)
        if points != "chosen" or chosen.get(run.variant) in (None, run.point)
    ]
    # A trial that diverged or failed did not reach what it had not reached; one still running may.
    runs = [run for run in due if run.state in layout.FINISHED]
    if not runs:
        raise UnknownTargetError("no run that could reach a target; give another stage or point")
    measured = [run for run in runs if run.evals]
    goal, problems = _target(table, measured, target, split, metric)
    if measured and not any(goal.metric.column(split) in run.evals for run in measured):
        raise ValueError(goal.metric.missing(measured[0], split))

    unchosen = {name for name, point in chosen.items() if point is None and points == "chosen"}
    seeds = _seeds(crossings(runs, goal), points, unchosen)
    rows = _rows(seeds)
    against = baseline or table.baseline
    is_base = rows["variant"].eq(against)
    if points == "all":
        is_base &= rows["point"].eq(chosen.get(against))
    if is_base.any():
        rows = _compared(rows, seeds, rows["label"][is_base].iloc[0], table)
    return TargetTimes(
        table=table,
        target=goal,
        baseline=against,
        rule=points,
        seeds=seeds,
        rows=rows,
        left_out=tuple(run for run in due if run not in runs),
        unchosen=tuple(name for name in rows["variant"] if name in unchosen),
        problems=(*problems, *table.problems),
    )


def _target(
    table: ErrorTable, runs: Sequence[Run], value: float | None, split: str, metric: str | None
) -> tuple[metrics.Target, tuple[Problem, ...]]:
    if value is not None:
        shown = metrics.of_study(table.study, metric or table.chosen_by.source)
        return metrics.Target(shown, split, value, "given"), ()
    goal, problems = metrics.target_of_runs(runs, split, table.study.stage(table.stage))
    if metric and metrics.get(metric) != goal.metric:
        raise ValueError(
            f"the target is {goal.words} ({goal.source}); for --metric={metric} give "
            "--target=VALUE, too"
        )
    return goal, problems


def crossings(runs: Sequence[Run], target: metrics.Target) -> pd.DataFrame:
    """Returns when each of `runs`, at least one, first reached `target`, a row per run: variant,
    point, seed, state; `evaluation`, the place of the first evaluation at or past the target in its
    curve, from 0, inf if there is none; its `step` and `seconds`, inf if the target was never
    reached, as in a run that diverged or failed before its first evaluation, nan if they are
    unknown; `last_step` and `last_seconds`, its last evaluation's, 0 if a lost run has none;
    `apart`, the median number of steps from one evaluation to the next, nan for fewer than two.

    At most the target counts where less is better, at least where more is, as in AlgoPerf's
    scoring (score_submissions.py, operator.le and operator.ge). A value that is not finite
    reaches nothing.
    """
    column = target.metric.column(target.split)
    evals = [run.evals if column in run.evals else {} for run in runs]
    names = {"step": STEP, "seconds": TIME, "value": column}
    sizes = [len(columns.get(STEP, ())) for columns in evals]
    numbers = [np.repeat(range(len(runs)), sizes), np.concatenate([*map(np.arange, sizes)])]
    curves = pd.DataFrame(
        {
            name: np.concatenate(
                [
                    columns.get(of, np.full(size, math.nan))
                    for columns, size in zip(evals, sizes, strict=True)
                ]
            )
            for name, of in names.items()
        },
        index=pd.MultiIndex.from_arrays(numbers, names=["run", "evaluation"]),
        dtype=float,
    )
    of_run = curves.groupby(level=0)
    last = of_run[[*QUANTITIES]].tail(1).droplevel(1).add_prefix("last_")
    reached = target.is_reached(target.metric.shown(curves.pop("value").to_numpy()))
    first = curves[reached].groupby(level=0).head(1).reset_index("evaluation")

    keys = ["variant", "point", "seed", "state"]
    frame = pd.DataFrame([[getattr(run, key) for key in keys] for run in runs], columns=keys)
    frame = frame.join(first).join(last)
    frame["apart"] = of_run["step"].diff().groupby(level=0).median()
    frame["evaluation"] = frame["evaluation"].astype(float).fillna(math.inf)
    never_began = frame["last_step"].isna() & frame["state"].isin(layout.LOST)
    for name in QUANTITIES:
        ends = frame[f"last_{name}"].mask(never_began, 0.0)
        is_late = np.isinf(frame["evaluation"]) & np.isfinite(ends)
        frame[f"last_{name}"], frame[name] = ends, frame[name].mask(is_late, math.inf)
    return frame


def _seeds(trials: pd.DataFrame, points: str, unchosen: Collection[str]) -> pd.DataFrame:
    """Returns a row for each seed of a variant, or of a variant and point, in the order of the
    table. Of the variants `unchosen` no trial counts as a result: none reached the target.

    Of several trials of a seed it is the one of the earliest evaluation that reaches the target,
    counted in evaluations: AlgoPerf's rule (scoring/performance_profile.py: get_best_trial_index),
    which takes any of several that tie; here the one with the least time. Where none reaches the
    target it is the trial that trained longest.
    """
    never = trials["variant"].isin(unchosen) & trials["step"].notna()
    trials.loc[never, [*QUANTITIES, "evaluation"]] = math.inf
    trials["label"] = trials["variant"].map(variants.label)
    order = {name: n for n, name in enumerate(sorted(set(trials["variant"]), key=variants.order))}
    ranked = trials.assign(
        rank=trials["variant"].map(order),
        time=trials["seconds"]
        .fillna(math.inf)
        .where(trials["evaluation"].ne(math.inf), -trials["last_step"]),
    ).sort_values(["evaluation", "time", "point"], kind="stable")
    seed = ["rank", "seed"]
    if points == "all":
        seed = ["rank", "point", "seed"]
        if trials.groupby("variant")["point"].nunique().gt(1).any():
            ranked["label"] += ", point " + ranked["point"].astype(str)
    return ranked.drop_duplicates(seed).sort_values(seed, ignore_index=True)


def medians(seeds: pd.DataFrame, name: str) -> pd.DataFrame:
    """Returns for each label the median of the column `name`, one of QUANTITIES, in which inf
    stands for "later than `last_<name>`, this seed's budget", and in `<name>_is_bound` whether it
    is a bound that the true median lies above. Unknown values (nan) are left out.

    Seeds that never reach the target count with their budget. The median is then a lower bound
    if it depends on such a seed.
    """
    late = seeds.groupby("label", sort=False)[name].median()
    at_budget = seeds[name].clip(upper=seeds[f"last_{name}"])
    bounds = at_budget.groupby(seeds["label"], sort=False).median()
    is_bound = np.isinf(late)
    return pd.DataFrame({name: late.mask(is_bound, bounds), f"{name}_is_bound": is_bound})


def _rows(seeds: pd.DataFrame) -> pd.DataFrame:
    """Returns the medians over the seeds of each label."""
    prices = seeds["last_seconds"] / seeds["last_step"]
    trials = seeds.assign(
        price=prices.where(np.isfinite(prices)), reached=np.isfinite(seeds["step"])
    )
    rows = trials.groupby("label", sort=False).agg(
        variant=("variant", "first"),
        point=("point", "first"),
        reached=("reached", "sum"),
        n=("step", "count"),
        last_seconds=("last_seconds", "max"),
        apart=("apart", "max"),
        price=("price", "median"),
    )
    return rows.join([medians(seeds, name) for name in QUANTITIES]).reset_index()


def _compared(
    rows: pd.DataFrame, seeds: pd.DataFrame, baseline: str, table: ErrorTable
) -> pd.DataFrame:
    """Returns the rows with their ratios to the row whose label is `baseline`."""
    times = {label: runs.set_index("seed") for label, runs in seeds.groupby("label")}
    prices = rows.set_index("label")["price"]
    relative = prices / prices[baseline]
    other_units = relative.notna() & ~relative.between(1 / OTHER_UNITS, OTHER_UNITS)
    ratios = []
    for label in rows["label"]:
        row: dict[str, object] = {}
        for name in QUANTITIES if label != baseline else ():
            ours, base = (times[variant][name].to_dict() for variant in (label, baseline))
            ratio = speed_up(ours, base, table.study.shares_seeds)
            if name == "step" and table.study.published and other_units[label]:
                ratio = SpeedUp(method="units")
            row |= {f"{name}_{key}": value for key, value in vars(ratio).items()}
        ratios.append(row)
    withheld = [table.withheld(name) for name in rows["variant"]]
    return rows.join(pd.DataFrame(ratios)).assign(withheld=withheld)


def page(table: ErrorTable) -> pages.Page | None:
    """Returns the times at the points that validation chose and the target that the trials or
    AlgoPerf state, a sentence if no seed reached it; None if no run has an evaluation or nothing
    states a target. The problems are those of the target alone."""
    try:
        times = build(table)
    except UnknownTargetError:
        return None
    problems = tuple(problem for problem in times.problems if problem not in table.problems)
    if times.rows["reached"].any():
        return dataclasses.replace(page_of(times), problems=problems)
    note = f"No seed reached the target of the workload, {times.target.words}."
    return pages.Page("Time to the target", (), (note,), problems)


def without_target(table: ErrorTable, why: UnknownTargetError) -> pages.Page:
    """Returns the page of a study whose target nothing states."""
    return pages.Page(
        f"{table.study.name}: time to a target on {table.workload}",
        tables=(),
        problems=(Problem("note", "", "", str(why)), *table.problems),
    )


def page_of(times: TargetTimes) -> pages.Page:
    """Returns two tables, medians with speed-ups and every seed. `data` has a row per variant, its
    seed empty, and one per seed."""
    study = times.table.study.name
    data = pd.concat([times.rows, times.seeds]).assign(study=study)
    return pages.Page(
        title=f"{study}: time to {times.target.words} on {times.table.workload}",
        tables=(_medians_table(times), _seeds_table(times)),
        notes=tuple(_notes(times)),
        problems=times.problems,
        data=lambda: data,
    )


def _unit(times: TargetTimes) -> tuple[float, str, int]:
    """Returns the seconds of one unit of time, its name, and its decimals, hours from 2 h on."""
    is_long = times.seeds["last_seconds"].max() >= 2 * HOUR
    return (HOUR, "h", 2) if is_long else (1.0, "s", 1)


def _medians_table(times: TargetTimes) -> pages.Table:
    seconds, unit, digits = _unit(times)
    rows = times.rows
    columns = {
        "Variant": rows["label"],
        "Seeds\nreached": rows["reached"].astype(str) + " of " + rows["n"].astype(str),
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


def _seeds_table(times: TargetTimes) -> pages.Table:
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


def _notes(times: TargetTimes) -> Iterable[str]:
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
    ended = [f"{trial.label} seed {trial.seed} ({trial.state})" for trial in never.itertuples()]
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
