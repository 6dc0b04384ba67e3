"""The error table of a study's stage: its variants, each compared with the baseline."""

import collections
import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.compare.verdicts import (
    NON_FINITE,
    SO_FAR,
    UNFINISHED,
    SplitResult,
    VariantResult,
    choice_errors,
    mixture,
    unfair,
)
from analysis.load import measurements, metrics, paper, selection
from analysis.load.metrics import Metric
from analysis.load.paper import PaperCell
from analysis.load.records import Problem, Run, StudyRuns
from analysis.statistics import comparisons, intervals, looks
from analysis.statistics.comparisons import Comparison, Verdict
from attention import table as variants
from sweeps.records import layout
from sweeps.study import keys

DEFAULT_BASELINE = "standard"
LAST = 5


@dataclass(frozen=True)
class Reference:
    """A reference row, e.g. nearest neighbour or bigram: split to number or None. `constant`, of a
    row with the same answer for every example: its value of the metric that chooses, as that is
    shown, on validation; None of other rows, or if that is not recorded."""

    name: str
    values: dict[str, float | None]
    constant: float | None = None


@dataclass(frozen=True, eq=False)
class ErrorTable:
    """What the views are given. `decisive` is the split of the verdict, `family` the number of
    variants that Holm's correction counts, `last` how many of a trial's last evaluations are summed
    up. `unfinished` are the variants that have trials to come, all of them where one has that the
    study plans. `is_preliminary`: their verdicts are shown, marked `so far`. `looks` are the
    numbers of seeds at which the study declared that it gives verdicts, and `look` the one that it
    is at, 0 between them. `margin` is what is practically equal, empty for none (`equality_p`)."""

    study: StudyRuns
    workload: str
    stage: str
    metric: Metric
    chosen_by: Metric
    baseline: str
    decisive: str
    rows: tuple[VariantResult, ...]
    references: tuple[Reference, ...]
    reference_note: str | None
    problems: tuple[Problem, ...]
    family: int
    last: int = LAST
    unfinished: frozenset[str] = frozenset()
    is_preliminary: bool = False
    looks: tuple[int, ...] = ()
    look: int = 0
    margin: str = ""

    @functools.cached_property
    def by_variant(self) -> dict[str, VariantResult]:
        """Returns each variant's row."""
        return {row.variant: row for row in self.rows}

    @property
    def baseline_row(self) -> VariantResult | None:
        """Returns the row that the others are compared with, None if there is none."""
        return self.by_variant.get(self.baseline)

    @property
    def baseline_label(self) -> str:
        """Returns the baseline as the paper calls it, whether or not it has a row."""
        return variants.label(self.baseline)

    @functools.cached_property
    def commits(self) -> tuple[str, ...]:
        """Returns the commits that trained the trials of the rows, else the one that planned the
        study; none if nothing is recorded."""
        runs = [run for row in self.rows for run in self.runs(row, ("done",))]
        trained = [commit for run in runs for commit in run.commits]
        planned = [plan.git_commit for plan in self.study.plans[:1] if plan.git_commit]
        return tuple(dict.fromkeys(trained or planned))

    @property
    def threshold(self) -> float:
        """Returns the p below which there is a verdict at `look`, the least one of any look between
        them, 0 without any."""
        by_look = looks.thresholds(self.looks, comparisons.ALPHA / max(1, self.family))
        return by_look.get(self.look, min(by_look.values(), default=0.0))

    @property
    def what(self) -> str:
        """Returns the quantity of the verdicts: `test error`."""
        return f"{self.decisive} {self.metric.label}"

    @property
    def is_paper(self) -> bool:
        """Returns whether the paper's column stands beside ours."""
        return any(result.paper for row in self.rows for result in row.splits.values())

    def of(self, row: VariantResult) -> SplitResult:
        """Returns a row's result on the deciding split."""
        return row.splits[self.decisive]

    @property
    def comparisons(self) -> dict[str, Comparison]:
        """Returns the comparisons on the deciding split by variant, of those that have one."""
        return {
            row.variant: comparison
            for row in self.rows
            if (comparison := self.of(row).comparison) is not None
        }

    def runs(self, row: VariantResult, states: Collection[str] = ()) -> list[Run]:
        """Returns the stage's runs of a row's variant and point, the first of each seed, in
        `states` where given."""
        place = row.variant, row.point
        runs = self.study.stage(self.stage)
        first = first_of_each_seed(run for run in runs if (run.variant, run.point) == place)
        return [run for run in first if not states or run.state in states]

    def withheld(self, variant: str) -> str:
        """Returns why no comparison of a variant with the baseline is a result: the `mixture` of
        their trials, or `unfinished` unless that is shown; empty if nothing forbids one."""
        base = self.baseline_row
        row = self.by_variant.get(variant, base)
        is_waiting = not self.unfinished.isdisjoint((variant, self.baseline))
        waiting = UNFINISHED if is_waiting and not self.is_preliminary else ""
        return (mixture(row, base) if row and base else "") or waiting

    @property
    def named_problems(self) -> list[Problem]:
        """Returns the problems with the study's name before each place, for several studies."""
        return [
            dataclasses.replace(problem, trial=f"{self.study.name}/{problem.trial}".rstrip("/"))
            for problem in self.problems
        ]


