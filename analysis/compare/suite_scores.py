"""Scores of a study's variants on the tasks of suites, each against the baseline's.

Three kinds of noise, never mixed into one number. Over questions: other questions of the kind, put
to the same trained models; intervals and p-values of tasks and of their mean are of this. Over
checkpoints: how one run moves as it trains. Over seeds: how another run would differ.

p-values of tasks are corrected by Holm over variants x tasks, not over a variant's tasks alone:
a reader looks through the whole table for what stands out, so the whole table is the family. Means
over tasks, one for each variant, are corrected over the variants.

Trials are compared only where they answered the same questions. What is missing or left out is a
problem of the table.
"""

import collections
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.error_table import ErrorTable
from analysis.load import samples
from analysis.load.records import Problem
from analysis.statistics import comparisons, intervals, questions
from attention import table as variants
from sweeps.records import layout

# What stands in a task's place where it is their mean.
MEAN = "mean over tasks"
COUNTS = (
    *("n", "seeds", "seeds_compared", "seeds_baseline", "right_alone", "baseline_alone"),
    *("checkpoints", "checkpoint_seeds"),
)
COLUMNS = (
    *("study", "workload", "stage", "suite", "step", "kind", "variant", "label", "task"),
    *("metric", "n", "seeds", "score", "low", "high", "difference", "difference_low"),
    *("difference_high", "seeds_compared", "seeds_baseline", "right_alone", "baseline_alone"),
    *("p", "p_holm", "seeds_low", "seeds_high", "seeds_p", "seeds_p_holm"),
    *("checkpoints", "checkpoint_seeds", "checkpoint_mean", "sd_checkpoints", "sd_seeds"),
    *("undecodable", "metrics"),
)


@dataclass(frozen=True)
class SuiteTable:
    """A suite's scores at the checkpoint of `step`.

    `scores` has a row for each variant (`kind` is `variant`) or reference (`reference`, without a
    variant) and task, MEAN for the mean over tasks, which stands where every task does. A score is
    the mean over `seeds` of the fraction of n questions that is right; `low` and `high` bound its
    95% interval over questions. `difference` is from the baseline's score, over `seeds_compared`
    and `seeds_baseline` runs, with its interval and `p` over questions; `right_alone` and
    `baseline_alone` count questions (a model's answers to one averaged) that one of the two has
    right more often. `seeds_low` to `seeds_p_holm` compare means over tasks by seeds. Over the last
    `checkpoints` of `checkpoint_seeds` trials there are their mean and two standard deviations
    (`intervals.deviations`). `metrics` maps each metric of results.json to its mean over seeds;
    `undecodable` is the share of generated answers that are none of those allowed. What is
    undefined is nan.

    `tasks` are those of one trial, for what holds for all; `metrics` the one that each is shown by.
    """

    suite: str
    step: int
    baseline: str
    tasks: Mapping[str, samples.Task]
    metrics: Mapping[str, str]
    scores: pd.DataFrame
    harness: tuple[str, ...]
    problems: tuple[Problem, ...]


# Reading and testing takes longest of all, and pages and figures show the same tables.
@functools.lru_cache(maxsize=16)
def of_table(
    table: ErrorTable, suite: str | None, metric: str | None, step: int | None
) -> tuple[SuiteTable, ...]:
    """Returns a table for each suite that trials of an error table were asked: those of its stage
    and points that are done; () where none was.

    `suite`: only this one. `metric`: instead of each task's primary one. `step`: of the checkpoint,
    the last one where it is None. Raises ValueError for a suite, metric or step that no trial has.
    """
    runs = [run for row in table.rows for run in table.runs(row, ("done",))]
    read = {run: samples.of_trial(run.path, run.name) for run in runs}
    asked = pd.DataFrame(
        [
            (run.variant, run.seed, run.name, evaluation.suite, evaluation.step, evaluation)
            for run, (evaluations, _) in read.items()
            for evaluation in evaluations
        ],
        columns=["variant", "seed", "trial", "suite", "step", "evaluation"],
    )
    unreadable = [problem for _, problems in read.values() for problem in problems]
    names = sorted(asked["suite"].unique())
    if suite is not None:
        _check(suite, names, "suite", table.study.name)
        names = [suite]
    trials = [run.name for run in runs]
    return tuple(
        _of_suite(table, name, asked[asked["suite"] == name], trials, metric, step, unreadable)
        for name in names
    )


def _check(name: str, known: Sequence[str], what: str, where: str) -> None:
    if name not in known:
        listed = ", ".join(known) or "none: `python -m sweeps evaluate` makes them"
        raise ValueError(f"no results of {what} {name!r} in {where}; there are {listed}")


