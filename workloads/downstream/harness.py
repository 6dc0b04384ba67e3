"""A suite asked of a model: prompts, shots and metrics by lm-eval, probabilities by our scoring.

What is written, below the directory that is given: `tasks/<task>.jsonl.gz` as soon as a task is
finished, then `samples.jsonl.gz`, all of them, and last `results.json`. A question's line keeps
every choice's log-likelihood with and without its question, its tokens and bytes, so that other
normalisations and paired tests need no second run.
"""

import collections
import contextlib
import gzip
import importlib.metadata
import itertools
import json
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from attention import files
from workloads.base import spec
from workloads.downstream import local_data, suites, task_loading
from workloads.downstream.scoring import Costs, Scorer
from workloads.downstream.suites import Suite, Task
from workloads.downstream.tokens import Tokens

# As sweeps/records/layout.py has them.
FORMAT = "attnperf downstream 1"
SAMPLES, RESULTS, TASKS = "samples.jsonl.gz", "results.json", "tasks"
Sample = dict[str, Any]
Progress = Callable[[str, int, int], None]


def evaluate(
    workload: spec.Workload,
    parameters: Any,
    suite: Suite,
    data_dir: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    about: Mapping[str, Any],
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Returns what `results.json` says, which is written below `directory` with all samples.

    workload: made by `workloads.registry.make`, parameters its tree, on the host or on devices.
    about: trial_id, variant, workload, seed and step, which become part of the results. progress:
    told (task, done, all), all being requests to the model. Tasks that were finished before are not
    asked again; where all were, the results that are there are returned.

    Raises ValueError where the workload is no decoder or of another vocabulary than the data's, as
    `suites.check`, and for an answer that the model cannot be asked.
    """
    suites.check(suite, data_dir)
    directory = pathlib.Path(directory)
    with contextlib.suppress(FileNotFoundError):
        done: dict[str, Any] = json.loads((directory / RESULTS).read_text(encoding="utf-8"))
        return done
    scorer = Scorer(workload, parameters)
    tokens = Tokens(data_dir).checked(str(workload), scorer.workload.size.vocabulary)
    folder = directory / TASKS
    folder.mkdir(parents=True, exist_ok=True)
    for task in suite.tasks:
        path = folder / f"{task.name}.jsonl.gz"
        if path.exists():
            continue
        before, start = vars(scorer.costs).copy(), time.perf_counter()
        samples = _asked(task, scorer, tokens, data_dir, progress)
        spent = {name: value - before[name] for name, value in vars(scorer.costs).items()}
        spent["seconds"] = time.perf_counter() - start
        if jax.process_index() == 0:
            files.write(folder / f"{task.name}.costs.json", json.dumps(spent))
            files.write(path, _packed(samples))
        _meet(task.name)
    finished = {task.name: _unpacked(folder / f"{task.name}.jsonl.gz") for task in suite.tasks}
    results = _results(suite, data_dir, folder, finished, about)
    _meet("results")
    if jax.process_index() == 0:
        files.write(directory / SAMPLES, _packed([*itertools.chain(*finished.values())]))
        files.write(directory / RESULTS, json.dumps(results, indent=1) + "\n")
        shutil.rmtree(folder)
    return results


def _meet(where: str) -> None:
    """Lets the processes of a trial wait for each other: one writes what all read."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)


def _packed(samples: Sequence[Sample]) -> bytes:
    """Returns lines, compressed; the same samples give the same bytes."""
    lines = "".join(f"{json.dumps(sample, ensure_ascii=False)}\n" for sample in samples)
    return gzip.compress(lines.encode(), mtime=0)


def _unpacked(path: pathlib.Path) -> list[Sample]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def _results(
    suite: Suite,
    data_dir: str | os.PathLike[str],
    folder: pathlib.Path,
    finished: Mapping[str, list[Sample]],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns what results.json says; finished: the samples of each task."""
    entries = local_data.index(data_dir)
    costs = collections.Counter(dict.fromkeys(vars(Costs()), 0))
    tasks = {}
    for task in suite.tasks:
        costs.update(json.loads((folder / f"{task.name}.costs.json").read_bytes()))
        tasks[task.name] = _summary(task, finished[task.name], entries[task.entry.data])
    version = importlib.metadata.version(suites.HARNESS)
    return {
        "format": FORMAT,
        "suite": suite.name,
        **about,
        "harness": f"{suites.HARNESS} {version}",
        "tasks": tasks,
        **costs,
    }


def _summary(task: Task, samples: Sequence[Sample], data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what results.json says of a task."""
    metrics = {
        name: sum(sample["correct"][name] for sample in samples) / len(samples)
        for name in samples[0]["correct"]
    }
    majority = None
    if task.entry.classes:
        golds = collections.Counter(sample["gold"] for sample in samples)
        majority = golds.most_common(1)[0][1] / len(samples)
    references = dict(data.get("references", {}))
    chosen = [sample for sample in samples if sample.get("choices")]
    if chosen and not task.entry.generates:
        right = [_right(sample["gold"]) for sample in chosen]
        chance = [len(one) / len(s["choices"]) for one, s in zip(right, chosen, strict=True)]
        references = {"chance": sum(chance) / len(chance), **references}
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
        "published_n": task.n,
    }


def _right(gold: int | list[int]) -> list[int]:
    return gold if isinstance(gold, list) else [gold]


def _asked(
    task: Task,
    scorer: Scorer,
    tokens: Tokens,
    data_dir: str | os.PathLike[str],
    progress: Progress | None,
) -> list[Sample]:
    """Returns the samples of one task, in the order of its questions."""
    with task_loading.quiet():
        loaded = task_loading.load(task, data_dir)
    from lm_eval import evaluator

    from workloads.downstream.language_model import Decoder

    def report(done: int, every: int) -> None:
        if progress is not None:
            progress(task.name, done, every)

    model = Decoder(scorer, tokens, report)
    with task_loading.quiet():
        results = evaluator.evaluate(model, {"tasks": {task.name: loaded}}, bootstrap_iters=0)
    lines = sorted(results["samples"][task.name], key=lambda one: int(one["doc_id"]))
    if task.entry.generates:
        return _generated(task, loaded, model, lines)
    return [_chosen(task, loaded, model, line) for line in lines]


def _chosen(task: Task, loaded: Any, model: Any, line: Mapping[str, Any]) -> Sample:
    """Returns the sample of a question with choices; lm-eval's own verdicts, and ours per token."""
    pairs = [tuple(pair) for pair in line["arguments"]]
    texts = loaded.doc_to_choice(line["doc"])
    if task.entry.partial:
        gold, texts = (
            loaded.doc_to_text(line["doc"]),
            [loaded.doc_to_target(line["doc"])] * len(texts),
        )
    else:  # several are right where the row says so
        gold = line["doc"].get("right", loaded.doc_to_target(line["doc"]))
    if isinstance(gold, str):
        gold = texts.index(gold)
    given = [model.scores[pair] for pair in pairs[: len(texts)]]
    alone = [model.scores[pair] for pair in pairs[len(texts) :]] or [None] * len(texts)
    per_token = int(np.argmax([score.loglikelihood / score.tokens for score in given]))
    names = [name for name in suites.METRICS if name in line["metrics"]]
    correct = {name: bool(line[name]) for name in names}
    return {
        "task": task.name,
        "question": int(line["doc_id"]),
        "gold": gold,
        "choices": [
            _choice(text, score, other)
            for text, score, other in zip(texts, given, alone, strict=True)
        ],
        "truncated": max(score.truncated for score in given),
        "correct": {**correct, "acc_per_token": per_token in _right(gold)},
    }


def _choice(text: str, score: Any, alone: Any) -> dict[str, Any]:
    return {
        "loglikelihood": score.loglikelihood,
        "unconditional": None if alone is None else alone.loglikelihood,
        "tokens": score.tokens,
        # As lm-eval's acc_bytes counts them: without the blank in front.
        "bytes": len(text.encode()),
        "greedy": score.greedy,
    }


def _generated(
    task: Task, loaded: Any, model: Any, lines: Sequence[Mapping[str, Any]]
) -> list[Sample]:
    """Returns the samples of generated answers, and how the allowed ones rank beside them."""
    asked: list[tuple[str, list[str]]] = []
    for line in lines:
        allowed = loaded.doc_to_choice(line["doc"]) if loaded.config.doc_to_choice else []
        asked.append((line["arguments"][0][0], list(allowed)))
    pairs = [
        (context, f" {answer}")
        for prompt, allowed in asked
        for answer in allowed
        for context in (prompt, "")
    ]
    model.score(list(dict.fromkeys(pairs)))
    samples = []
    for line, (prompt, allowed) in zip(lines, asked, strict=True):
        answer, cut = model.answered[prompt]
        label = loaded.doc_to_target(line["doc"])
        gold = allowed[int(label)] if allowed else str(label)
        choices = [
            _choice(text, model.scores[prompt, f" {text}"], model.scores["", f" {text}"])
            for text in allowed
        ]
        exact = line["exact_match"] if "exact_match" in line else line["accuracy"]
        correct = {"exact_match": bool(exact)}
        if choices:
            ranked = [choice["loglikelihood"] for choice in choices]
            correct["acc"] = allowed[int(np.argmax(ranked))] == gold
        samples.append(
            {
                "task": task.name,
                "question": int(line["doc_id"]),
                "gold": gold,
                "answer": answer,
                "allowed": allowed,
                # Where any text may be the answer, an empty one says nothing.
                "decodable": answer in allowed if allowed else bool(answer),
                "choices": choices,
                "truncated": cut,
                "correct": correct,
            }
        )
    return samples
