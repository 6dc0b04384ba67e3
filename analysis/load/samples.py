"""Reads what suites say of a trial's checkpoints: `results.json` beside `samples.jsonl.gz`.

Of every question only what statistics need is kept: whether it was answered right, a bit for each
metric (16 tasks of 10,000 questions and 4 metrics: 80 kB). A task that lacks a question, or has one
twice, is named and left out.
"""

import functools
import gzip
import hashlib
import pathlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from analysis.load.records import NOT_JSON, VISIBLE, Positive, Problem, Whole, read_json
from sweeps.records import layout

# Keys of results.json that repeat the trial's record, and their names there.
IDENTITY = {"trial_id": "id", "variant": "variant", "workload": "workload", "seed": "seed"}
# Takes a problem's kind, file and text.
Report = Callable[[str, str, str], None]


class Task(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A task as one checkpoint answered it: its n questions in order of their numbers.

    `metrics` are fractions as results.json states them, `primary` the one named beforehand;
    `majority` is what answering every question alike would give, None if there is no such thing;
    `references` other rows by name. `truncated` counts questions whose context was cut.
    `undecodable` is the share of generated answers that are none of those allowed, None if
    nothing was generated. `identity` is equal for tasks that asked the same questions, with the
    same right answers, data and number of shots, and `bits` has each metric's packed answers.
    """

    name: str = ""
    primary: str
    n: Positive
    metrics: dict[str, float]
    shots: Whole = 0
    majority: float | None = None
    references: dict[str, float] = {}
    truncated: Whole = 0
    published_n: Whole | None = None
    data_sha256: Any = None
    undecodable: float | None = None
    identity: str = ""
    bits: Mapping[str, Any] = {}

    def right(self, metric: str) -> np.ndarray:
        """Returns whether each question was answered right, bool [n], by a metric of `bits`."""
        return np.unpackbits(self.bits[metric], count=self.n).astype(bool)


class _Line(msgspec.Struct):
    """A question with its answer: right or not, by each metric. `decodable` says whether a
    generated answer was one of those allowed."""

    task: str
    question: Whole
    gold: int | str | bool
    correct: dict[str, bool]
    decodable: bool | None = None


DECODER = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `suite` says of the checkpoint at `step`: tasks by name, in the suite's order, and what
    is wrong with its files."""

    suite: str
    step: int
    harness: str
    tasks: Mapping[str, Task]
    problems: tuple[Problem, ...]


def of_trial(directory: pathlib.Path, name: str) -> tuple[list[Evaluation], list[Problem]]:
    """Returns a trial's evaluations by step and suite, one that is not finished or cannot be read
    without tasks; and a problem for each directory of no step. `name` is the trial's."""
    evaluations, problems = [], []
    trial = layout.read_record(directory / layout.TRIAL)
    # What trial.json lacks, or has of another kind, is its own reader's problem.
    identity = tuple(
        (key, trial[other])
        for key, other in IDENTITY.items()
        if isinstance(trial.get(other), str | int)
    )
    for folder in sorted((directory / layout.DOWNSTREAM).glob(f"{VISIBLE}/{VISIBLE}/")):
        step = folder.parent.name
        if step.isdecimal() and step.isascii():
            stats = [file.stat() for file in sorted(folder.glob(VISIBLE))]
            stamps = tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
            evaluations.append(_read_once(folder, name, identity, stamps))
        else:
            place = folder.relative_to(directory).as_posix()
            problems.append(Problem("unreadable", name, place, f"{step!r} is no checkpoint's step"))
    return sorted(evaluations, key=lambda result: (result.step, result.suite)), problems


@functools.lru_cache(maxsize=2048)
def _read_once(
    folder: pathlib.Path, trial: str, identity: Sequence[tuple[str, Any]], stamps: tuple[Any, ...]
) -> Evaluation:
    """`stamps` tell files that were written anew."""
    step, suite = int(folder.parent.name), folder.name
    where = f"{trial}/{layout.downstream_path(step, suite)}"
    problems: list[Problem] = []

    def report(kind: str, file: str, text: str) -> None:
        problems.append(Problem(kind, where, file, text))

    record = read_json(folder / layout.RESULTS, where, problems) or {}
    expected = {"format": layout.DOWNSTREAM_FORMAT, "suite": suite, "step": step, **dict(identity)}
    others = [name for name, value in expected.items() if record.get(name) != value]
    tasks: dict[str, Task] = {}
    if not (folder / layout.RESULTS).is_file():
        done = f"no {layout.RESULTS}, {layout.finished_tasks(folder)} tasks are finished"
        report("unfinished", "", f"{done}; `python -m sweeps evaluate` goes on from there")
    elif others and not problems:
        stated = ", ".join(f"{name} is {record.get(name)!r}" for name in others)
        report("mismatch", layout.RESULTS, f"{stated}, not its directory's; it is not read")
    elif not problems:
        tasks = _tasks(folder / layout.SAMPLES, record.get("tasks"), report)
    return Evaluation(suite, step, str(record.get("harness")), tasks, tuple(problems))


def _tasks(samples: pathlib.Path, stated: Any, report: Report) -> dict[str, Task]:
    """Returns the tasks of results.json that their samples bear out; the others are reported."""
    if not isinstance(stated, dict) or not stated:
        report("unreadable", layout.RESULTS, "it has no tasks")
        stated = {}
    if not samples.is_file():
        report("missing", layout.SAMPLES, "no answers to check; evaluate the checkpoint again")
        return {}
    lines = _lines(samples, report)
    for name in sorted(lines.keys() - stated.keys()):
        report("mismatch", layout.SAMPLES, f"task {name} is not in {layout.RESULTS}")
    tasks = {}
    for name, entry in stated.items():
        answers = sorted(lines.get(name, ()), key=lambda line: line.question)
        task = _task(name, entry, answers)
        if isinstance(task, Task):
            tasks[name] = task
        else:
            report(*task)
    return tasks


def _lines(path: pathlib.Path, report: Report) -> dict[str, list[_Line]]:
    """Returns the whole lines of a file by task. Of damaged ones it reports the first, and how many
    there are."""
    lines: dict[str, list[_Line]] = {}
    damaged: list[str] = []
    try:
        with gzip.open(path) as file:
            for number, text in enumerate(file, start=1):
                try:
                    # Python writes infinities, which JSON does not have; nobody reads them.
                    line = DECODER.decode(text.replace(b"Infinity", b"1e999"))
                    lines.setdefault(line.task, []).append(line)
                except NOT_JSON as error:
                    damaged.append(f"line {number}: {error}")
    except (OSError, EOFError, zlib.error) as error:
        kind = "truncated" if isinstance(error, EOFError) else "damaged"
        report(kind, layout.SAMPLES, str(error))
    if damaged:
        first = f"{len(damaged)} lines are left out, the first of them {damaged[0]}"
        report("damaged", layout.SAMPLES, first)
    return lines


def _task(name: str, stated: Any, lines: Sequence[_Line]) -> Task | tuple[str, str, str]:
    """Returns a task with what its lines say, or why it is left out: the kind, file and text of the
    problem."""
    where = f"task {name} is left out"
    try:
        task = msgspec.convert(stated, Task)
    except NOT_JSON as error:
        return "unreadable", layout.RESULTS, f"{where}: {error}"
    if task.primary not in task.metrics:
        return "unreadable", layout.RESULTS, f"{where}: no metrics.{task.primary}"
    if len(lines) != len({line.question for line in lines}):
        return "duplicated", layout.SAMPLES, f"{where}: a question is there twice"
    if len(lines) != task.n:
        kind = "missing" if len(lines) < task.n else "mismatch"
        return kind, layout.SAMPLES, f"{where}: {len(lines)} of {task.n} questions"
    bits = {}
    for metric in task.metrics:
        answers = [line.correct[metric] for line in lines if metric in line.correct]
        # Some metrics are of all questions together, as F1.
        if not answers and metric != task.primary:
            continue
        if len(answers) < task.n:
            return "missing", layout.SAMPLES, f"{where}: {metric} of {len(answers)} of them"
        bits[metric] = np.packbits(answers)
    decodable = [line.decodable for line in lines]
    if None in decodable and decodable.count(None) < task.n:
        return "missing", layout.SAMPLES, f"{where}: some lack `decodable`"
    asked = [(line.question, str(line.gold)) for line in lines]
    identity = repr((asked, task.shots, task.data_sha256))
    return msgspec.structs.replace(
        task,
        name=name,
        undecodable=None if None in decodable else decodable.count(False) / task.n,
        identity=hashlib.sha256(identity.encode()).hexdigest(),
        bits=bits,
    )
