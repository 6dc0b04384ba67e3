"""The error table as data: one result per variant and split, before anything is laid out."""

from dataclasses import dataclass

from analysis.documents import variants
from analysis.files import evaluations
from analysis.files.records import Run, Study
from analysis.reading import metrics, selection
from analysis.reading.metrics import Metric
from analysis.results import baselines, references, variant_rows
from analysis.results.references import Reference
from analysis.results.variant_results import SplitResult, VariantResult
from sweeps.records import layout

__all__ = ["LAST", "ErrorTable", "SplitResult", "VariantResult", "build"]

LAST = 5


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
    rows = [
        variant_rows.of_variant(study, stage, name, shown, chosen_by, last, problems)
        for name in names
    ]
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


def _has(run: Run, shown: Metric, split: str) -> bool:
    """Whether a run has the metric on a split, or nothing there that could be measured."""
    return shown.column(split) in run.evals or split in evaluations.splits_of_nothing(run.evals)


def _check_columns(runs: tuple[Run, ...], shown: Metric, problems: list[str]) -> None:
    """Says once what no trial has; what some trials lack is said for each of them."""
    measured = [run for run in runs if run.evals]
    absent = [
        split
        for split in layout.SPLITS
        if measured and not any(_has(run, shown, split) for run in measured)
    ]
    if len(absent) == len(layout.SPLITS):
        run = measured[0]
        shown.read(run.evals, selection.VALIDATION, f"{run.name}/{layout.EVAL_MEASUREMENTS}")
    problems += [f"missing: no trial has a column {shown.column(split)}" for split in absent]
