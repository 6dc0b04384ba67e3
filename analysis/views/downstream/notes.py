"""How to read the tables of suites: what metrics, intervals and p-values are, what is not said."""

from collections.abc import Iterator

from analysis.compare.downstream import SuiteTable
from analysis.compare.error_table import ErrorTable
from analysis.load import paper
from attention import table as variants


def of_suite(found: SuiteTable, printed: str) -> Iterator[str]:
    """Yields how to read a suite's tables; `printed` is its name where the paper's numbers stand
    beside ours, else empty."""
    if not found.scores:
        return
    base = variants.label(found.baseline)
    yield from _on_suite(found)
    yield (
        "Intervals of scores and of differences from the baseline: 95 %, percentile bootstrap over "
        "questions (of a mean: within each task); they are about other questions put to the same "
        "trained models. What another seed would give: the columns over seeds."
    )
    scores = [score for of_tasks in found.scores.values() for score in of_tasks.values()]
    if any(score.low == score.high for score in scores):
        yield (
            "An interval without width: all answers were right, or none, and resampling them knows "
            "no others; of n questions such a score is good to about 3 / n."
        )
    differences = [score.difference for score in scores if score.difference]
    if differences:
        yield (
            f"p of a task: McNemar's exact test against {base}"
            + (
                "; a question's answers are summed over the seeds compared, and the models "
                "exchanged question by question (exact), which is McNemar's test for one seed"
                if max(each.seeds for each in differences) > 1
                else ""
            )
            + (
                "; of unequal numbers of seeds the bootstrap's over questions"
                if any(each.seeds != each.seeds_baseline for each in differences)
                else ""
            )
            + ". Holm's correction over variants and tasks together, since the whole table is "
            "looked through for what stands out. p of a mean: paired bootstrap, Holm over variants."
        )
    elif found.baseline not in found.scores:
        yield f"Nothing is compared: no trial of {base} was asked; --baseline=NAME takes another."
    yield from _left_out(found)
    yield from _on_spread(found)
    if any(task.majority is not None for task in found.tasks.values()):
        yield "majority class: what the most frequent right answer, given to all questions, scores."
    if found.generated:
        yield (
            "Exact match: the answer decoded greedily is the right one; rank accuracy: the right "
            "choice has the highest log-likelihood; undecodable: the answer is none of those "
            "allowed."
        )
    if printed:
        yield from _on_paper(printed)


def _left_out(found: SuiteTable) -> Iterator[str]:
    """Says which differences are over fewer seeds than the scores."""
    partial = {
        f"{variants.label(name)} {each.difference.seeds} of {each.seeds}"
        for name, scores in found.scores.items()
        for task, each in scores.items()
        if each.difference
        and (each.seeds, found.scores[found.baseline][task].seeds)
        != (each.difference.seeds, each.difference.seeds_baseline)
    }
    if partial:
        yield (
            "Scores are of all seeds. Differences are of the seeds that both models have: "
            f"{', '.join(sorted(partial))}."
        )


def _on_suite(found: SuiteTable) -> Iterator[str]:
    by_metric: dict[str, list[str]] = {}
    for task, metric in found.metrics.items():
        by_metric.setdefault(metric, []).append(task)
    listed = "; ".join(f"{metric}: {', '.join(tasks)}" for metric, tasks in by_metric.items())
    primary = all(found.metrics[name] == task.primary for name, task in found.tasks.items())
    named = "each task's primary metric, named beforehand" if primary else "asked for by --metric"
    shots = sorted({task.shots for task in found.tasks.values()})
    shown = f"{' or '.join(map(str, shots))} shot{'' if shots == [1] else 's'}"
    yield (
        f"Suite {found.suite}, {shown}, judged by "
        f"{' and '.join(filter(None, found.harness)) or 'an unnamed harness'}. Metrics ({named}): "
        f"{listed}. Bold: the highest of a column."
    )
    if cut := {name: task.truncated for name, task in found.tasks.items() if task.truncated}:
        said = ", ".join(f"{name} {count:,}" for name, count in cut.items())
        yield f"Questions whose context was longer than the model's and was cut: {said}."
    other = [
        f"{name} {task.n:,} for {task.published_n:,}"
        for name, task in found.tasks.items()
        if task.published_n and task.published_n != task.n
    ]
    if other:
        yield f"Other numbers of questions than published: {', '.join(other)}."
    absent = [variants.label(name) for name in found.scores if name not in found.means]
    if absent:
        yield f"No mean of {', '.join(absent)}: tasks are missing, and a mean of fewer is another."


def _on_spread(found: SuiteTable) -> Iterator[str]:
    if found.has_spread:
        yield (
            "SD over checkpoints: the mean over seeds of each seed's own; successive checkpoints "
            "of one run are alike, so it says nothing of another run. SD over seeds: that of the "
            "seeds' means over these checkpoints. Both divide by n - 1; of the mean over tasks "
            "they are the deviation of the mean itself, not the mean of the tasks' deviations."
        )
    else:
        yield "One checkpoint of one seed: there is no ± over checkpoints, and none over seeds."


def _on_paper(suite: str) -> Iterator[str]:
    key = paper.SUITES[suite].key
    yield f"paper: {paper.SOURCE}, {paper.PRINTED[key].place}; digits and bold as printed."
    if wrong := [each for each in paper.means(key) if not each.follows]:
        said = ", ".join(
            f"{each.method} {each.printed.text} (rows: {each.of_rows:.2f})" for each in wrong
        )
        yield f"Means of the paper that do not follow from its rows: {said}."
    yield from paper.PRINTED[key].notes
    if other := paper.SUITES[suite].checkpoints:
        yield from (f"{paper.PRINTED[other].place}: {note}" for note in paper.PRINTED[other].notes)


def on_random_weights(name: str, is_there: bool, table: ErrorTable) -> str:
    """Returns where the column of random weights is from (`compare.downstream`), or why it is not
    there."""
    if is_there:
        return (
            f"From random weights: the same model and variant, trained alike by the study {name}."
        )
    if name:
        return f"From random weights: nothing is shown, since {name} do not say which one it is."
    return (
        f"From random weights: no study of {table.workload} beside this one has an empty "
        "finetune_from; train one with --config.finetune_from= to see what pretraining gives."
    )
