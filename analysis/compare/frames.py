"""What a table's trials measured, as frames for charts and files: one row per number."""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare import failed_runs, sensitivity
from analysis.compare.error_table import ErrorTable
from analysis.compare.verdicts import VariantResult
from analysis.load import selection
from analysis.load.records import FLOPS, STEP, TIME, Run
from analysis.statistics import intervals
from attention import table as variants
from sweeps.records import layout

TO_REACH = ("target_seeds", "target_seeds_low", "target_seeds_high")
DETECTABLE = ("detectable", "detectable_low", "detectable_high", "detectable_from")
# The columns of `results`, and what each holds.
RESULTS = (
    dict.fromkeys(("study", "workload", "stage", "kind", "variant", "label", "group"), "object")
    | {"point": "Int64", "split": "object", "metric": "object", "n": "Int64"}
    | dict.fromkeys(("median", "mean", "sd", "interval_low", "interval_high"), "float64")
    | {"interval_method": "object", "pairs": "Int64", "n_baseline": "Int64"}
    | dict.fromkeys(("difference", "difference_low", "difference_high"), "float64")
    | {"difference_sd": "float64", "effect_size": "float64", "effect_kind": "object"}
    | {"test": "object", "smallest_p": "float64", "p": "float64", "p_holm": "float64"}
    | {"verdict": "object", "p_equal": "float64", "within": "object"}
    | dict.fromkeys(DETECTABLE, "float64")
    | {"expected_effect": "float64"}
    | dict.fromkeys(("seeds_needed", "seeds_needed_low", "seeds_needed_high"), "float64")
    | {"last_n": "Int64", "last_mean": "float64"}
    | {"last_sd_checkpoints": "float64", "last_sd_seeds": "float64"}
    | dict.fromkeys(("target", "target_p", *TO_REACH), "float64")
    | {"target_untested": "object"}
    | {"failed": "Int64", "failed_of": "Int64", "failed_low": "float64", "failed_high": "float64"}
    | {"failed_p": "float64", "failed_p_holm": "float64", "failed_verdict": "object"}
    | {
        "planned": "Int64",
        "planned_at_first": "Int64",
        "lost": "object",
        "unfinished": "Int64",
        "last_step": "float64",
    }
    | {"train_flop": "float64", "train_seconds": "float64"}
    | {"withheld": "object", "paper": "float64", "seeds": "object", "values": "object"}
)
CURVES = (
    *("variant", "label", "point", "seed", "trial", "state"),
    *("step", "seconds", "flops", "panel", "value"),
)
# Names, or ends of names, of the columns that are logged between evaluations.
LOGGED = ("loss", "grad_norm", "_per_second")
SEEDS = ("variant", "label", "seed", "trial", "step", "split", "value")
TRIALS = (
    *("variant", "label", "point", "seed", "trial", "state"),
    *("chosen", "step", "value", "hyperparameter", "setting"),
)


def counted(table: ErrorTable, row: VariantResult) -> list[Run]:
    """Returns the trials that a row counts, by ascending seed."""
    runs = {run.seed: run for run in table.runs(row) if run.is_finished}
    return [runs[seed] for seed in sorted(row.chosen) if seed in runs]


def costs(table: ErrorTable, row: VariantResult) -> dict[str, float]:
    """Returns the medians over a row's trials of training's FLOP, by the model's own formula, as
    `train_flop`, and of its seconds, as `train_seconds`; nan if no trial records them."""
    trained = pd.DataFrame(
        [
            {
                "train_flop": run.trained_flops,
                "train_seconds": run.trained_seconds or math.nan,
            }
            for run in counted(table, row)
        ],
        columns=["train_flop", "train_seconds"],
        dtype=float,
    )
    return {str(name): float(median) for name, median in trained.median().items()}


