"""What a study's variants can do: their scores on the tasks of each suite that trials were asked.

What trials have is held against one another first: which checkpoints all were asked at, who asked
other questions than the rest, who states other references. What is left out is named.
"""

import collections
import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from analysis.compare import build, suite_scores
from analysis.compare.error_table import ErrorTable
from analysis.compare.suite_scores import Answers, Score
from analysis.load import studies
from analysis.load.files import downstream
from analysis.load.files.downstream import Evaluation, Task
from analysis.load.files.json_records import VISIBLE
from analysis.load.files.trial_files import THREADS
from sweeps.records import layout

# What stands in a task's place where it is their mean.
MEAN = "mean over tasks"


@dataclass(frozen=True)
class SuiteTable:
    """A suite's scores at the checkpoint of `step`: `scores` by variant and task, `means` by
    variant where it has every task. `tasks` are those of one trial, for what holds for all;
    `metrics` the one that each is shown by. `steps` are the last checkpoints that all trials were
    asked at. `problems` names what is missing, damaged or cannot be compared."""

    suite: str
    step: int
    steps: tuple[int, ...]
    baseline: str
    tasks: Mapping[str, Task]
    metrics: Mapping[str, str]
    scores: Mapping[str, Mapping[str, Score]]
    means: Mapping[str, Score]
    harness: tuple[str, ...]
    problems: tuple[str, ...]

    def reference(self, of_task: Mapping[str, float | None]) -> float | None:
        """Returns the mean over the suite's tasks of a row that has a number for each of them."""
        values = [of_task.get(name) for name in self.tasks]
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known and len(known) == len(values) else None

    @property
    def references(self) -> dict[str, dict[str, float | None]]:
        """Returns what stands beside the variants: by name, a number for each task or None."""
        found = {}
        if any(task.majority is not None for task in self.tasks.values()):
            found["majority class"] = {name: task.majority for name, task in self.tasks.items()}
        for name in dict.fromkeys(name for task in self.tasks.values() for name in task.references):
            found[name] = {key: task.references.get(name) for key, task in self.tasks.items()}
        return found

    @property
    def has_spread(self) -> bool:
        """Returns whether any score is over several checkpoints or seeds."""
        spreads = [score.spread for of in self.scores.values() for score in of.values()]
        return any(max(each.checkpoints, each.seeds) > 1 for each in spreads)

    @property
    def generated(self) -> tuple[str, ...]:
        """Returns the tasks whose answers were generated, as fine-tuned models give them."""
        return tuple(name for name, task in self.tasks.items() if task.undecodable is not None)


@dataclass(frozen=True)
class _Trial:
    variant: str
    seed: int
    name: str
    evaluations: tuple[Evaluation, ...]
    problems: tuple[str, ...]


def of_table(
    table: ErrorTable, suite: str | None = None, metric: str | None = None, step: int | None = None
) -> tuple[SuiteTable, ...]:
    """Returns a table for each suite that trials of an error table were asked: those of its stage
    and points that are done; () where none was.

    `suite`: only this one. `metric`: instead of each task's primary one. `step`: of the checkpoint,
    the last one unless given. Raises ValueError for a suite, metric or step that no trial has.
    """
    runs = [
        (row.variant, run)
        for row in table.rows
        for run in build.first_of_each_seed(table.runs(row, ("done",)))
    ]
    with ThreadPoolExecutor(THREADS) as threads:
        read = list(threads.map(lambda each: downstream.of_trial(each[1].path, each[1].name), runs))
    trials = tuple(
        _Trial(variant, run.seed, run.name, tuple(found), tuple(problems))
        for (variant, run), (found, problems) in zip(runs, read, strict=True)
    )
    names = sorted({each.suite for trial in trials for each in trial.evaluations})
    if suite is not None:
        _check(suite, names, "suite", table.study.name)
        names = [suite]
    shared = table.baseline, table.study.shares_seeds, table.last
    return tuple(_built(trials, name, step, metric, *shared) for name in names)


def from_random_weights(table: ErrorTable) -> tuple[str, tuple[SuiteTable, ...]] | None:
    """Returns the name and the suites of the study that trains the workload of a fine-tuned one
    from random weights: beside it, with an empty `finetune_from`. None for a study that is not
    fine-tuned; the names of none or several, and no suites, where not one such study is there."""
    config, own = table.study.config, table.study.directory.resolve()
    if not config.get("finetune_from"):
        return None
    found = []
    for path in sorted(own.parent.glob(f"{VISIBLE}/{layout.STUDY}")):
        other = layout.read_record(path).get("config")
        other = other if isinstance(other, dict) else {}
        same = other.get("workload") == config.get("workload")
        if same and not other.get("finetune_from") and path.parent != own:
            found.append(path.parent)
    if len(found) != 1:
        return ", ".join(path.name for path in found), ()
    random = build.error_table(studies.read_study(found[0]), baseline=table.baseline)
    return found[0].name, of_table(random)


def _check(given: str, known: Sequence[str], what: str, where: str) -> None:
    if given not in known:
        listed = ", ".join(known) or "none: `python -m sweeps evaluate` makes them"
        raise ValueError(f"no results of {what} {given!r} in {where}; there are {listed}")


