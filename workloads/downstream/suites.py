"""Suites: which tasks are asked together, how many shots, which metric each is reported by.

A suite is a file `workloads/downstream/suites/NAME.json`: `description`, `shots`, and of each task
`primary`, the metric that was named before any result was seen, and `paper`, its name in the
paper's table. Standard library only, so that a driver can ask.

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
from workloads.downstream.task_table import TASKS, TaskEntry

HARNESS = "lm-eval"
# The release whose task files and traps were read; what its successors change is not known.
HARNESS_VERSION = "0.4.13"
_FOLDER = pathlib.Path(__file__).with_name("suites")


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
            if split not in entries.get(entry.data, {}).get("splits", {}):
                absent[f"{entry.data}/{split}.jsonl"] = None
                continue
            n = entry.n if split == entry.split else None
            problems.append(local_data.problem(data_dir, entries, entry.data, split, n, full))
    if absent:
        problems.insert(0, f"{local_data.folder(data_dir)} has no {', '.join(absent)}")
    if any(problems):
        raise DataError(f"suite {suite.name}: " + "\n".join(filter(None, problems)), advice)
