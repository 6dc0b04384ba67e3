"""The questions that models are fine-tuned on and evaluated by: prompt, answer, judgement.

Splits are train, validation and test. Where a task has no test rows its published validation rows
are the test, and every tenth training row is validation's.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from workloads.downstream import local_data, suites, task_loading
from workloads.downstream.suites import Suite, Task
from workloads.text import finetuning_specs


@dataclasses.dataclass(frozen=True)
class Question:
    """A prompt and its answer.

    gold: what is right, '' where the row says only what is wrong. allowed: all answers that
    may be given, in the task's order; () where any text may be. is_right: lm-eval's judgement of an
    answer.
    """

    task: str
    context: str
    gold: str
    allowed: tuple[str, ...]
    is_right: Callable[[str], bool]

    def is_decodable(self, answer: str) -> bool:
        """Whether an answer is one that may be given."""
        return answer in self.allowed if self.allowed else bool(answer)


class FinetuningData:
    """Data of MODEL:SUITE: the suite's questions, and the model's tokenizer beside them.

    Raises ValueError for a workload that is no fine-tuning.
    """

    def __init__(self, name: str) -> None:
        _, suite = finetuning_specs.split(name)
        self.suite = suites.get(suite)

    def check(self, data_dir: str | os.PathLike[str], full: bool = False) -> list[str]:
        """Returns lines about what was found. Raises ValueError naming what is amiss, with the
        command that repairs it."""
        suites.check(self.suite, data_dir)
        suites.check_data(self.suite, data_dir, full)
        entries = local_data.index(data_dir)
        lines = []
        for task in self.suite.tasks:
            splits = entries[task.entry.data]["splits"]
            counts = ", ".join(f"{entry['rows']:,} {split}" for split, entry in splits.items())
            lines.append(f"{task.name}: {counts}")
        return lines

    def prepare(self, data_dir: str | os.PathLike[str], source: Any = None) -> None:
        """Makes the embedded questions. Raises ValueError for those that are to be downloaded."""
        if not self.suite.embedded:
            raise ValueError(suites.repair(self.suite, data_dir))
        from workloads.downstream import embedded
        from workloads.text.corpora import pydoc_text

        del source
        pydoc_text.prepare(data_dir)
        embedded.prepare(data_dir)


def of_suite(suite: Suite, split: str, data_dir: str | os.PathLike[str]) -> list[Question]:
    """Returns a split's questions of all tasks of a suite, task after task."""
    return [one for task in suite.tasks for one in of_task(task, split, data_dir)]


def of_task(task: Task, split: str, data_dir: str | os.PathLike[str]) -> list[Question]:
    """Returns a split's questions of one task, in the order of its rows."""
    published, every = task.entry.split, finetuning_specs.HELD_OUT
    with task_loading.quiet():
        loaded = task_loading.load(task, data_dir)
        if published == "test" or split == "test":
            rows = list(loaded.dataset[published if split == "test" else split])
        else:
            held_out = split == "validation"
            rows = [
                row
                for number, row in enumerate(loaded.dataset["train"])
                if (number % every == every - 1) == held_out
            ]
        return [_question(task.name, loaded, row) for row in rows]


def _question(name: str, loaded: Any, row: Mapping[str, Any]) -> Question:
    label = int(loaded.doc_to_target(row))
    if loaded.config.doc_to_choice:
        allowed = tuple(loaded.doc_to_choice(row))
        gold = str(allowed[label])
    else:  # a Winograd schema: the phrase may be a wrong one
        allowed = ()
        gold = str(row["span1_text"]) if label else ""

    def is_right(answer: str) -> bool:
        return bool(next(iter(loaded.process_results(row, [answer]).values())))

    return Question(name, str(loaded.doc_to_text(row)), gold, allowed, is_right)