def _of_suite(
    table: ErrorTable,
    suite: str,
    asked: pd.DataFrame,
    trials: Sequence[str],
    metric: str | None,
    step: int | None,
    unreadable: Sequence[Problem],
) -> SuiteTable:
    problems = [
        *unreadable,
        *(problem for evaluation in asked["evaluation"] for problem in evaluation.problems),
    ]
    answers = _answers(asked)
    steps = sorted(answers["step"].unique().tolist())
    if step is not None:
        _check(str(step), [*map(str, steps)], "step", f"suite {suite}")
    at = step if step is not None else max(steps, default=0)
    answers = answers[answers["trial"].isin(answers["trial"][answers["step"] == at])]
    wanted = sorted(answers["step"][answers["step"] <= at].unique().tolist())[-table.last :]
    problems += _missing(trials, asked, wanted, suite)
    has_tasks = answers.groupby("step")["trial"].nunique()
    curve_steps = [
        checkpoint for checkpoint in wanted if has_tasks[checkpoint] == answers["trial"].nunique()
    ]
    names = answers["variant"].unique().tolist()
    # Where two sets of questions are as frequent, the baseline's count.
    by_baseline = answers.sort_values("variant", key=lambda of: of != table.baseline, kind="stable")
    answers, others = _same_questions(by_baseline)
    tasks = _tasks(answers, at)
    metrics = _metrics(tasks, metric, suite)
    answers = answers[answers["task"].isin(metrics)]
    problems += [*others, *_other_statements(answers, tasks)]
    shared = {
        "study": table.study.name,
        "workload": table.workload,
        "stage": table.stage,
        "suite": suite,
        "step": at,
    }
    rows = Scoring(answers, metrics, at, curve_steps, table).rows(names) + _references(
        tasks, metrics
    )
    return SuiteTable(
        suite=suite,
        step=at,
        baseline=table.baseline,
        tasks={name: tasks[name] for name in metrics},
        metrics=metrics,
        scores=_corrected(pd.DataFrame([shared | row for row in rows], columns=list(COLUMNS))),
        harness=tuple(sorted(set(answers["harness"][answers["step"] == at]))),
        problems=tuple(dict.fromkeys(problems)),
    )


def _answers(asked: pd.DataFrame) -> pd.DataFrame:
    """Returns a row for each task that a trial answered at a step; `answer` is its Task, `file` the
    trial's results.json."""
    rows = [
        {
            "variant": row.variant,
            "seed": row.seed,
            "trial": row.trial,
            "step": row.step,
            "file": f"{layout.downstream_path(row.step, row.suite)}/{layout.RESULTS}",
            "harness": row.evaluation.harness,
            "task": name,
            "answer": task,
        }
        for row in asked.itertuples()
        for name, task in row.evaluation.tasks.items()
    ]
    return pd.DataFrame(
        rows,
        columns=["variant", "seed", "trial", "step", "file", "harness", "task", "answer"],
    )


def _missing(
    trials: Iterable[str], asked: pd.DataFrame, wanted: Iterable[int], suite: str
) -> Iterator[Problem]:
    """Yields trials that were not asked at one of the steps `wanted`. One whose results cannot be
    read has a problem already."""
    steps = asked.groupby("trial")["step"].agg(set)
    for trial in trials:
        absent = [str(step) for step in wanted if step not in steps.get(trial, ())]
        if absent:
            text = (
                f"no results of {suite} at step {', '.join(absent)}, where other trials have them"
            )
            yield Problem("missing", trial, "", text)


def _same_questions(answers: pd.DataFrame) -> tuple[pd.DataFrame, list[Problem]]:
    """Returns the answers to the questions of a task that most trials were asked, of two as
    frequent the first, and who was asked others."""
    identities = answers["answer"].map(lambda task: task.identity)
    usual = identities.groupby(answers["task"]).transform(
        lambda of_task: collections.Counter(of_task).most_common(1)[0][0]
    )
    others = answers[identities != usual]
    problems = [
        Problem(
            "mismatch",
            row.trial,
            row.file,
            f"{row.task} asked other questions (other numbers, right answers, data or shots) than "
            "most trials did; its answers are left out",
        )
        for row in others.itertuples()
    ]
    return answers[identities == usual], problems


def _tasks(answers: pd.DataFrame, at: int) -> dict[str, samples.Task]:
    """Returns each task as the first trial has it, at the step shown where one has it there."""
    shown = pd.concat([answers[answers["step"] == at], answers]).drop_duplicates("task")
    return dict(zip(shown["task"], shown["answer"], strict=True))


