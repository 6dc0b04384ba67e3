"""Builds an error table from a study's runs: its rows, each compared with the baseline."""

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence, Set

import numpy as np

from analysis.compare import verdict_rules
from analysis.compare.error_table import LAST, ErrorTable, Reference, SplitResult, VariantResult
from analysis.load import metrics, paper, selection
from analysis.load.files import measurements
from analysis.load.metrics import Metric, MissingMetricError
from analysis.load.records import Run, StudyRuns
from analysis.statistics import comparisons, intervals
from attention import table as variants
from sweeps.records import layout

DEFAULT_BASELINE = "standard"
NON_FINITE = "non-finite"


def error_table(
    study: StudyRuns,
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

    Raises ValueError where the study has no such stage, MissingMetricError
    where there are evaluations and none has a column of the metric.
    """
    stage = _stage(study, stage)
    chosen_by = selection.study_metric(study)
    shown = metrics.get(metric) if metric else metrics.shown_for(chosen_by.source)
    problems = _stage_problems(study, stage)
    _check_columns(study.stage(stage), shown, problems)
    # Before the stage is planned every variant of the study's.
    planned = {run.variant for run in study.stage(stage)}
    named = planned or {str(name) for name in study.config.get("variants", ())}
    names = sorted(named, key=variants.order)
    rows = [_row(study, stage, name, shown, chosen_by, last, problems) for name in names]
    baseline = baseline or str(study.config.get("baseline", DEFAULT_BASELINE))
    reference = study.references.get(study.workload) or {}
    return ErrorTable(
        study=study,
        workload=study.workload,
        stage=stage,
        metric=shown,
        chosen_by=chosen_by,
        baseline=baseline,
        decisive="test" if any(row.splits["test"].values for row in rows) else "validation",
        rows=tuple(_compared(rows, baseline, shown, study.shares_seeds)),
        last=last,
        references=tuple(
            Reference(
                str(row.get("name", "unnamed")),
                {split: shown.reference(row, split) for split in layout.SPLITS},
                constant=row.get("constant") is True,
                chosen=metrics.shown_for(chosen_by.source).reference(row, "validation"),
            )
            for row in reference.get("rows", ())
        ),
        reference_note=reference.get("note"),
        problems=tuple(dict.fromkeys(problems)),
    )


def check_baseline(studies: Iterable[StudyRuns], asked: str | None) -> None:
    """Raises ValueError where none of the studies has a variant called `asked`, unless None."""
    if asked is None:
        return
    planned = (str(name) for study in studies for name in study.config.get("variants", ()))
    known = {run.variant for study in studies for run in study.runs} | set(planned)
    if asked not in known:
        there = ", ".join(sorted(known)) or "none"
        raise ValueError(f"no variant {asked!r} to compare with; there are {there}: give one")


def _stage(study: StudyRuns, stage: str | None) -> str:
    if not study.stages:
        raise ValueError(f"{study.directory}/{layout.STUDY}: it names no stages")
    if stage is None:
        return study.stages[-1]
    if stage not in study.stages:
        raise ValueError(f"no stage {stage!r} in {study.name}; it has {', '.join(study.stages)}")
    return stage


def _stage_problems(study: StudyRuns, stage: str) -> list[str]:
    """Problems of no particular trial, and the stage's own absence; trials add theirs later."""
    of_runs = {problem for run in study.runs for problem in run.problems}
    problems = [problem for problem in study.problems if problem not in of_runs]
    if stage not in study.planned:
        problems.append(f"missing: {stage}/{layout.TRIALS}: the stage has not begun")
    return problems


def _check_columns(runs: tuple[Run, ...], shown: Metric, problems: list[str]) -> None:
    """Says once what no trial has; what some trials lack is said for each of them."""
    measured = [run for run in runs if run.evals]
    # On a split without examples there is nothing that could be measured.
    held = {
        split
        for run in measured
        for split in layout.SPLITS
        if shown.column(split) in run.evals or split in measurements.splits_of_nothing(run.evals)
    }
    absent = [split for split in layout.SPLITS if measured and split not in held]
    if len(absent) == len(layout.SPLITS):
        run = measured[0]
        shown.read(run.evals, selection.VALIDATION, f"{run.name}/{layout.EVAL_MEASUREMENTS}")
    problems += [f"missing: no trial has a column {shown.column(split)}" for split in absent]


def _row(
    study: StudyRuns,
    stage: str,
    variant: str,
    shown: Metric,
    chosen_by: Metric,
    last: int,
    problems: list[str],
) -> VariantResult:
    """Returns the row of `variant`, without comparison: of `shown`, at the steps that `chosen_by`
    chose, with the `last` evaluations. What is missing is added to `problems`."""
    point = selection.chosen_point(study, stage, variant)
    planned = [run for run in study.stage(stage) if run.variant == variant]
    runs = [run for run in planned if run.point == point]
    if point is None:
        place = f"{stage}/{variant} on {study.workload}"
        problems.append(f"missing: {place}: no point was chosen for it by validation")
    problems += [problem for run in runs for problem in run.problems]
    # Without a chosen point what there is to count are the runs that do not say they are done.
    seeds = first_of_each_seed(
        runs if point is not None else [run for run in planned if run.state != "done"]
    )
    usable, tails = {}, {}
    for run in seeds:
        if not _is_finished(run):
            continue
        if (chosen := _chosen_row(run, chosen_by, problems)) is not None:
            usable[run] = chosen
            # Now, while the curve that was just read is in memory.
            tails[run.seed] = _tail(run, shown, last)
    steps = [run.last_step for run in usable if run.last_step is not None]
    splits = {split: _split(usable, split, shown, tails, problems) for split in layout.SPLITS}
    if study.paper_table and shown.name == paper.TABLES[study.paper_table].metric:
        where = study.paper_table, study.workload, study.config, variant
        splits = {
            split: dataclasses.replace(result, paper=paper.cell(*where, split))
            for split, result in splits.items()
        }
    return VariantResult(
        variant=variant,
        point=point,
        n=len(usable),
        splits=splits,
        hyperparameters=runs[0].variant_hyperparameters if runs else {},
        planned=len(seeds),
        lost=lost_seeds(seeds, set(usable), chosen_by.column("validation")),
        last_step=float(np.median(steps)) if steps else None,
        chosen={
            run.seed: metrics.shown_for(chosen_by.source).shown(row[chosen_by.column("validation")])
            for run, row in usable.items()
        },
    )


def first_of_each_seed(runs: Iterable[Run]) -> list[Run]:
    """Returns the first run of each seed; the reader names the others as duplicated."""
    first: dict[int, Run] = {}
    for run in runs:
        first.setdefault(run.seed, run)
    return list(first.values())


def _is_finished(run: Run) -> bool:
    """Whether a run's numbers count: it is done, and its file goes on to the end."""
    return run.state == "done" and not run.ends_early


def lost_seeds(runs: Sequence[Run], usable: Set[Run], column: str) -> dict[str, int]:
    """Returns how many of `runs` are lost, by why: `diverged` and `failed` are what trials say;
    `non-finite` are those that are finished, not `usable`, and have the `column` that chooses."""

    def reason(run: Run) -> str | None:
        if run.state in layout.LOST:
            return run.state
        return NON_FINITE if _is_finished(run) and column in run.evals else None

    reasons = filter(None, (reason(run) for run in runs if run not in usable))
    return dict(sorted(collections.Counter(reasons).items()))


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
    column = shown.column(split)
    somewhere = any(column in row for row in chosen.values())
    for run, row in chosen.items():
        if column not in row:
            # The reader names a lack of the trial's own metric; not of another that is asked for.
            if not somewhere or any(column in each for each in run.problems):
                continue
            problems.append(f"missing: {run.name}: no column {column}")
        elif math.isfinite(value := shown.shown(row[column])):
            values[run.seed] = value
        else:
            step, non_finite = int(row["global_step"]), non_finite + 1
            problems.append(f"missing: {run.name}: no {column} at step {step}")
    summary = intervals.summarise(list(values.values())) if values else None
    last = {seed: tail[split] for seed, tail in tails.items() if split in tail}
    return SplitResult(values, summary, last=last, non_finite=non_finite)


def _compared(
    rows: list[VariantResult], baseline: str, shown: Metric, shares_seeds: bool
) -> list[VariantResult]:
    """Returns the rows with their comparisons, corrected over the variants of each split, verdicts
    that the runs do not bear withheld; as they are where no row is the baseline's."""
    against = next((row for row in rows if row.variant == baseline), None)
    if against is None:
        return rows
    for split in layout.SPLITS:
        others = [row for row in rows if row is not against and row.splits[split].values]
        base = against.splits[split].values
        pairs = [
            comparisons.compare(row.splits[split].values, base, shares_seeds) for row in others
        ]
        corrected = comparisons.corrected(pairs, shown.lower_is_better)
        for row, comparison in zip(others, corrected, strict=True):
            kept = verdict_rules.applied(comparison, row, against, split)
            result = dataclasses.replace(row.splits[split], comparison=kept)
            rows[rows.index(row)] = dataclasses.replace(row, splits=row.splits | {split: result})
    return rows