# The page, its figure at two widths and the figure's words show one table: made once. Evaluations
# that were not read again are the same objects.
@functools.lru_cache(maxsize=16)
def _built(
    trials: tuple[_Trial, ...],
    suite: str,
    step: int | None,
    metric: str | None,
    baseline: str,
    shares_seeds: bool,
    last: int,
) -> SuiteTable:
    asked = {
        trial: {each.step: each for each in trial.evaluations if each.suite == suite}
        for trial in trials
    }
    problems = [problem for trial in trials for problem in trial.problems]
    problems += [text for found in asked.values() for each in found.values()
                 for text in each.problems]  # fmt: skip
    every = sorted({at for found in asked.values() for at, each in found.items() if each.tasks})
    if step is not None:
        _check(str(step), [str(at) for at in every], "step", f"suite {suite}")
    at = step if step is not None else every[-1] if every else 0
    problems += _absent(asked, at, suite) if every else []
    counted = {trial: found for trial, found in asked.items() if at in found and found[at].tasks}
    steps = _common_steps(counted, at, last, suite, problems)
    answers = _same_questions(counted, baseline, problems)
    tasks = _first_tasks(answers, at)
    metrics = _metrics(tasks, metric, suite)
    problems += _other_figures(answers, tasks)
    scored = suite_scores.Scored(answers, metrics, at, steps, baseline, shares_seeds)
    names = list(dict.fromkeys(trial.variant for trial in counted))
    means = {variant: mean for variant in names if (mean := scored.mean(variant)) is not None}
    return SuiteTable(
        suite=suite,
        step=at,
        steps=tuple(steps),
        baseline=baseline,
        tasks={name: tasks[name] for name in metrics},
        metrics=metrics,
        scores=suite_scores.corrected({name: scored.of_tasks(name) for name in names}),
        means=suite_scores.corrected_means(means),
        harness=tuple(sorted({found[at].harness for found in counted.values()})),
        problems=tuple(dict.fromkeys(problems)),
    )


def _absent(asked: Mapping[_Trial, Mapping[int, Evaluation]], at: int, suite: str) -> Iterator[str]:
    """Names trials without results at the step shown, but for those that say more themselves."""
    for trial, found in asked.items():
        if at not in found:
            other = f"; its last is {max(found)}" if found else ""
            yield f"missing: {trial.name}: no results of {suite} at step {at}{other}"


def _common_steps(
    counted: Mapping[_Trial, Mapping[int, Evaluation]],
    at: int,
    last: int,
    suite: str,
    problems: list[str],
) -> list[int]:
    """Returns the last checkpoints, up to `at`, that all trials were asked at; one that only some
    were is named."""
    there = {
        trial: {step for step, each in found.items() if each.tasks and step <= at}
        for trial, found in counted.items()
    }
    wanted = sorted(set().union(*there.values()))[-last:]
    for trial, steps in there.items():
        if absent := [str(step) for step in wanted if step not in steps]:
            problems.append(
                f"missing: {trial.name}: no results of {suite} at step {', '.join(absent)}, where "
                "other trials have them: left out of ± over checkpoints"
            )
    return [step for step in wanted if all(step in steps for steps in there.values())]


def _same_questions(
    counted: Mapping[_Trial, Mapping[int, Evaluation]], baseline: str, problems: list[str]
) -> Answers:
    """Returns every trial's tasks; of a task those that asked the questions that most did, of two
    as many the baseline's. The others are named."""
    answers: dict[str, dict[tuple[str, int, int], Task]] = {}
    places = {}
    for trial in sorted(counted, key=lambda trial: trial.variant != baseline):
        for step, evaluation in counted[trial].items():
            key = (trial.variant, trial.seed, step)
            places[key] = evaluation.where
            for name, task in evaluation.tasks.items():
                answers.setdefault(name, {})[key] = task
    for name, found in answers.items():
        identities = collections.Counter(task.identity for task in found.values())
        usual, count = identities.most_common(1)[0]
        for key, task in list(found.items()):
            if task.identity != usual:
                problems.append(
                    f"mismatch: {places[key]}: {name} asked other questions (other numbers, right "
                    f"answers, data or shots) than {count} others did; its answers are left out"
                )
                del found[key]
    return answers


def _first_tasks(answers: Answers, at: int) -> dict[str, Task]:
    """Returns each task as the first trial has it, at the step shown where one has it there."""
    found = {}
    for name, of_task in answers.items():
        shown = [task for (_, _, step), task in of_task.items() if step == at]
        found[name] = (shown or list(of_task.values()))[0]
    return found


def _metrics(tasks: Mapping[str, Task], metric: str | None, suite: str) -> dict[str, str]:
    """Returns by what each task is shown; tasks without the `metric` asked for are left out."""
    if metric is None:
        return {name: task.primary for name, task in tasks.items()}
    known = sorted({name for task in tasks.values() for name in task.bits})
    _check(metric, known, "metric", f"suite {suite}")
    return {name: metric for name, task in tasks.items() if metric in task.bits}


def _other_figures(answers: Answers, tasks: Mapping[str, Task]) -> Iterator[str]:
    """Names trials whose results.json has another primary metric or reference of a task."""
    for name, found in answers.items():
        for (variant, seed, step), task in found.items():
            for what in ("primary", "majority", "references"):
                own, shown = getattr(task, what), getattr(tasks[name], what)
                if own != shown:
                    yield (
                        f"mismatch: {variant}, seed {seed}, step {step}: {what} of {name} is "
                        f"{own!r}, elsewhere {shown!r}, which is shown"
                    )
