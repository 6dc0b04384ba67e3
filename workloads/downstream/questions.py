"""lm-eval's tasks on local rows, and the questions whose answers are generated.

Splits of questions are train, validation and test. Where a task has no test rows its published
validation rows are the test, and every tenth training row is validation's.
"""

import dataclasses
import functools
import logging
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from workloads.base.errors import DataError
from workloads.downstream import local_data
from workloads.downstream.suites import Suite, Task
from workloads.text import finetuning_specs


@dataclasses.dataclass(frozen=True)
class Question:
    """A prompt and its answer.

    label: of the row. gold: what is right, '' where the row says only what is wrong. allowed: all
    answers that may be given, in the task's order; () where any text may be. is_right: lm-eval's
    judgement of an answer.
    """

    task: str
    context: str
    label: int
    gold: str
    allowed: tuple[str, ...]
    is_right: Callable[[str], bool]

    def is_decodable(self, answer: str) -> bool:
        """Whether an answer is one that may be given."""
        return answer in self.allowed if self.allowed else bool(answer)


@functools.cache
def of_suite(suite: Suite, split: str, data_dir: str) -> list[Question]:
    """Returns a split's questions of all tasks of a suite, task after task.

    Raises DataError where there is none.
    Evaluations ask for the same ones again and again, which take seconds to load.
    """
    questions = [question for task in suite.tasks for question in of_task(task, split, data_dir)]
    if not questions:
        raise DataError(f"suite {suite.name} has no question for the split {split!r} in {data_dir}")
    return questions


def of_task(task: Task, split: str, data_dir: str | os.PathLike[str]) -> list[Question]:
    """Returns a split's questions of one task, in the order of its rows."""
    published, every = task.entry.split, finetuning_specs.HELD_OUT
    loaded = load(task, data_dir)
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
        gold = str(allowed[checked_label(name, label, len(allowed))])
    else:  # a Winograd schema: the phrase may be a wrong one
        allowed = ()
        gold = str(row["span1_text"]) if checked_label(name, label, 2) else ""

    def is_right(answer: str) -> bool:
        return bool(next(iter(loaded.process_results(row, [answer]).values())))

    return Question(name, str(loaded.doc_to_text(row)), label, gold, allowed, is_right)


def checked_label(task: str, label: int, answers: int) -> int:
    """Returns a question's label, the number of its answer.

    Raises DataError where it has no such answer: published test rows have the label -1.
    """
    if not 0 <= label < answers:
        raise DataError(
            f"{task}: a question has the label {label}, and answers 0 to {answers - 1}",
            "prepare the questions again from files whose rows have labels",
        )
    return label


def load(task: Task, data_dir: str | os.PathLike[str]) -> Any:
    """Returns lm-eval's task (`ConfigurableTask`): the stock file, or ours, on local rows.

    From here on this process asks no network and shows neither lm-eval's warnings nor its bars.
    """
    # What lm-eval builds on asks the network where this is not set, for half a minute.
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    import datasets
    import lm_eval
    from lm_eval.api.task import ConfigurableTask

    # Private, of suites.HARNESS_VERSION: a TaskManager takes a file and reads no fields beside it.
    from lm_eval.tasks._yaml_loader import load_yaml

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    entry = task.entry
    # The files of stock tasks lie in lm-eval, ours beside this one.
    beside = __file__ if entry.ours else lm_eval.__file__
    config = load_yaml(pathlib.Path(beside).with_name("tasks") / entry.file)
    config |= {
        "task": task.name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_dir": os.path.abspath(data_dir), "data": entry.data},
        "custom_dataset": local_data.lm_eval_dataset,
        "num_fewshot": task.shots,
    }
    if task.shots:
        config["fewshot_split"] = entry.shots_from
    if not entry.generates:
        # The last has lm-eval ask for the choices alone, which are no continuations of `partial`.
        metrics = ("acc",) if entry.partial else ("acc", "acc_norm", "acc_mutual_info")
        config["metric_list"] = [
            {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in metrics
        ]
    loaded = ConfigurableTask(config=config)
    loaded.set_fewshot_seed(1234)  # lm-eval's own: shots are the same for every model
    return loaded