def build(
    study: StudyRuns,
    stage: str | None = None,
    metric: str | None = None,
    baseline: str | None = None,
    last: int = LAST,
    preliminary: bool = False,
    margin: str = "",
) -> ErrorTable:
    """Returns the table of one stage (the last one unless given).

    `metric` is shown: `error` or a metric's column, by default what the study selects by, accuracy
    as error. The others are compared with `baseline`, by default the study's own; without a row of
    that name nothing is compared. `preliminary` shows verdicts that only `unfinished` withholds.
    `margin` stands in for the study's own, which is of the study's own metric alone. The step is
    the one that the study's own validation metric chose. The first trial of each seed enters if it
    is done; the others are in `problems`.

    Raises ValueError for a stage or a margin that cannot be, or if no evaluation has the metric.
    """
    stage = _stage(study, stage)
    chosen_by = selection.study_metric(study)
    shown = metrics.of_study(study, metric) if metric else metrics.shown_for(chosen_by)
    problems = _problems(study, stage, shown)
    named = {run.variant for run in study.stage(stage)}
    # A stage that compares has every variant of the study's, also before it is planned.
    if not named or stage == study.stages[-1]:
        named.update(study.variants)
    names = sorted(named, key=variants.order)
    rows = [_row(study, stage, name, shown, chosen_by, problems) for name in names]
    problems += _elsewhere(study, stage, rows, problems)
    baseline = baseline or str(study.config.get("baseline", DEFAULT_BASELINE))
    family = len(named.union(*(plan.variants for plan in study.plans)) - {baseline})
    declared, look, unfinished = _progress(study, stage, rows)
    reference = study.references.get(study.workload) or {}
    table = ErrorTable(
        study=study,
        workload=study.workload,
        stage=stage,
        metric=shown,
        chosen_by=chosen_by,
        baseline=baseline,
        decisive="test" if any(row.splits["test"].values for row in rows) else "validation",
        rows=tuple(rows),
        family=family,
        last=last,
        unfinished=unfinished,
        is_preliminary=preliminary,
        looks=declared,
        look=look,
        margin=_margin(study, margin, shown, shown == metrics.shown_for(chosen_by)),
        references=tuple(_reference(row, shown, chosen_by) for row in reference.get("rows", ())),
        reference_note=reference.get("note"),
        problems=tuple(dict.fromkeys(problems)),
    )
    _compare(table, table.rows)
    points = [result for row in rows for result in row.points]
    for point in {result.point for result in points}:
        _compare(table, [result for result in points if result.point == point])
    return table


