"""Suites: which tasks are asked together, how many shots, which metric each is reported by.

A suite is a file `workloads/downstream/suites/NAME.json`: `description`, `shots`, and of each task
`primary`, the metric that was named before any result was seen, and `paper`, its name in the
paper's table. Standard library only, so that a driver can ask.

`TASKS` says of a task whose prompts it has, which data, and how many questions the paper has: the
numbers that all printed cells of the paper's tables are whole multiples of. `stock` files lie in
lm-eval (`lm_eval/tasks/`), ours in `workloads/downstream/tasks/`.

Primary metrics follow GPT-3 (arXiv:2005.14165, section 2.4): answers that are classes, and choices
that stand before one continuation, by plain likelihood (`acc`); ARC, OpenBookQA and RACE by the
likelihood over that without the question (`acc_mutual_info`). HellaSwag and PIQA by length
(`acc_norm`), as lm-eval's users report them.
"""

import dataclasses
import importlib.metadata
import json
import os
import pathlib

from attention import table as variants_table
from workloads.base.errors import DataError, repair_commands
from workloads.downstream import local_data

HARNESS = "lm-eval"
# The release whose task files and traps were read; what its successors change is not known.
HARNESS_VERSION = "0.4.13"
_FOLDER = pathlib.Path(__file__).with_name("suites")
_GLUE = "super_glue/{}/{}.yaml"


@dataclasses.dataclass(frozen=True)
class TaskEntry:
    """One task.

    file: lm-eval's task file, or where `ours` a file of this project. data: the folder of its rows;
    split: the one that is asked; shots_from: the one that examples are drawn from. n: questions of
    the published figures, None where none are published. classes: whether every question has the
    same answers, so that one of them is the most frequent. partial: whether the choices stand in
    the context, before one continuation. generates: whether the answer is generated, not chosen, of
    `most_tokens` tokens at most; answers: those that are allowed then, none where any text may be
    one.
    """

    file: str
    data: str
    split: str
    n: int | None = None
    shots_from: str = "train"
    ours: bool = False
    classes: bool = False
    partial: bool = False
    generates: bool = False
    # Of an answer where lm-eval does not say: the T5 prompts' longest has 6 pieces out of 32,000.
    most_tokens: int = 16
    answers: tuple[str, ...] = ()


def _glue(name: str, data: str, n: int, classes: bool = True) -> TaskEntry:
    return TaskEntry(_GLUE.format(name, "default"), data, "validation", n, classes=classes)


def _t5(name: str, data: str, n: int, *answers: str) -> TaskEntry:
    return TaskEntry(
        _GLUE.format(name, "t5-prompt"),
        data,
        "validation",
        n,
        classes=True,
        generates=True,
        answers=answers,
    )