def _metrics(tasks: Mapping[str, samples.Task], metric: str | None, suite: str) -> dict[str, str]:
    """Returns by what each task is shown; tasks without the `metric` asked for are left out."""
    if metric is None:
        return {name: task.primary for name, task in tasks.items()}
    known = sorted({name for task in tasks.values() for name in task.bits})
    _check(metric, known, "metric", f"suite {suite}")
    return {name: metric for name, task in tasks.items() if metric in task.bits}


def _other_statements(
    answers: pd.DataFrame, tasks: Mapping[str, samples.Task]
) -> Iterator[Problem]:
    """Yields trials whose results.json has another primary metric or reference of a task."""
    for row in answers.itertuples():
        for what in ("primary", "majority", "references"):
            stated, shown = getattr(row.answer, what), getattr(tasks[row.task], what)
            if stated != shown:
                text = f"{what} of {row.task} is {stated!r}, elsewhere {shown!r}, which is shown"
                yield Problem("mismatch", row.trial, row.file, text)


def _references(tasks: Mapping[str, samples.Task], names: Iterable[str]) -> list[dict[str, Any]]:
    """Returns the rows of answering without a model; the mean where every task has a number."""
    shown = {name: tasks[name] for name in names}
    values = {name: {"majority class": task.majority, **task.references}
              for name, task in shown.items()}  # fmt: skip
    rows = []
    for label in dict.fromkeys(label for of_task in values.values() for label in of_task):
        scores = {name: of_task.get(label) for name, of_task in values.items()}
        known = [score for score in scores.values() if score is not None]
        if known:
            mean = float(np.mean(known)) if len(known) == len(scores) else None
            rows += [
                {"kind": "reference", "variant": "", "label": label, "task": name, "score": score}
                for name, score in {**scores, MEAN: mean}.items()
            ]
    return rows