@functools.lru_cache(maxsize=8)
def curves(table: ErrorTable) -> pd.DataFrame:
    """Returns CURVES of the counted trials, then of those that are running, failed or diverged at
    the points that the table reports, or at any of a variant without such a point.

    A row holds a `value` at a `step`. Its `panel` is a split, where it is the table's metric as
    shown of an evaluation, or a logged column. `seconds` are of training alone, `flops`
    training's operations; nan if they were not recorded.
    """
    counts = [run for row in table.rows for run in counted(table, row)]
    points = {row.variant: row.point for row in table.rows}
    others = [
        run
        for run in table.study.stage(table.stage)
        if run.state != "done" and points[run.variant] in (None, run.point)
    ]
    parts = [part for run in (*counts, *others) for part in _curves(table, run)]
    if not parts:
        return pd.DataFrame(columns=CURVES)
    frame = pd.DataFrame(parts).explode(["step", "seconds", "value"], ignore_index=True)
    frame = frame.astype({"step": int, "seconds": float, "value": float})
    return frame.assign(flops=frame["flops"] * frame["step"])[[*CURVES]]


def _curves(table: ErrorTable, run: Run) -> Iterator[dict[str, Any]]:
    """Yields each panel of a run with its steps, seconds and values [n]."""
    place = _place(run) | {"flops": run.meta.get(FLOPS) or math.nan}
    steps = run.evals.get(STEP, np.zeros(0, int))
    seconds = run.evals.get(TIME, np.full(len(steps), math.nan))
    for split in layout.SPLITS:
        values = table.metric.shown(run.evals.get(table.metric.column(split), np.zeros(0)))
        if len(values):
            yield place | {"panel": split, "step": steps, "seconds": seconds, "value": values}
    logged = run.losses()
    for name in (name for name in logged if name.endswith(LOGGED) and "/" not in name):
        at = np.flatnonzero(np.isfinite(logged[name]))
        if len(at):
            # A logged row has no time of its own; training's time grows evenly between evaluations.
            times = np.interp(logged[STEP][at], [0, *steps], [0.0, *seconds])
            numbers = {"step": logged[STEP][at], "seconds": times, "value": logged[name][at]}
            yield place | {"panel": name} | numbers


def medians(lines: pd.DataFrame) -> pd.DataFrame:
    """Returns the medians over the trials of `lines` (`curves`) that are done: a row per panel,
    variant and step with the medians of seconds, flops and value, and the number of trials `n`.

    The steps are those that every trial has. Where these are under half of a trial's own, as in
    AlgoPerf's logs, which are evaluated by the clock, they are all steps between the last first and
    the first last: numbers are interpolated between evaluations.
    """
    numbers = ["seconds", "flops", "value"]
    parts = []
    groups = lines[lines["state"] == "done"].groupby(["panel", "variant", "label"], sort=False)
    for keys, group in groups:
        trials = [trial for _, trial in group.groupby("trial")]
        steps = _shared([trial["step"].to_numpy() for trial in trials])
        values = [
            [np.interp(steps, trial["step"], trial[name].astype(float)) for name in numbers]
            for trial in trials
        ]
        middles = dict(zip(numbers, np.median(values, axis=0), strict=True))
        place = dict(zip(("panel", "variant", "label"), keys, strict=True))
        parts.append(pd.DataFrame({"step": steps} | middles | place | {"n": len(trials)}))
    return pd.concat(parts, ignore_index=True) if parts else lines.head(0)