def _compare(table: ErrorTable, rows: Sequence[VariantResult]) -> None:
    """Sets the comparisons of `rows`, with verdicts that are not fair withheld; none if no row is
    the baseline's."""
    by_variant = {row.variant: row for row in rows}
    base_row = by_variant.get(table.baseline)
    errors = {
        row.variant: choice_errors(row, base_row, table.study.shares_seeds)
        for row in rows
        if base_row and any(row.points for row in rows)
    }
    for split in layout.SPLITS:
        compared = comparisons.compare_all(
            {row.variant: row.splits[split].values for row in rows},
            table.baseline,
            table.study.shares_seeds,
            table.metric.lower_is_better,
            table.family,
            table.threshold,
            table.margin,
            {name: of_splits[split] for name, of_splits in errors.items()},
        )
        for name, comparison in compared.items():
            row, base = by_variant[name], by_variant[table.baseline]
            reason = unfair(comparison, row, base, split)
            verdict: Verdict = "cannot tell" if reason else comparison.verdict
            if verdict in SO_FAR and not table.unfinished.isdisjoint((name, table.baseline)):
                reason = UNFINISHED
                verdict = SO_FAR[verdict] if table.is_preliminary else "cannot tell"
            is_told = verdict != "cannot tell" and not (row.lost_on(split) or base.lost_on(split))
            fair = dataclasses.replace(
                comparison,
                verdict=verdict,
                withheld=reason,
                within=comparison.within if is_told else "",
            )
            row.splits[split] = dataclasses.replace(row.splits[split], comparison=fair)


def _elsewhere(
    study: StudyRuns, stage: str, rows: Sequence[VariantResult], named: Sequence[Problem]
) -> list[Problem]:
    """Returns the number of problems not `named` yet, of variants with a point, as a problem."""
    unchosen = {row.variant for row in rows if row.point is None}
    waiting = [run for run in study.stage(stage) if run.variant in unchosen]
    left_out = {problem for run in waiting for problem in run.problems}
    count = len(set(study.problems) - left_out - set(named))
    text = f"{count} problems of other trials; `python -m analysis runs` lists them"
    return [Problem("elsewhere", "", "", text)] if count else []


def _reference(row: dict[str, Any], shown: Metric, chosen_by: Metric) -> Reference:
    chosen = metrics.shown_for(chosen_by).reference(row, "validation")
    return Reference(
        str(row.get("name", "unnamed")),
        {split: shown.reference(row, split) for split in layout.SPLITS},
        constant=chosen if row.get("constant") is True else None,
    )


def _margin(study: StudyRuns, asked: str, shown: Metric, is_own: bool) -> str:
    """Returns the margin that is `asked`, else the study's; `is_own`: `shown` is its metric."""
    margin = asked or (str(study.plans[-1].margin) if study.plans and is_own else "")
    most = 1.0 if shown.is_bounded and not margin.endswith("%") else math.inf
    if not keys.MARGIN.holds(margin) or float(margin.rstrip("%") or 0) >= most:
        raise ValueError(
            f"margin {margin!r}: give {keys.MARGIN.words} of the baseline's mean; of a metric "
            "between 0 and 1 a number below 1 (0.01 is one point)"
        )
    return margin


def _progress(
    study: StudyRuns, stage: str, rows: Sequence[VariantResult]
) -> tuple[tuple[int, ...], int, frozenset[str]]:
    """Returns `looks`, which are of the last stage, `look` and `unfinished` of the table. The study
    is at a look if all trials have ended and each variant that it plans has as many. Unfinished are
    the variants with fewer seeds than the look, without one than planned; all of them where that is
    one that the study plans now, or a point may yet be chosen, and between looks; none of logs,
    which plan nothing."""
    if not study.plans:
        return (), 0, frozenset()
    declared = sorted({*study.plans[0].looks}) if stage == study.stages[-1] else []
    is_waiting = any(run.is_planned and not run.has_ended for run in study.stage(stage))
    ended = {row.ended for row in rows if row.variant in study.variants and row.planned}
    look = 0 if is_waiting or len(ended) > 1 else max(ended.intersection(declared), default=0)
    missing = {row.variant for row in rows if row.ended < min(row.planned, look or row.planned)}
    if is_waiting or bool(declared) > bool(look) or not missing.isdisjoint(study.variants):
        missing = {row.variant for row in rows}
    return tuple(declared), look, frozenset(missing)