TASKS: dict[str, TaskEntry] = {
    "wsc285": TaskEntry("wsc273/default.yaml", "wsc285", "test", 285, "test", partial=True),
    "wsc273": TaskEntry("wsc273/default.yaml", "wsc273", "test", 273, "test", partial=True),
    "winogrande": TaskEntry(
        "winogrande/default.yaml", "winogrande", "validation", 1267, partial=True
    ),
    "race_middle": TaskEntry("race.yaml", "race_middle", "test", 1436, ours=True),
    "race_high": TaskEntry("race.yaml", "race_high", "test", 3498, ours=True),
    "storycloze_2016": TaskEntry(
        "storycloze/storycloze_2016.yaml", "storycloze_2016", "test", 1871, "validation"
    ),
    "record": TaskEntry("record.yaml", "record", "validation", 10_000, ours=True),
    "multirc": _glue("multirc", "multirc", 4848),
    "sglue_rte": _glue("rte", "sglue_rte", 277),
    "cb": _glue("cb", "cb", 56),
    "copa": _glue("copa", "copa", 100, classes=False),
    "wic": _glue("wic", "wic", 638),
    "boolq": _glue("boolq", "boolq", 3270),
    "hellaswag": TaskEntry("hellaswag/hellaswag.yaml", "hellaswag", "validation", 10_042),
    "piqa": TaskEntry("piqa/piqa.yaml", "piqa", "validation", 1838),
    "openbookqa": TaskEntry("openbookqa/openbookqa.yaml", "openbookqa", "test", 500),
    "arc_easy": TaskEntry("arc/arc_easy.yaml", "arc_easy", "test", 2376),
    "super_glue-copa-t5-prompt": _t5("copa", "copa", 100, "choice1", "choice2"),
    "super_glue-wic-t5-prompt": _t5("wic", "wic", 638, "False", "True"),
    "super_glue-wsc-t5-prompt": _t5("wsc", "wsc", 104),
    "super_glue-rte-t5-prompt": _t5("rte", "sglue_rte", 277, "entailment", "not_entailment"),
    "next": TaskEntry("pydoc.yaml", "next", "test", ours=True, shots_from=""),
    "returns": TaskEntry(
        "returns.yaml",
        "returns",
        "test",
        ours=True,
        classes=True,
        generates=True,
        most_tokens=4,
        answers=("False", "True"),
    ),
}


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of a suite.

    primary: the metric that it is reported by. paper: its name in the paper's table, or ''.
    """

    name: str
    entry: TaskEntry
    shots: int
    primary: str
    paper: str = ""


@dataclasses.dataclass(frozen=True)
class Suite:
    """Tasks that are asked together. embedded: made of what is installed, by `prepare`."""

    name: str
    description: str
    tasks: tuple[Task, ...]
    embedded: bool = False


def names() -> tuple[str, ...]:
    """Returns the suites' names."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def get(name: str) -> Suite:
    """Returns a suite. Raises ValueError listing what exists and the nearest match."""
    known = names()
    if name not in known:
        raise ValueError(variants_table.unknown("suite", name, known))
    record = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    tasks = tuple(
        Task(task, TASKS[task], record["shots"], **fields)
        for task, fields in record["tasks"].items()
    )
    return Suite(name, record["description"], tasks, record.get("embedded", False))


def repair(suite: Suite, data_dir: str | os.PathLike[str]) -> str:
    """Returns the commands that make a suite's data, and say what is wrong with it."""
    source = "" if suite.embedded else "WHERE_IT_WAS_DOWNLOADED"
    return repair_commands("downstream", data_dir, source)


def check(suite: Suite, data_dir: str | os.PathLike[str]) -> None:
    """Raises ValueError where a suite cannot be asked: lm-eval absent or of another release, no
    data, not whole, not as many questions as the published figures are of, or answers to generate
    that the model's tokenizer cannot say."""
    check_harness()
    check_data(suite, data_dir)
    answers = [answer for task in suite.tasks for answer in task.entry.answers]
    if answers:
        from workloads.downstream.tokens import Tokens

        tokens = Tokens(data_dir)
        for answer in answers:
            tokens.check_sayable(answer)


def check_harness() -> None:
    """Raises ValueError where lm-eval is absent, or of another release than the tasks are for."""
    try:
        version = importlib.metadata.version(HARNESS)
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if version != HARNESS_VERSION:
        raise ValueError(
            f"{HARNESS} {HARNESS_VERSION}, which has the prompts, is not installed: pip install "
            f"'attnperf[downstream]', or '{HARNESS}=={HARNESS_VERSION}'; installed: {version}"
        )


def check_data(suite: Suite, data_dir: str | os.PathLike[str], full: bool = False) -> None:
    """Raises DataError, a ValueError, with all that is amiss with a suite's data.

    With `full` every file's SHA-256 is computed.
    """
    advice = repair(suite, data_dir)
    entries = local_data.index(data_dir, advice)
    absent: dict[str, None] = {}
    problems = []
    for entry in (task.entry for task in suite.tasks):
        splits = {entry.split, entry.shots_from} - {""}
        for split in sorted(splits):
            if split in entries.get(entry.data, {}).get("splits", {}):
                n = entry.n if split == entry.split else None
                problems.append(local_data.problem(data_dir, entries, entry.data, split, n, full))
            else:
                absent[f"{entry.data}/{split}.jsonl"] = None
    if absent:
        problems.insert(0, f"{local_data.folder(data_dir)} has no {', '.join(absent)}")
    if any(problems):
        raise DataError(f"suite {suite.name}: " + "\n".join(filter(None, problems)), advice)
