"""The error table as data: one result per variant and split, before anything is laid out."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis import (
    baselines,
    lost_seeds,
    metrics,
    paper,
    references,
    selection,
    statistics,
    variants,
)
from analysis.metrics import Metric, MissingMetricError
from analysis.paper import PaperCell
from analysis.records import Run, Study
from analysis.references import Reference
from analysis.statistics import Comparison, Summary
from sweeps import layout

LAST = 5


@dataclass(frozen=True)
class SplitResult:
    """One variant on one split: `values` maps a seed to the number at the step that validation
    chose, `last` a seed to its last evaluations (not all finite, perhaps). `summary` is None
    without values, `comparison` for the baseline and without values, `paper` wherever the paper
    prints no such number or the study is not the paper's. `non_finite` seeds have none here,
    though validation chose a step of theirs."""

    values: dict[int, float] = field(default_factory=dict)
    summary: Summary | None = None
    comparison: Comparison | None = None
    paper: PaperCell | None = None
    last: dict[int, tuple[float, ...]] = field(default_factory=dict)
    non_finite: int = 0


@dataclass(frozen=True)
class VariantResult:
    """One row: the variant, the point whose trials it reports, n trials, a result per split.

    Of the `planned` seeds of that point, n have an evaluation that validation chose; `lost` maps
    why a seed has no number (`diverged`, `failed`, `non-finite`) to how many have none, which
    verdicts take into account (`withheld.py`); the others have not finished. `last_step` is the
    median of the n trials' last evaluations' steps, None without any.
    """

    variant: str
    point: int | None
    n: int
    splits: dict[str, SplitResult]
    hyperparameters: dict[str, Any]
    planned: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    last_step: float | None = None

    @property
    def unfinished(self) -> int:
        """Returns how many seeds have no number yet."""
        return max(0, self.planned - self.n - sum(self.lost.values()))

    @property
    def seeds(self) -> str:
        """Returns n in words: `5`, or `3 of 5 (1 diverged, 1 unfinished)`."""
        missing = self.lost | ({"unfinished": self.unfinished} if self.unfinished else {})
        if not missing:
            return str(self.n)
        said = ", ".join(f"{count} {state}" for state, count in missing.items())
        return f"{self.n} of {self.planned} ({said})"

    @property
    def label(self) -> str:
        """Returns the variant as the paper calls it."""
        return variants.label(self.variant)

    @property
    def group(self) -> str:
        """Returns the group within which the best is marked."""
        return variants.group(self.variant)


@dataclass(frozen=True)
class ErrorTable:
    """What the renderers and plots are given. `decisive` is the split of the verdict, `last` how
    many of a trial's last evaluations the results keep."""

    study: Study
    workload: str
    stage: str
    metric: Metric
    chosen_by: Metric
    baseline: str
    decisive: str
    rows: tuple[VariantResult, ...]
    references: tuple[Reference, ...]
    reference_note: str | None
    problems: tuple[str, ...]
    last: int = LAST

    @property
    def has_baseline(self) -> bool:
        """Returns whether there is a row that the others are compared with."""
        return any(row.variant == self.baseline for row in self.rows)

    @property
    def has_perplexity(self) -> bool:
        """Returns whether exp(loss) stands beside the loss: where the loss is the target."""
        return self.metric == self.chosen_by == metrics.get("loss")

    @property
    def is_paper(self) -> bool:
        """Returns whether the paper's column stands beside ours."""
        return any(cell.paper for row in self.rows for cell in row.splits.values())


def build(
    study: Study,
    stage: str | None = None,
    metric: str | None = None,
    baseline: str | None = None,
    last: int = LAST,
) -> ErrorTable:
    """Returns the table of one stage (the last one unless given).

    `metric` is what to show, by name: `error`, or a metric's column; unless given, what the study
    selects by, accuracy shown as error. `baseline` is the variant that the others are compared
    with, the study's own unless given; without a row of that name nothing is compared. The step
    is always the one that the study's own validation metric chose. Only trials that are done, and
    of one seed the first, enter; the others are in `problems`. Of each the `last` evaluations are
    kept, too.

    Raises ValueError where the study has no such stage or `last` is below 1, MissingMetricError
    where there are evaluations and none has a column of the metric.
    """
    if last < 1:
        raise ValueError(f"--last={last}: give how many of the last evaluations, 1 or more")
    stage = _stage(study, stage)
    chosen_by = selection.study_metric(study)
    shown = metrics.get(metric) if metric else metrics.shown_for(chosen_by.source)
    problems = _stage_problems(study, stage)
    _check_columns(study.stage(stage), shown, problems)
    names = sorted(_variant_names(study, stage), key=variants.order)
    rows = [_row(study, stage, name, shown, chosen_by, last, problems) for name in names]
    baseline = baselines.name(study, baseline)
    reference_rows, note = references.of_study(study, shown)
    return ErrorTable(
        study=study,
        workload=study.workload,
        stage=stage,
        metric=shown,
        chosen_by=chosen_by,
        baseline=baseline,
        decisive="test" if any(row.splits["test"].values for row in rows) else "validation",
        rows=tuple(baselines.compared(rows, baseline, shown, study.shares_seeds)),
        last=last,
        references=reference_rows,
        reference_note=note,
        problems=tuple(dict.fromkeys(problems)),
    )