def check_baseline(studies: Sequence[StudyRuns], asked: str | None) -> None:
    """Raises ValueError if none of the studies has a variant called `asked`, unless None."""
    names = {run.variant for study in studies for run in study.runs}
    names |= {str(name) for study in studies for name in study.config.get("variants", ())}
    if asked is not None and asked not in names:
        known = ", ".join(sorted(names)) or "none"
        raise ValueError(f"no variant {asked!r} to compare with; there are {known}: give one")


def _stage(study: StudyRuns, stage: str | None) -> str:
    chosen = study.stages[-1] if stage is None and study.stages else stage
    if chosen is None or chosen not in study.stages:
        stages = ", ".join(study.stages) or "none"
        raise ValueError(f"no stage {chosen!r} in {study.name}; {layout.STUDY} names {stages}")
    return chosen


def _problems(study: StudyRuns, stage: str, shown: Metric) -> list[Problem]:
    """Returns problems of no particular trial: of the study, of a stage that has not begun, of
    columns that no trial has. Raises ValueError if no trial has any column."""
    problems = list(study.study_problems)
    if stage not in study.planned:
        problems.append(Problem("missing", stage, layout.TRIALS, "the stage has not begun"))
    measured = [run for run in study.stage(stage) if run.evals]
    # On a split without examples there is nothing that could be measured.
    held = {
        split
        for run in measured
        for split in layout.SPLITS
        if shown.column(split) in run.evals or split in measurements.splits_of_nothing(run.evals)
    }
    absent = [split for split in layout.SPLITS if measured and split not in held]
    if absent and not any(
        shown.column(split) in x.evals for x in measured for split in layout.SPLITS
    ):
        raise ValueError(shown.missing(measured[0], selection.VALIDATION))
    texts = [f"no trial has a column {shown.column(split)}" for split in absent]
    return problems + [Problem("missing", "", "", text) for text in texts]


def _row(
    study: StudyRuns,
    stage: str,
    variant: str,
    shown: Metric,
    chosen_by: Metric,
    problems: list[Problem],
) -> VariantResult:
    """Returns the row of `variant`, without comparison: of `shown`, at the steps that `chosen_by`
    chose, with its results at every point among which these trials chose. What is missing is added
    to `problems`."""
    point = selection.chosen_point(study, stage, variant)
    trials = [run for run in study.stage(stage) if run.variant == variant]
    of_points: dict[int | None, list[Run]] = collections.defaultdict(list)
    for run in trials:
        of_points[run.point].append(run)
    runs = of_points[point]
    problems += [problem for run in runs for problem in run.problems]
    seeds = first_of_each_seed(runs)
    is_lost = point is None and selection.is_lost_in_tuning(study, stage, variant)
    if is_lost:
        text = "lost in tuning: half of the seeds of every point or more have no finite number"
        problems.append(Problem("missing", f"{stage}/{variant}", "", text))
    elif point is None:
        text = (
            f"no point was chosen by validation; {sum(run.has_ended for run in trials)} of "
            f"{len(trials)} trials have ended (`python -m analysis runs` lists them)"
        )
        problems.append(Problem("missing", f"{stage}/{variant}", "", text))
        # Only runs that are not done can be counted.
        seeds = first_of_each_seed(run for run in trials if run.state != "done")
    asked = study, stage, variant
    # The chosen point, too, has a result of its own among `points`: its comparisons are others.
    row = _at_point(*asked, point, seeds, is_lost, shown, chosen_by, problems)
    return dataclasses.replace(
        row,
        points=tuple(
            _at_point(*asked, x, first_of_each_seed(of_points[x]), False, shown, chosen_by, [])
            for x in selection.candidates(*asked)
        ),
    )


