"""Makes the rows of an error table from a study's runs."""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from analysis.files.records import Run, Study
from analysis.paper import paper
from analysis.reading import selection
from analysis.reading.metrics import Metric, MissingMetricError
from analysis.results import lost_seeds
from analysis.results.variant_results import SplitResult, VariantResult
from analysis.statistics import statistics
from sweeps.records import layout


def of_variant(
    study: Study,
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
    seeds = lost_seeds.first_of_each(
        runs if point is not None else lost_seeds.without_number(planned)
    )
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
            # The reader names a lack of the trial's own metric; not of another that is asked for.
            if not somewhere or any(shown.column(split) in each for each in run.problems):
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