def _stage(study: Study, stage: str | None) -> str:
    if not study.stages:
        raise ValueError(f"{study.directory}/{layout.STUDY}: it names no stages")
    if stage is None:
        return study.stages[-1]
    if stage not in study.stages:
        raise ValueError(f"no stage {stage!r} in {study.name}; it has {', '.join(study.stages)}")
    return stage


def _variant_names(study: Study, stage: str) -> set[str]:
    """Every variant that the stage plans; before it is planned, every one of the study's."""
    planned = {run.variant for run in study.stage(stage)}
    return planned or {str(name) for name in study.config.get("variants", ())}


def _stage_problems(study: Study, stage: str) -> list[str]:
    """Problems of no particular trial, and the stage's own absence; trials add theirs later."""
    of_runs = {problem for run in study.runs for problem in run.problems}
    problems = [problem for problem in study.problems if problem not in of_runs]
    if stage not in study.planned:
        problems.append(f"missing: {stage}/{layout.TRIALS}: the stage has not begun")
    return problems


def _check_columns(runs: tuple[Run, ...], shown: Metric, problems: list[str]) -> None:
    """Says once what no trial has; what some trials lack is said for each of them."""
    measured = [run for run in runs if run.evals]
    absent = [
        split
        for split in layout.SPLITS
        if measured and not any(shown.column(split) in run.evals for run in measured)
    ]
    if len(absent) == len(layout.SPLITS):
        run = measured[0]
        shown.read(run.evals, selection.VALIDATION, f"{run.name}/{layout.EVAL_MEASUREMENTS}")
    problems += [f"missing: no trial has a column {shown.column(split)}" for split in absent]


def _row(
    study: Study,
    stage: str,
    variant: str,
    shown: Metric,
    chosen_by: Metric,
    last: int,
    problems: list[str],
) -> VariantResult:
    point = selection.chosen_point(study, stage, variant)
    planned = [run for run in study.stage(stage) if run.variant == variant]
    runs = [run for run in planned if run.point == point]
    if point is None:
        problems.append(f"missing: {stage}/{variant}: no point was chosen for it by validation")
    problems += [problem for run in runs for problem in run.problems]
    seeds = lost_seeds.first_of_each(lost_seeds.only_lost(planned) if point is None else runs)
    usable, tails = {}, {}
    for run in seeds:
        if not lost_seeds.is_finished(run):
            continue
        if (row := _chosen_row(run, chosen_by, problems)) is not None:
            usable[run] = row
            # Now, while the curve that was just read is in memory.
            tails[run.seed] = _tail(run, shown, last)
    splits = {split: _split(usable, split, shown, tails, problems) for split in layout.SPLITS}
    if study.paper_table and shown.name == paper.TABLES[study.paper_table].metric:
        splits = _beside_paper(study, variant, splits)
    hyperparameters = runs[0].variant_hyperparameters if runs else {}
    return VariantResult(
        variant=variant,
        point=point,
        n=len(usable),
        splits=splits,
        hyperparameters=hyperparameters,
        planned=len(seeds),
        lost=lost_seeds.counted(seeds, set(usable), chosen_by.column("validation")),
        last_step=_last_step(usable),
    )


def _last_step(runs: Iterable[Run]) -> float | None:
    steps = [run.last_step for run in runs if run.last_step is not None]
    return float(np.median(steps)) if steps else None


def _beside_paper(
    study: Study, variant: str, splits: dict[str, SplitResult]
) -> dict[str, SplitResult]:
    where = study.paper_table, study.workload, study.config, variant
    return {
        split: dataclasses.replace(result, paper=paper.cell(*where, split))
        for split, result in splits.items()
    }


def _chosen_row(run: Run, chosen_by: Metric, problems: list[str]) -> dict[str, float] | None:
    try:
        row = selection.best_step(run, chosen_by.source)
    except MissingMetricError as error:
        problems.append(f"missing: {error}")
        return None
    if row is None and run.last_step is not None:
        problems.append(f"missing: {run.name}: no finite {chosen_by.column('validation')}")
    return row


def _tail(run: Run, shown: Metric, last: int) -> dict[str, tuple[float, ...]]:
    """Returns the last evaluations of each split that has some."""
    columns = {split: shown.column(split) for split in layout.SPLITS}
    return {
        split: tuple(shown.shown(run.evals[column][-last:]).tolist())
        for split, column in columns.items()
        if column in run.evals
    }


def _split(
    chosen: dict[Run, dict[str, float]],
    split: str,
    shown: Metric,
    tails: dict[int, dict[str, tuple[float, ...]]],
    problems: list[str],
) -> SplitResult:
    values, non_finite = {}, 0
    somewhere = any(shown.column(split) in row for row in chosen.values())
    for run, row in chosen.items():
        if shown.column(split) not in row:
            if not somewhere:
                continue
            problems.append(f"missing: {run.name}: no column {shown.column(split)}")
        elif math.isfinite(value := shown.shown(row[shown.column(split)])):
            values[run.seed] = value
        else:
            step, non_finite = int(row["global_step"]), non_finite + 1
            problems.append(f"missing: {run.name}: no {shown.column(split)} at step {step}")
    summary = statistics.summarise(list(values.values())) if values else None
    last = {seed: tail[split] for seed, tail in tails.items() if split in tail}
    return SplitResult(values, summary, last=last, non_finite=non_finite)
