"""What a decoder is fine-tuned on: questions with the answers that it is to generate.

The text of a question is that of the task's evaluation, and its answer ends with the separator, by
which generating ends. Loss belongs on the answer alone. As T5 was trained, SuperGLUE's Winograd
schemas are shown with their right answer, a phrase of the text: those whose phrase is a wrong one
are left out (Raffel et al., arXiv:1910.10683, section 2.4).
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from workloads.base.errors import DataError
from workloads.downstream import local_data, suites, task_loading
from workloads.downstream.suites import Suite, Task
from workloads.downstream.tokens import Tokens
from workloads.storage import tokenizer


class Example(NamedTuple):
    """Token ids of a question and of its answer, without the separator in front.

    A model's record is `context + answer`; its inputs are that behind the separator, as
    `language_models.shifted` makes them.
    """

    context: list[int]
    answer: list[int]


def examples(
    suite: Suite,
    task: Task,
    split: str,
    data_dir: str | os.PathLike[str],
    length: int,
    keeps: Callable[[int], bool] = lambda number: True,
) -> list[Example]:
    """Returns a task's examples, in the order of its rows.

    split: train or validation. keeps: which rows, by their numbers. length: the model's context; of
    a longer question the left is cut.
    task: one of the suite's whose answers are generated. Raises ValueError as `suites.check`, for a
    split that is not there, and for an answer that the tokenizer cannot say or that leaves no room
    for its question.
    """
    suites.check(suite, data_dir)
    advice = suites.repair(suite, data_dir)
    entries = local_data.index(data_dir, advice)
    local_data.check_split(data_dir, entries, task.entry.data, split, advice)
    tokens, shown = Tokens(data_dir), []
    with task_loading.quiet():
        loaded = task_loading.load(task, data_dir)
        for number, row in enumerate(loaded.dataset[split]):
            answer = right_answer(loaded, row)
            if answer is not None and keeps(number):
                shown.append(_example(tokens, loaded.doc_to_text(row), answer, length))
    if not shown:
        raise DataError(f"{task.name} has no examples in {split!r}", advice)
    return shown


def right_answer(loaded: Any, row: Mapping[str, Any]) -> str | None:
    """Returns the answer to say; None where a Winograd schema's phrase is a wrong one."""
    label = int(loaded.doc_to_target(row))
    if loaded.config.doc_to_choice:
        return str(loaded.doc_to_choice(row)[label])
    return str(row["span1_text"]) if label else None


def _example(tokens: Tokens, text: str, answer: str, length: int) -> Example:
    tokens.check_sayable(answer)
    context, ids = tokens.pair(text, f" {answer}")
    ids.append(tokenizer.EOS)
    room = length - len(ids)
    if room < 1:
        raise ValueError(
            f"the answer {answer!r} has {len(ids)} tokens, the model's context {length}"
        )
    return Example(context[-room:], ids)
