"""The questions that models are fine-tuned on, by lm-eval's task files: prompt, answer, judgement.

Splits are train, validation and test. Where a task has no test rows its published validation rows
are the test, and every tenth training row is validation's.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from workloads.base.errors import DataError
from workloads.downstream import harness, local_data, suites
from workloads.downstream.suites import Suite, Task
from workloads.downstream.tokens import Tokens
from workloads.text import finetuning_specs

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Question:
    """A prompt and its answer.

    gold: what is right, '' where the task says only what would be wrong. allowed: all answers that
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
        suites.check_harness()
        suites.check_data(self.suite, data_dir, full)
        tokens, advice = Tokens(data_dir), suites.repair(self.suite, data_dir)
        entries = local_data.index(data_dir, advice)
        lines = []
        for task in self.suite.tasks:
            counts = {}
            for split in _rows_of(task, entries):
                local_data.check_split(data_dir, entries, task.entry.data, split, advice, full=full)
                counts[split] = entries[task.entry.data]["splits"][split]["rows"]
            found = questions_of(task, "test", data_dir)
            for answer in dict.fromkeys(answer for one in found for answer in one.allowed):
                tokens.check_sayable(answer)
            told = ", ".join(f"{count} {split}" for split, count in counts.items())
            lines.append(f"{task.name}: {told}")
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


def _rows_of(task: Task, entries: Mapping[str, Any]) -> dict[str, str]:
    """Returns the rows that a task's splits are taken from: {rows: split}.

    Raises DataError where there are none to train on.
    """
    there = entries.get(task.entry.data, {}).get("splits", {})
    if "train" not in there:
        raise DataError(
            f"{task.name} has no training questions in {local_data.FOLDER}/{task.entry.data}",
            "prepare it with its train split",
        )
    return {name: name for name in SPLITS if name in there}


def questions(suite: Suite, split: str, data_dir: str | os.PathLike[str]) -> list[Question]:
    """Returns a split's questions of all tasks of a suite, task after task."""
    return [one for task in suite.tasks for one in questions_of(task, split, data_dir)]


def questions_of(task: Task, split: str, data_dir: str | os.PathLike[str]) -> list[Question]:
    """Returns a split's questions of one task, in the order of its rows."""
    published = task.entry.split
    loaded = harness.load(task, data_dir)
    if published == "test":
        found = list(loaded.dataset[split])
    elif split == "test":
        found = list(loaded.dataset[published])
    else:
        every = finetuning_specs.HELD_OUT
        held = split == "validation"
        found = [
            row
            for number, row in enumerate(loaded.dataset["train"])
            if (number % every == every - 1) == held
        ]
    return [_question(task.name, loaded, row) for row in found]


def _question(name: str, loaded: Any, row: Mapping[str, Any]) -> Question:
    allowed = tuple(loaded.doc_to_choice(row)) if loaded.config.doc_to_choice else ()
    target = loaded.doc_to_target(row)
    # WSC's T5 form asks for the noun itself, and learns from the rows where it is the right one.
    gold = allowed[int(target)] if allowed else row["span1_text"] if row["label"] else ""

    def is_right(answer: str) -> bool:
        return bool(next(iter(loaded.process_results(row, [answer]).values())))

    return Question(name, str(loaded.doc_to_text(row)), gold, allowed, is_right)
