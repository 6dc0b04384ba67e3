"""A suite asked of a model: prompts and shots by lm-eval, probabilities and metrics by us.

Files below the output directory: `tasks/<task>.jsonl.gz` as soon as a task is
finished, then `samples.jsonl.gz`, all of them, and last `results.json`. A question's line keeps
every choice's log-likelihood with and without its question, its tokens and bytes, so that other
normalisations and paired tests need no second run.
"""

import collections
import functools
import gzip
import importlib.metadata
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attention.common import files
from workloads.base import spec
from workloads.downstream import local_data, questions, suites
from workloads.downstream.scoring import Pair, Score, Scorer, answer_texts, score_texts
from workloads.downstream.tokens import Tokens

# As sweeps/records/layout.py has them.
FORMAT = "attnperf downstream 1"
SAMPLES, RESULTS, TASKS = "samples.jsonl.gz", "results.json", "tasks"
Sample = dict[str, Any]
Progress = Callable[[str, int, int], None]


def evaluate(
    workload: spec.Workload,
    parameters: Any,
    suite: suites.Suite,
    data_dir: str | os.PathLike[str],
    directory: pathlib.Path,
    about: Mapping[str, Any],
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Returns what `results.json` says, which is written below `directory` with all samples.

    workload: made by `workloads.registry.make`, parameters its tree, on the host or on devices.
    about: trial_id, variant, workload, seed and step, which become part of the results. progress:
    called with (task, done, all), all being requests to the model. Tasks that were finished before
    are not asked again.

    Raises ValueError where the workload is no decoder or of another vocabulary than the data's, as
    `suites.check`, and for an answer that the model cannot be asked.
    """
    suites.check(suite, data_dir)
    scorer = Scorer(workload, parameters)
    tokens = Tokens(data_dir).checked(str(workload), scorer.workload.size.vocabulary)
    folder = directory / TASKS
    folder.mkdir(parents=True, exist_ok=True)
    for task in suite.tasks:
        path = folder / f"{task.name}.jsonl.gz"
        if path.exists():
            continue
        report = functools.partial(progress, task.name) if progress else None
        ask = _generated if task.entry.generates else _chosen
        files.write(path, _packed(ask(task, scorer, tokens, data_dir, report)))
    finished = {task.name: _unpacked(folder / f"{task.name}.jsonl.gz") for task in suite.tasks}
    results = _results(suite, data_dir, finished, about)
    files.write(directory / SAMPLES, _packed([*itertools.chain(*finished.values())]))
    files.write(directory / RESULTS, json.dumps(results, indent=1) + "\n")
    shutil.rmtree(folder)
    return results


def _packed(samples: Sequence[Sample]) -> bytes:
    """Returns lines, compressed; the same samples give the same bytes."""
    lines = "".join(f"{json.dumps(sample, ensure_ascii=False)}\n" for sample in samples)
    return gzip.compress(lines.encode(), mtime=0)


def _unpacked(path: pathlib.Path) -> list[Sample]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def _results(
    suite: suites.Suite,
    data_dir: str | os.PathLike[str],
    finished: Mapping[str, list[Sample]],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns what results.json says; finished: the samples of each task."""
    entries = local_data.index(data_dir)
    version = importlib.metadata.version(suites.HARNESS)
    return {
        "format": FORMAT,
        "suite": suite.name,
        **about,
        "harness": f"{suites.HARNESS} {version}",
        "tasks": {
            task.name: _summary(task, finished[task.name], entries[task.entry.data])
            for task in suite.tasks
        },
    }


def _summary(
    task: suites.Task, samples: Sequence[Sample], data: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what results.json says of a task."""
    metrics = {
        name: sum(sample["correct"][name] for sample in samples) / len(samples)
        for name in samples[0]["correct"]
    }
    majority = None
    if task.entry.classes:
        golds = collections.Counter(sample["gold"] for sample in samples)
        majority = golds.most_common(1)[0][1] / len(samples)
    references: dict[str, float] = {}
    if not task.entry.generates:
        chances = [len(_right(sample["gold"])) / len(sample["choices"]) for sample in samples]
        references["chance"] = sum(chances) / len(chances)
    return {
        "primary": task.primary,
        "paper": task.paper,
        "n": len(samples),
        "shots": task.shots,
        "metrics": metrics,
        "majority": majority,
        "references": references,
        "truncated": sum(sample["truncated"] > 0 for sample in samples),
        "data_sha256": data["splits"][task.entry.split]["sha256"],
        "published_n": task.entry.n,
    }


def _right(gold: int | list[int]) -> list[int]:
    return gold if isinstance(gold, list) else [gold]


def _chosen(
    task: suites.Task,
    scorer: Scorer,
    tokens: Tokens,
    data_dir: str | os.PathLike[str],
    report: Callable[[int, int], None] | None,
) -> list[Sample]:
    """Returns the samples of questions with choices, in the order of the questions."""
    loaded = questions.load(task, data_dir)
    rows = list(loaded.eval_docs)
    pairs = [prompted(task, loaded, row) for row in rows]
    scores = score_texts(scorer, tokens, [*itertools.chain(*pairs)], report)
    return [
        _choice_sample(task, number, loaded, row, [scores[pair] for pair in asked])
        for number, (row, asked) in enumerate(zip(rows, pairs, strict=True))
    ]


def prompted(task: suites.Task, loaded: Any, row: Mapping[str, Any]) -> list[Pair]:
    """Returns lm-eval's requests for a row: each choice behind the shots and its question.

    Each choice alone follows, but for `partial` tasks.
    """
    context = loaded.fewshot_context(row, num_fewshot=task.shots)
    requests = loaded.construct_requests(doc=row, ctx=context, metadata=(task.name, 0, 1))
    return [request.args for request in requests]


def _choice_sample(
    task: suites.Task, number: int, loaded: Any, row: Mapping[str, Any], scores: list[Score]
) -> Sample:
    """Returns a question's sample; metrics as lm-eval defines them, and `acc_per_token`.

    scores: of `prompted`. Each metric ranks the choices by another normalisation.
    """
    texts = loaded.doc_to_choice(row)
    if task.entry.partial:
        gold, texts = loaded.doc_to_text(row), [loaded.doc_to_target(row)] * len(texts)
    else:  # several are right where the row says so
        gold = row.get("right", loaded.doc_to_target(row))
    if isinstance(gold, str):
        gold = texts.index(gold)
    for number_of_answer in _right(gold):
        questions.checked_label(task.name, number_of_answer, len(texts))
    answers, alone = scores[: len(texts)], scores[len(texts) :]
    logs = np.array([score.loglikelihood for score in answers])
    ranked = {"acc": logs}
    if alone:
        ranked["acc_norm"] = logs / [len(text) for text in texts]
        ranked["acc_mutual_info"] = logs - [score.loglikelihood for score in alone]
    ranked["acc_per_token"] = logs / [score.tokens for score in answers]
    return {
        "task": task.name,
        "question": number,
        "gold": gold,
        "choices": [_choice(*choice) for choice in itertools.zip_longest(texts, answers, alone)],
        "truncated": max(score.truncated for score in answers),
        "correct": {
            name: int(np.argmax(values)) in _right(gold) for name, values in ranked.items()
        },
    }


def _choice(text: str, score: Score, alone: Score | None) -> dict[str, Any]:
    return {
        "loglikelihood": score.loglikelihood,
        "unconditional": None if alone is None else alone.loglikelihood,
        "tokens": score.tokens,
        # As lm-eval's acc_bytes counts them: without the blank in front.
        "bytes": len(text.encode()),
        "greedy": score.greedy,
    }


def _generated(
    task: suites.Task,
    scorer: Scorer,
    tokens: Tokens,
    data_dir: str | os.PathLike[str],
    report: Callable[[int, int], None] | None,
) -> list[Sample]:
    """Returns the samples of generated answers, and how the allowed ones rank beside them."""
    asked = questions.of_task(task, "test", data_dir)
    most = task.entry.most_tokens
    answers = answer_texts(scorer, tokens, [question.context for question in asked], most)
    pairs = [
        (context, f" {answer}")
        for question in asked
        for answer in question.allowed
        for context in (question.context, "")
    ]
    scores = score_texts(scorer, tokens, list(dict.fromkeys(pairs)), report)
    samples = []
    for number, (question, answer) in enumerate(zip(asked, answers, strict=True)):
        # Where any text may be the answer, the row's label says whether a phrase is right.
        gold = question.gold if question.allowed else str(question.label)
        choices = [
            _choice(text, scores[question.context, f" {text}"], scores["", f" {text}"])
            for text in question.allowed
        ]
        correct = {"exact_match": question.is_right(answer)}
        if choices:
            ranked = [choice["loglikelihood"] for choice in choices]
            correct["acc"] = question.allowed[int(np.argmax(ranked))] == gold
        length = len(tokens.encode(question.context))
        samples.append(
            {
                "task": task.name,
                "question": number,
                "gold": gold,
                "answer": answer,
                "allowed": question.allowed,
                "decodable": question.is_decodable(answer),
                "choices": choices,
                "truncated": max(0, length + most - scorer.context),
                "correct": correct,
            }
        )
    return samples