def _at_point(
    study: StudyRuns,
    stage: str,
    variant: str,
    point: int | None,
    seeds: Sequence[Run],
    is_lost: bool,
    shown: Metric,
    chosen_by: Metric,
    problems: list[Problem],
) -> VariantResult:
    """Returns the result of a variant's runs `seeds`, of which each has its own seed."""
    column, value_of = chosen_by.column("validation"), metrics.shown_for(chosen_by).shown
    chosen: dict[Run, dict[str, float]] = {}
    for run in (run for run in seeds if run.is_finished):
        row = selection.best_step(run, chosen_by)
        if row is not None:
            chosen[run] = row
        elif run.last_step is not None:
            text = f"no {'finite' if column in run.evals else 'column'} {column}"
            problems.append(Problem("missing", run.name, "", text))
    steps = [run.last_step for run in chosen if run.last_step is not None]
    planned = [] if is_lost else study.planned_seeds(stage, variant)
    most = max([len(seeds), *planned])
    sign = 1 if chosen_by.mode == "min" else -1
    place = study.paper_table, shown.name, study.workload, study.config, variant
    return VariantResult(
        variant=variant,
        point=point,
        n=len(chosen),
        splits={
            split: _split(chosen, split, shown, paper.cell(*place, split), problems)
            for split in layout.SPLITS
        },
        hyperparameters=seeds[0].variant_hyperparameters if seeds and point is not None else {},
        planned=most,
        planned_at_first=next((count for count in planned[:1] if count < most), 0),
        lost=lost_seeds(seeds, set(chosen), column),
        last_step=float(np.median(steps)) if steps else math.nan,
        data=frozenset(run.data_digest for run in chosen if run.data_digest),
        chosen={run.seed: value_of(row[column]) for run, row in chosen.items()},
        uncounted=tuple(selection.uncounted(study, stage, variant, point)),
        is_lost_in_tuning=is_lost,
        losses={
            run.seed: sign * chosen[run][column] if run in chosen else math.inf
            for run in seeds
            if run.has_ended
        },
    )


def first_of_each_seed(runs: Iterable[Run]) -> list[Run]:
    """Returns the first run of each seed; the reader names the others as duplicated."""
    first: dict[int, Run] = {}
    for run in runs:
        first.setdefault(run.seed, run)
    return list(first.values())


def lost_seeds(runs: Sequence[Run], usable: Set[Run], column: str) -> dict[str, int]:
    """Returns how many of `runs` are lost, by why: `diverged` and `failed` are what trials say;
    `non-finite` are those that are finished, not `usable`, and have the `column` that chooses."""
    stated = [run.state for run in runs if run.state in layout.LOST]
    unusable = [run for run in runs if run.is_finished and run not in usable]
    non_finite = [NON_FINITE for run in unusable if column in run.evals]
    return dict(sorted(collections.Counter(stated + non_finite).items()))


def _split(
    chosen: dict[Run, dict[str, float]],
    split: str,
    shown: Metric,
    cell: PaperCell | None,
    problems: list[Problem],
) -> SplitResult:
    values: dict[int, float] = {}
    non_finite, column = 0, shown.column(split)
    measured = any(column in row for row in chosen.values())
    for run, row in chosen.items():
        if column not in row:
            # The reader names a missing column of the trial's own metric.
            if measured and run.metric != shown.source:
                problems.append(Problem("missing", run.name, "", f"no column {column}"))
        elif math.isfinite(value := shown.shown(row[column])):
            values[run.seed] = value
        else:
            non_finite += 1
            text = f"no {column} at step {row['global_step']:.0f}"
            problems.append(Problem("missing", run.name, "", text))
    summary = intervals.summarise(list(values.values())) if values else None
    return SplitResult(values, summary, paper=cell, non_finite=non_finite)
