"""Scores of variants on the tasks of a suite, each against the baseline's, from its questions.

Three kinds of noise, never mixed into one figure. Over questions: other questions of the kind, put
to the same trained models; intervals and p-values of tasks and of their mean are of this. Over
checkpoints: how one run moves as it trains. Over seeds: how another run would differ.

p-values of tasks are corrected by Holm over variants x tasks, not over a variant's tasks alone:
a reader looks through the whole table for what stands out, so the whole table is the family. Means
over tasks, one for each variant, are corrected over the variants.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from analysis.load.files.downstream import Task
from analysis.statistics import comparisons, questions
from analysis.statistics.results import Comparison

# A task to (variant, seed, step) to its answers.
Answers = Mapping[str, Mapping[tuple[str, int, int], Task]]


@dataclass(frozen=True)
class Spread:
    """Of `seeds` trials at each one's last `checkpoints`: their mean, and the standard deviations
    over checkpoints and over seeds as `questions.deviations` has them."""

    seeds: int
    checkpoints: int
    mean: float = np.nan
    over_checkpoints: float = np.nan
    over_seeds: float = np.nan


@dataclass(frozen=True)
class Difference:
    """A variant's score over `seeds` runs minus the baseline's over `seeds_baseline`: its 95%
    interval and p-value over questions, the latter corrected in `p_holm`. `better` and `worse`
    count questions (a model's answers to one averaged) that the variant or the baseline has right
    more often."""

    seeds: int
    seeds_baseline: int
    value: float
    low: float
    high: float
    p: float
    p_holm: float = np.nan
    better: int = 0
    worse: int = 0


@dataclass(frozen=True)
class Score:
    """A variant on a task of n questions, or its mean over tasks: the mean over seeds of the
    fraction that is right, `low` and `high` bounding its 95% interval over questions.

    `spread` is over the last checkpoints. `metrics` are all that results.json states, mean over
    seeds, and `undecodable` is the share of answers that are none of those allowed, None where
    nothing was generated. `difference` is None for the baseline and where nothing can be compared;
    `by_seeds` is the comparison of means over tasks by seeds.
    """

    n: int
    seeds: int
    value: float
    low: float
    high: float
    spread: Spread
    metrics: Mapping[str, float] = field(default_factory=dict)
    undecodable: float | None = None
    difference: Difference | None = None
    by_seeds: Comparison | None = None


@dataclass(frozen=True)
class Scored:
    """A suite's usable answers by `metrics`, one for each task, `at` the step that is shown;
    `steps` are the last checkpoints. Differences are from `baseline`'s, over the seeds that
    both have where most are shared (`comparisons.paired_seeds`), else over all runs of both."""

    answers: Answers
    metrics: Mapping[str, str]
    at: int
    steps: Sequence[int]
    baseline: str
    shares_seeds: bool

    def right(self, variant: str, task: str) -> dict[int, np.ndarray]:
        """Returns the answers at the step shown, bool [n] of each seed."""
        return {
            seed: found.right(self.metrics[task])
            for (name, seed, step), found in self.answers[task].items()
            if name == variant and step == self.at and self.metrics[task] in found.bits
        }

    def curve(self, variant: str, task: str) -> dict[int, list[float]]:
        """Returns the scores at the last checkpoints of each seed that has them all."""
        metric = self.metrics[task]
        found = {
            (seed, step): answers.metrics[metric]
            for (name, seed, step), answers in self.answers[task].items()
            if name == variant and metric in answers.metrics
        }
        seeds = dict.fromkeys(seed for seed, _ in found)
        whole = [seed for seed in seeds if all((seed, step) in found for step in self.steps)]
        return {seed: [found[seed, step] for step in self.steps] for seed in whole}

    def of_tasks(self, variant: str) -> dict[str, Score]:
        """Returns the variant's score on each task that a trial of its has answered."""
        return {
            task: self._of_task(variant, task) for task in self.metrics if self.right(variant, task)
        }

    def _of_task(self, variant: str, task: str) -> Score:
        right = self.right(variant, task)
        found = [
            answers
            for (name, _, step), answers in self.answers[task].items()
            if name == variant and step == self.at
        ]
        totals = _total(right)
        low, high = questions.interval(questions.resampled_means([totals])[:, 0] / len(right))
        curve = self.curve(variant, task)
        undecodable = [each.undecodable for each in found if each.undecodable is not None]
        names = dict.fromkeys(name for each in found for name in each.metrics)
        return Score(
            n=len(totals),
            seeds=len(right),
            value=float(totals.mean() / len(right)),
            low=low,
            high=high,
            spread=_spread(curve),
            metrics={
                name: float(np.mean([each.metrics[name] for each in found if name in each.metrics]))
                for name in names
            },
            undecodable=float(np.mean(undecodable)) if undecodable else None,
            difference=self._difference(variant, [task]),
        )

    def _difference(self, variant: str, tasks: Sequence[str]) -> Difference | None:
        """Returns that of the mean over `tasks`, exact where it is one."""
        if variant == self.baseline:
            return None
        mine = {task: self.right(variant, task) for task in tasks}
        other = {task: self.right(self.baseline, task) for task in tasks}
        ours, theirs = sorted(_seeds(mine)), sorted(_seeds(other))
        shared = comparisons.paired_seeds(ours, theirs, self.shares_seeds)
        ours, theirs = shared or ours, shared or theirs
        if not ours or not theirs:
            return None
        # In units that make sums of both whole numbers: one answer, where seeds are as many.
        unit = math.lcm(len(ours), len(theirs))
        sums = [
            unit // len(ours) * _total({seed: mine[task][seed] for seed in ours})
            - unit // len(theirs) * _total({seed: other[task][seed] for seed in theirs})
            for task in tasks
        ]
        means = questions.resampled_means(sums).mean(axis=1) / unit
        # Models of unequal numbers of seeds cannot be exchanged.
        exact = len(tasks) == 1 and len(ours) == len(theirs)
        low, high = questions.interval(means)
        return Difference(
            seeds=len(ours),
            seeds_baseline=len(theirs),
            value=float(np.mean([each.mean() for each in sums]) / unit),
            low=low,
            high=high,
            p=questions.sign_flips(sums[0]) if exact else questions.bootstrap_p(means),
            better=int(sum((each > 0).sum() for each in sums)),
            worse=int(sum((each < 0).sum() for each in sums)),
        )

    def mean(self, variant: str) -> Score | None:
        """Returns the mean over tasks of the seeds that have every task, None without one."""
        right = {task: self.right(variant, task) for task in self.metrics}
        seeds = sorted(_seeds(right))
        if not right or not seeds:
            return None
        totals = [_total({seed: right[task][seed] for seed in seeds}) for task in right]
        drawn = questions.resampled_means(totals).mean(axis=1) / len(seeds)
        low, high = questions.interval(drawn)
        tasks = list(self.metrics)
        curves = [self.curve(variant, task) for task in tasks]
        whole = sorted(set.intersection(*(set(curve) for curve in curves)))
        curve = {seed: np.mean([each[seed] for each in curves], axis=0).tolist() for seed in whole}
        by_seeds = None
        if variant != self.baseline and (others := self._seed_means(self.baseline)):
            by_seeds = comparisons.compare(self._seed_means(variant), others, self.shares_seeds)
        return Score(
            n=sum(len(each) for each in totals),
            seeds=len(seeds),
            value=float(np.mean([each.mean() for each in totals]) / len(seeds)),
            low=low,
            high=high,
            spread=_spread(curve),
            difference=self._difference(variant, tasks),
            by_seeds=by_seeds,
        )

    def _seed_means(self, variant: str) -> dict[int, float]:
        right = {task: self.right(variant, task) for task in self.metrics}
        return {
            seed: float(np.mean([right[task][seed].mean() for task in right]))
            for seed in sorted(_seeds(right))
        }


def _seeds(right: Mapping[str, Mapping[int, np.ndarray]]) -> set[int]:
    """Returns the seeds that have every task."""
    return set.intersection(*(set(found) for found in right.values())) if right else set()


def _total(right: Mapping[int, np.ndarray]) -> np.ndarray:
    """Returns of each question how many seeds have it right, int64 [n]."""
    return np.asarray(np.sum(list(right.values()), axis=0, dtype=np.int64))


def _spread(curve: Mapping[int, Sequence[float]]) -> Spread:
    values = np.array(list(curve.values()), float)
    if not values.size:
        return Spread(0, 0)
    seeds, checkpoints = values.shape
    return Spread(seeds, checkpoints, float(values.mean()), *questions.deviations(values))


def corrected(scores: dict[str, dict[str, Score]]) -> dict[str, dict[str, Score]]:
    """Returns the scores with p-values corrected over variants x tasks."""
    tested = [
        (variant, task, score, score.difference)
        for variant, of_tasks in scores.items()
        for task, score in of_tasks.items()
        if score.difference is not None
    ]
    found = {variant: dict(of_tasks) for variant, of_tasks in scores.items()}
    p_values = comparisons.holm([difference.p for *_, difference in tested])
    for (variant, task, score, difference), p in zip(tested, p_values, strict=True):
        found[variant][task] = replace(score, difference=replace(difference, p_holm=float(p)))
    return found


def corrected_means(means: dict[str, Score]) -> dict[str, Score]:
    """Returns the means with both p-values, over questions and over seeds, corrected over the
    variants."""
    differences = {name: each.difference for name, each in means.items() if each.difference}
    p_values = comparisons.holm([each.p for each in differences.values()])
    seeds = {name: each.by_seeds for name, each in means.items() if each.by_seeds}
    corrected = comparisons.corrected(list(seeds.values()), lower_is_better=False)
    found = dict(means)
    for (name, difference), p in zip(differences.items(), p_values, strict=True):
        found[name] = replace(found[name], difference=replace(difference, p_holm=float(p)))
    for name, comparison in zip(seeds, corrected, strict=True):
        found[name] = replace(found[name], by_seeds=comparison)
    return found