def _shared(evaluated: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the steps of `medians` from those of each trial."""
    shared = functools.reduce(np.intersect1d, evaluated)
    if 2 * len(shared) >= max(map(len, evaluated)):
        return shared
    begin, end = max(steps[0] for steps in evaluated), min(steps[-1] for steps in evaluated)
    every = np.unique(np.concatenate(evaluated))
    return every[(begin <= every) & (every <= end)]


def seeds(table: ErrorTable) -> pd.DataFrame:
    """Returns SEEDS: one row per variant, seed and split, with the value at the step that the
    trial's validation chose."""
    lines = []
    for row in table.rows:
        trials = {run.seed: run for run in counted(table, row)}
        best = {
            seed: selection.best_step(run, table.chosen_by) or {} for seed, run in trials.items()
        }
        for split, result in row.splits.items():
            for seed, value in result.values.items():
                place = _place(trials[seed]) | {"step": best[seed].get(STEP), "split": split}
                lines.append(place | {"value": value})
    return pd.DataFrame(lines, columns=SEEDS)


@functools.lru_cache(maxsize=8)
def trials(table: ErrorTable) -> pd.DataFrame:
    """Returns TRIALS: one row per trial of the search and numeric hyperparameter that varies in
    it. `value` is the validation metric at the trial's best step, nan for a lost trial; `chosen`
    says whether validation chose its point for its variant."""
    lines = []
    runs = table.study.stage(searched(table))
    chosen = {
        name: selection.chosen_point(table.study, searched(table), name)
        for name in {run.variant for run in runs}
    }
    for run in runs:
        is_lost = run.state in layout.LOST
        if not (run.evals or is_lost):
            continue
        best = None if is_lost else selection.best_step(run, table.chosen_by)
        value = (best or {}).get(table.metric.column(selection.VALIDATION), math.nan)
        place = _place(run) | {
            "chosen": chosen[run.variant] == run.point,
            "step": best and best[STEP],
            "value": table.metric.shown(value),
        }
        for name, setting in run.hyperparameters.items():
            if isinstance(setting, int | float) and not isinstance(setting, bool):
                lines.append(place | {"hyperparameter": name, "setting": setting})
    frame = pd.DataFrame(lines, columns=TRIALS).replace({"value": [math.inf, -math.inf]}, math.nan)
    return frame[frame.groupby("hyperparameter")["setting"].transform("nunique") > 1]


def searched(table: ErrorTable) -> str:
    """Returns the stage from which hyperparameter points were chosen."""
    chosen_from = (table.study.selection or {}).get("from_stage")
    return chosen_from or (table.study.stages[0] if table.study.stages else table.stage)


def _place(run: Run) -> dict[str, Any]:
    return {
        "variant": run.variant,
        "label": variants.label(run.variant),
        "point": run.point,
        "seed": run.seed,
        "trial": run.name,
        "state": run.state,
    }


@functools.lru_cache(maxsize=8)
def results(table: ErrorTable, effect: float | None, target: float | None = None) -> pd.DataFrame:
    """Returns one row per variant (`kind` variant) or reference (`kind` reference) and split, with
    the columns RESULTS; what is undefined is missing. `kind` point: a variant at each point that it
    was chosen from by the table's own trials.

    `seeds` and `values` list every seed and its number, separated by spaces. `planned`, `lost`,
    `unfinished`, `last_step`, `train_flop`, `train_seconds` (`costs`) and the `failed` of
    `failed_of` runs are of the variant's trials, on any split. `detectable` and `seeds_needed`,
    with the ranges that the SD leaves them, are for `effect`, on the deciding split alone.
    `detectable_from` is the number of seeds that can detect anything (`sensitivity.Sensitivity`).
    `target_p` is of the mean against `target`, `target_seeds` would show it, on the deciding split
    alone; `target_untested`: why there is no test. The `last_` columns are over the last
    `table.last` evaluations of the trials that have as many, all finite: the mean, the mean of the
    seeds' own standard deviations, the standard deviation of the seeds' means.
    """
    shared = {
        "study": table.study.name,
        "workload": table.workload,
        "stage": table.stage,
        "metric": table.metric.name,
    }
    failures = failed_runs.of_table(table).by_variant
    decisive = table.decisive
    powers = sensitivity.of_table(table, decisive, sensitivity.expected(table, decisive, effect))
    lines: list[dict[str, Any]] = []
    for row in table.rows:
        trained = costs(table, row)
        for split in layout.SPLITS:
            line = shared | trained | _variant_columns(table, row, split)
            power = powers.get(row.variant) if split == decisive else None
            if power:
                line |= {
                    "detectable": power.detectable.value,
                    "detectable_low": power.detectable.low,
                    "detectable_high": power.detectable.high,
                    "detectable_from": power.possible,
                    "expected_effect": power.effect,
                    "seeds_needed": power.seeds.value,
                    "seeds_needed_low": power.seeds.low,
                    "seeds_needed_high": power.seeds.high,
                }
            if split == decisive and target is not None:
                line |= _target_columns(table, row, target)
            if failed := failures.get(row.variant):
                rate = failed.rate
                line |= {
                    "failed": rate.count,
                    "failed_of": rate.n,
                    "failed_low": rate.low,
                    "failed_high": rate.high,
                    "failed_p": rate.p,
                    "failed_p_holm": rate.p_holm,
                    "failed_verdict": None if math.isnan(rate.p) else rate.verdict,
                }
            lines.append(line | _last_evaluations(table, row, split))
    for point in (point for row in table.rows for point in row.points):
        of_splits = [_variant_columns(table, point, split) for split in layout.SPLITS]
        lines += [shared | columns | {"kind": "point"} for columns in of_splits]
    for reference in table.references:
        line = shared | {"kind": "reference", "label": reference.name}
        lines += [
            line | {"split": split, "median": reference.values[split]} for split in layout.SPLITS
        ]
    return pd.DataFrame(lines, columns=list(RESULTS), dtype=object).astype(RESULTS)


def _variant_columns(table: ErrorTable, row: VariantResult, split: str) -> dict[str, Any]:
    result = row.splits[split]
    columns = {
        "kind": "variant",
        "variant": row.variant,
        "label": row.label,
        "group": row.group,
        "point": row.point,
        "split": split,
        "n": len(result.values),
        "verdict": "baseline" if row.variant == table.baseline else None,
        "planned": row.planned,
        "planned_at_first": row.planned_at_first,
        "lost": " ".join(f"{state}={count}" for state, count in row.lost.items()),
        "unfinished": row.unfinished,
        "last_step": row.last_step,
        "paper": result.paper.value if result.paper else None,
        "seeds": " ".join(str(seed) for seed in result.values),
        "values": " ".join(repr(value) for value in result.values.values()),
    }
    if summary := result.summary:
        columns |= {
            "median": summary.median,
            "mean": summary.mean,
            "sd": summary.sd,
            "interval_low": summary.low,
            "interval_high": summary.high,
            "interval_method": summary.method,
        }
    if comparison := result.comparison:
        columns |= {
            "pairs": comparison.pairs,
            "n_baseline": comparison.n_baseline,
            "difference": comparison.difference,
            "difference_low": comparison.low,
            "difference_high": comparison.high,
            "difference_sd": comparison.sd,
            "effect_size": comparison.effect,
            "effect_kind": comparison.effect_kind,
            "test": comparison.test,
            "smallest_p": comparison.smallest_p,
            "p": comparison.p,
            "p_holm": comparison.p_holm,
            "verdict": comparison.verdict,
            "p_equal": comparison.p_equal,
            "within": comparison.within,
            "withheld": comparison.withheld,
        }
    return columns


def _target_columns(table: ErrorTable, row: VariantResult, target: float) -> dict[str, Any]:
    """Returns the columns on a target, none of a variant without a number."""
    summary = table.of(row).summary
    if summary is None:
        return {}
    reasons = {
        table.withheld(row.variant): True,
        "lost seeds": row.lost_on(table.decisive) > 0,
        "one seed": summary.n == 1,
        "all seeds equal": summary.method == "equal",
    }
    why = next((reason for reason, holds in reasons.items() if reason and holds), "")
    columns: dict[str, Any] = {"target": target, "target_untested": why}
    if why:
        return columns
    gain = (target - summary.mean) * (1 if table.metric.lower_is_better else -1)
    sds = sensitivity.sd_range(summary.sd, summary.n - 1)
    columns["target_p"] = float(sensitivity.target_p(gain, summary.sd, summary.n))
    return columns | {
        name: sensitivity.seeds_to_reach(gain, sd) for name, sd in zip(TO_REACH, sds, strict=True)
    }


def _last_evaluations(table: ErrorTable, row: VariantResult, split: str) -> dict[str, Any]:
    """Returns the columns on the last evaluations, none if no trial has the split."""
    column, k = table.metric.column(split), table.last
    measured = [run.evals[column] for run in counted(table, row) if column in run.evals]
    tails = [table.metric.shown(curve[-k:]) for curve in measured]
    whole = np.array([tail for tail in tails if len(tail) == k and np.isfinite(tail).all()])
    if not len(whole):
        return {"last_n": 0} if tails else {}
    over_checkpoints, over_seeds = intervals.deviations(whole)
    return {
        "last_n": len(whole),
        "last_mean": float(whole.mean()),
        "last_sd_checkpoints": over_checkpoints,
        "last_sd_seeds": over_seeds,
    }