class Scoring:
    """Scores of the `answers` of a suite by `metrics`, one for each task, `at` a step; `steps` are
    the last checkpoints. Differences are from the table's baseline, over the seeds that both have
    where most are shared (`comparisons.paired_seeds`), else over all runs of both."""

    def __init__(
        self,
        answers: pd.DataFrame,
        metrics: Mapping[str, str],
        at: int,
        steps: Sequence[int],
        table: ErrorTable,
    ) -> None:
        self._metrics, self._table = metrics, table
        pairs = list(zip(answers["answer"], answers["task"].map(metrics), strict=True))
        answers = answers.assign(
            value=[task.metrics.get(metric, np.nan) for task, metric in pairs],
            is_known=[metric in task.bits for task, metric in pairs],
        )
        shown = answers[answers["is_known"] & (answers["step"] == at)]
        right = [task.right(metrics[task.name]) for task in shown["answer"]]
        self._shown = shown.groupby(["variant", "task"])["answer"].agg(list)
        self._right = _by_variant(shown.assign(right=right), "right", ["task"], [*metrics])
        self._baseline = self._right.get(table.baseline, pd.DataFrame(columns=[*metrics]))
        places = [(task, step) for task in metrics for step in steps]
        self._curves = _by_variant(answers, "value", ["task", "step"], places)

    def rows(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Returns a row of SuiteTable.scores for each variant and each task that it has answered,
        and of the mean over tasks where it has every one."""
        parts = {**{task: [task] for task in self._metrics}, MEAN: [*self._metrics]}
        return [
            self._row(name, task, tasks, right)
            for name in names
            for task, tasks in parts.items()
            if name in self._right and len(right := self._right[name][tasks].dropna())
        ]

    def _row(self, name: str, task: str, tasks: list[str], right: pd.DataFrame) -> dict[str, Any]:
        """Returns a row over the seeds of `right` [seeds, tasks], each a bool [n]."""
        totals = [_total(right[name]) for name in tasks]
        low, high = intervals.percentile_interval(
            questions.resampled_means(totals).mean(axis=1) / len(right)
        )
        row = {
            "kind": "variant",
            "variant": name,
            "label": variants.label(name),
            "task": task,
            "metric": self._metrics.get(task),
            "n": sum(map(len, totals)),
            "seeds": len(right),
            "score": float(np.mean([total.mean() for total in totals]) / len(right)),
            "low": low,
            "high": high,
            **self._spread(name, tasks),
        }
        if task != MEAN:
            answers = self._shown[name, task]
            undecodable = pd.Series([answer.undecodable for answer in answers], dtype=float)
            row |= {
                "metrics": pd.DataFrame([answer.metrics for answer in answers]).mean().to_dict(),
                "undecodable": undecodable.mean(),
            }
        against, shares = self._baseline[tasks].dropna(), self._table.study.shares_seeds
        if name == self._table.baseline or against.empty:
            return row
        if task == MEAN:
            by_seeds = comparisons.compare(_seed_means(right), _seed_means(against), shares)
            row |= {
                "seeds_low": by_seeds.low,
                "seeds_high": by_seeds.high,
                "seeds_p": by_seeds.p,
            }
        return row | _difference(right, against, shares)

    def _spread(self, name: str, tasks: list[str]) -> dict[str, Any]:
        """Returns the columns over the last checkpoints of the seeds that have them all."""
        whole = self._curves[name][tasks].dropna().to_numpy(float)
        if not whole.size:
            return {"checkpoints": 0, "checkpoint_seeds": 0}
        # Of each seed the mean over tasks, [seeds, checkpoints].
        values = np.array([row.reshape(len(tasks), -1).mean(axis=0) for row in whole])
        over_checkpoints, over_seeds = intervals.deviations(values)
        return {
            "checkpoints": values.shape[1],
            "checkpoint_seeds": len(values),
            "checkpoint_mean": float(values.mean()),
            "sd_checkpoints": over_checkpoints,
            "sd_seeds": over_seeds,
        }


def _by_variant(
    answers: pd.DataFrame, values: str, across: list[str], columns: Sequence[Any]
) -> dict[str, pd.DataFrame]:
    """Returns each variant's `values` [seeds, columns], nan if it has none."""
    wide = answers.pivot(index=["variant", "seed"], columns=across, values=values)
    blocks = wide.reindex(columns=columns).groupby(level="variant")
    return {name: block.droplevel("variant") for name, block in blocks}


def _difference(ours: pd.DataFrame, theirs: pd.DataFrame, shares_seeds: bool) -> dict[str, Any]:
    """Returns the columns of the difference of the means over tasks of two models' right answers
    [seeds, tasks], each a bool [n]; p is exact for one task."""
    shared = comparisons.paired_seeds(list(ours.index), list(theirs.index), shares_seeds)
    if shared:
        ours, theirs = ours.loc[shared], theirs.loc[shared]
    # In units that make sums of both whole numbers: one answer, where seeds are as many.
    unit = math.lcm(len(ours), len(theirs))
    sums = [
        unit // len(ours) * _total(ours[task]) - unit // len(theirs) * _total(theirs[task])
        for task in ours
    ]
    means = questions.resampled_means(sums).mean(axis=1) / unit
    # Models of unequal numbers of seeds cannot be exchanged.
    exact = len(sums) == 1 and len(ours) == len(theirs)
    low, high = intervals.percentile_interval(means)
    return {
        "difference": float(np.mean([answers.mean() for answers in sums]) / unit),
        "difference_low": low,
        "difference_high": high,
        "seeds_compared": len(ours),
        "seeds_baseline": len(theirs),
        "right_alone": int(sum((answers > 0).sum() for answers in sums)),
        "baseline_alone": int(sum((answers < 0).sum() for answers in sums)),
        "p": questions.sign_flips(sums[0]) if exact else questions.bootstrap_p(means),
    }


def _total(right: pd.Series) -> np.ndarray:
    """Returns of each question how many seeds have it right, int64 [n]."""
    return np.asarray(np.sum(right.tolist(), axis=0, dtype=np.int64))


def _seed_means(right: pd.DataFrame) -> dict[int, float]:
    """Returns the mean over tasks of each seed's shares of right answers."""
    return {
        int(seed): float(np.mean([answers.mean() for answers in row]))
        for seed, row in zip(right.index, right.to_numpy(), strict=True)
    }


def _corrected(scores: pd.DataFrame) -> pd.DataFrame:
    """Returns the scores with p-values corrected: of tasks over variants x tasks, of means, over
    questions and over seeds, over the variants."""
    numbers = scores.columns.drop([*COLUMNS[:10], "metrics"])
    scores = scores.astype(dict.fromkeys(numbers, float)).astype(dict.fromkeys(COUNTS, "Int64"))
    is_mean = scores["task"] == MEAN
    for rows in (is_mean, ~is_mean):
        scores.loc[rows, "p_holm"] = comparisons.holm(scores.loc[rows, "p"])
    return scores.assign(seeds_p_holm=comparisons.holm(scores["seeds_p"]))
