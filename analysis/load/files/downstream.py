"""Reads what suites say of a trial's checkpoints: `results.json` beside `samples.jsonl.gz`.

Of every question only what statistics need is kept: whether it was answered right, a bit for each
metric (16 tasks of 10,000 questions and 4 metrics: 80 kB). What results.json states is held against
its questions; a task that lacks one, has one twice, or whose questions do not give the stated
number is named and left out, never mended. A file of samples goes by Arrow, which runs no Python
code per line; where it cannot, line by line, some five times slower, naming each damaged line.
"""

import functools
import gzip
import hashlib
import itertools
import json
import pathlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow
from pyarrow import compute
from pyarrow import json as arrow_json

from analysis.load.files import json_records
from sweeps.records import layout

# Metrics are stated as means in double precision; one question of 10,042 moves them by 1e-4.
ROUNDING = 1e-6
# Bytes that Arrow takes at a time; a line with the answers to one question has a few hundred.
BLOCK = 4 << 20
# Damaged lines of one file that are named one by one.
NAMED_LINES = 5
_UNKNOWN, _WRONG, _RIGHT = -1, 0, 1


@dataclass(frozen=True, eq=False)
class Task:
    """A task as one checkpoint answered it: its n `questions` in order of their numbers.

    `metrics` are fractions as results.json states them, `primary` the one named beforehand;
    `majority` is what answering every question alike would give, None where there is no such thing;
    `references` other rows by name. `truncated` counts questions whose context was cut.
    `undecodable` is the share of generated answers that are none of those allowed, None where
    nothing was generated. `identity` is equal for tasks that asked the same questions, with the
    same right answers, data and number of shots, and `bits` has each metric's packed answers.
    """

    name: str
    primary: str
    n: int
    shots: int
    metrics: Mapping[str, float]
    majority: float | None
    references: Mapping[str, float]
    truncated: int
    published_n: int | None
    undecodable: float | None
    identity: str
    bits: Mapping[str, np.ndarray] = field(repr=False)

    def right(self, metric: str) -> np.ndarray:
        """Returns whether each question was answered right, bool [n], by a metric of `bits`."""
        return np.unpackbits(self.bits[metric], count=self.n).astype(bool)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `suite` says of the checkpoint at `step`: tasks by name, in the suite's order, and what
    is wrong with its files, as complete sentences. `where` names its directory."""

    suite: str
    step: int
    where: str
    harness: str
    tasks: Mapping[str, Task]
    problems: tuple[str, ...]


def of_trial(directory: pathlib.Path, name: str) -> tuple[list[Evaluation], list[str]]:
    """Returns a trial's evaluations by step and suite, one that is not finished or cannot be read
    without tasks; and a sentence for each directory of no step. `name` is the trial's."""
    found, problems = [], []
    own = layout.read_record(directory / layout.TRIAL)
    for folder in sorted(
        (directory / layout.DOWNSTREAM).glob(f"{json_records.VISIBLE}/{json_records.VISIBLE}")
    ):
        step, suite = folder.parts[-2:]
        where = f"{name}/{layout.downstream_path(step, suite)}"  # type: ignore[arg-type]
        if not folder.is_dir():
            continue
        if not step.isdecimal() or not step.isascii():
            problems.append(f"unreadable: {where}: {step!r} is no step of a checkpoint")
        elif (folder / layout.RESULTS).is_file():
            found.append(_of_folder(folder, where, own))
        else:
            said = (_unfinished(folder, where, suite),)
            found.append(Evaluation(suite, int(step), where, "", {}, said))
    return sorted(found, key=lambda each: (each.step, each.suite)), problems


def _unfinished(folder: pathlib.Path, where: str, suite: str) -> str:
    done = len(list((folder / layout.DOWNSTREAM_TASKS).glob(f"{json_records.VISIBLE}.jsonl.gz")))
    tasks = "1 task is" if done == 1 else f"{done} tasks are"
    again = f"`python -m sweeps evaluate STUDY --suite={suite}` goes on from there"
    return f"unfinished: {where}: no {layout.RESULTS}, {tasks} finished; {again}"


def _of_folder(folder: pathlib.Path, where: str, own: dict[str, Any]) -> Evaluation:
    given = ((key, own.get(own_key)) for key, own_key in IDENTITY.items())
    # What trial.json lacks, or has of another kind, is its own reader's problem.
    identity = tuple((key, value) for key, value in given if isinstance(value, str | int))
    stamps = []
    for file in (layout.RESULTS, layout.SAMPLES):
        try:
            found = (folder / file).stat()
            stamps.append((found.st_mtime_ns, found.st_size))
        except OSError:
            stamps.append((0, 0))
    return _read_once(folder, where, identity, tuple(stamps))


# Of results.json to trial.json's.
IDENTITY = {"trial_id": "id", "variant": "variant", "workload": "workload", "seed": "seed"}


@functools.lru_cache(maxsize=2048)
def _read_once(
    folder: pathlib.Path, where: str, own: tuple[tuple[str, Any], ...], stamps: tuple[Any, ...]
) -> Evaluation:
    """`stamps` tell files that were written anew."""
    step, suite = int(folder.parts[-2]), folder.parts[-1]
    problems: list[str] = []
    place = f"{where}/{layout.RESULTS}"
    record = json_records.read(folder / layout.RESULTS, place, problems) or {}
    tasks: dict[str, Task] = {}
    if not record:
        problems = problems or [f"unreadable: {place}: it is empty"]
    elif other := _mismatch(record, own, step, suite):
        problems.append(f"mismatch: {place}: {other}; it is not read")
    else:
        stated = dict(_stated(record, place, problems))
        metrics = sorted({name for task in stated.values() for name in task["metrics"]})
        file = f"{where}/{layout.SAMPLES}"
        samples = _samples(folder / layout.SAMPLES, file, metrics, problems)
        if samples is not None:
            tasks = dict(_checked(stated, samples, place, file, problems))
    harness = str(record.get("harness") or "")
    return Evaluation(suite, step, where, harness, tasks, tuple(problems))


def _mismatch(
    record: dict[str, Any], own: Iterable[tuple[str, Any]], step: int, suite: str
) -> str | None:
    """Returns why a results.json is not that of its directory, None where it is."""
    if record.get("format") != layout.DOWNSTREAM_FORMAT:
        return f"its format is {record.get('format')!r}; {layout.DOWNSTREAM_FORMAT!r} is known"
    expected = {"suite": suite, "step": step} | dict(own)
    for key, value in expected.items():
        if record.get(key) != value:
            return f"its {key} is {record.get(key)!r}, its directory's {value!r}"
    return None


def _stated(
    record: dict[str, Any], place: str, problems: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the tasks that results.json states whole."""
    if not record.get("tasks"):
        problems.append(f"unreadable: {place}: it has no tasks")
    for name, task in (record.get("tasks") or {}).items():
        absent = [key for key in ("primary", "n", "metrics") if key not in task]
        if not absent and task["primary"] not in task["metrics"]:
            absent = [f"metrics.{task['primary']}"]
        if absent:
            said = ", ".join(absent)
            problems.append(f"unreadable: {place}: tasks.{name} has no {said}; it is left out")
            continue
        yield name, task


@dataclass
class _Samples:
    """Lines as columns: tasks' names and the number of each line's; numbers of questions, right
    answers as texts, for each metric and `decodable` whether, int8 [lines]; -1 is not said."""

    names: list[str]
    task: np.ndarray
    question: np.ndarray
    gold: np.ndarray
    correct: dict[str, np.ndarray]
    decodable: np.ndarray


def _samples(
    path: pathlib.Path, place: str, metrics: list[str], problems: list[str]
) -> _Samples | None:
    try:
        if not path.is_file():
            problems.append(
                f"missing: {place}: without it no figure of {layout.RESULTS} can be checked or "
                "tested, and none is used; evaluate the checkpoint again"
            )
            return None
        for gold in (pyarrow.int64(), pyarrow.string()):
            if (found := _by_arrow(path, metrics, gold)) is not None:
                return found
        return _line_by_line(path, place, metrics, problems)
    except OSError as error:
        problems.append(f"unreadable: {place}: {error}")
        return None


def _by_arrow(path: pathlib.Path, metrics: list[str], gold: pyarrow.DataType) -> _Samples | None:
    """Returns None where a line is not as it should be, or the file ends early."""
    known = [("task", pyarrow.string()), ("question", pyarrow.int64()), ("gold", gold)]
    answers = pyarrow.struct([(name, pyarrow.bool_()) for name in metrics])
    schema = pyarrow.schema([*known, ("decodable", pyarrow.bool_()), ("correct", answers)])
    try:
        with pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "gzip") as file:
            table = arrow_json.read_json(
                file,
                arrow_json.ReadOptions(use_threads=False, block_size=BLOCK),
                arrow_json.ParseOptions(schema, unexpected_field_behavior="ignore"),
            ).combine_chunks()
        # Letters that are no UTF-8 are found when the texts are used.
        tasks = compute.dictionary_encode(table["task"]).combine_chunks()
        golds = compute.cast(table["gold"], pyarrow.string()).to_numpy(zero_copy_only=False)
        names = tasks.dictionary.to_pylist()
    except (pyarrow.ArrowInvalid, OSError, UnicodeDecodeError):
        return None
    if any(table[name].null_count for name in ("task", "question", "gold", "correct")):
        return None
    question = table["question"].to_numpy()
    if (question < 0).any():
        return None
    correct = table["correct"].combine_chunks()
    return _Samples(
        names=names,
        task=tasks.indices.to_numpy(),
        question=question,
        gold=golds,
        correct={name: _tristate(correct.field(name)) for name in metrics},
        decodable=_tristate(table["decodable"]),
    )


def _tristate(column: Any) -> np.ndarray:
    """Returns int8 [lines] of a column of truths."""
    filled = compute.fill_null(compute.cast(column, pyarrow.int8()), _UNKNOWN)
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.int8)


def _line_by_line(
    path: pathlib.Path, place: str, metrics: list[str], problems: list[str]
) -> _Samples:
    """Returns the lines that are whole; `problems` gains those that are not."""
    rows: list[dict[str, Any]] = []
    damaged: list[tuple[int, str]] = []
    for number, text in enumerate(_lines(path, place, problems), start=1):
        try:
            if text.strip():
                rows.append(_line(text))
        except ValueError as error:
            damaged.append((number, str(error)))
    for number, why in damaged[:NAMED_LINES]:
        problems.append(f"damaged: {place}: line {number} is left out: {why}")
    if more := len(damaged[NAMED_LINES:]):
        problems.append(f"damaged: {place}: {more} more lines are left out")
    names = list(dict.fromkeys(row["task"] for row in rows))
    places = {name: index for index, name in enumerate(names)}
    truths = {True: _RIGHT, False: _WRONG}

    def column(values: Iterable[Any]) -> np.ndarray:
        return np.fromiter((truths.get(value, _UNKNOWN) for value in values), np.int8)

    return _Samples(
        names=names,
        task=np.array([places[row["task"]] for row in rows], int),
        question=np.array([row["question"] for row in rows], np.int64),
        gold=np.array([str(row["gold"]) for row in rows], object),
        correct={name: column(row["correct"].get(name) for row in rows) for name in metrics},
        decodable=column(row.get("decodable") for row in rows),
    )


def _lines(path: pathlib.Path, place: str, problems: list[str]) -> Iterator[bytes]:
    """Yields a compressed file's lines, those before the damage of one that is cut short."""
    rest, count = b"", 0
    try:
        with gzip.open(path) as file:
            while block := file.read1(BLOCK):
                *lines, rest = (rest + block).split(b"\n")
                count += len(lines)
                yield from lines
    except EOFError:
        problems.append(f"truncated: {place}: it ends after {count} whole lines")
        return
    except (zlib.error, gzip.BadGzipFile) as error:
        problems.append(f"damaged: {place}: after {count} whole lines: {error}")
        return
    yield from [rest] * bool(rest)


def _line(text: bytes) -> dict[str, Any]:
    """Raises ValueError where a line is no question with its answer."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"not JSON: {text[:40].decode('utf-8', 'replace')!r}") from None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    for key, kind in LINE.items():
        if not kind.fits(row.get(key)):
            raise ValueError(f"its {key} is {str(row.get(key))[:40]!r}, expected {kind.words}")
    return row


def _is_truths(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, bool) for each in value.values())


LINE = {
    "task": json_records.TEXT,
    "question": json_records.WHOLE,
    "gold": json_records.Kind("a number or text", lambda value: isinstance(value, int | str)),
    "correct": json_records.Kind("an object of true and false", _is_truths),
}


def _checked(
    stated: dict[str, dict[str, Any]],
    samples: _Samples,
    place: str,
    file: str,
    problems: list[str],
) -> Iterator[tuple[str, Task]]:
    """Yields the tasks whose questions are all there, once, and give the numbers stated."""
    for name in (name for name in samples.names if name not in stated):
        problems.append(f"mismatch: {file}: it has task {name}, which {place} has not")
    # A stable sort by task: the lines of each are together, as the file has them.
    order = np.lexsort((samples.question, samples.task))
    bounds = np.searchsorted(samples.task[order], np.arange(len(samples.names) + 1))
    spans = dict(zip(samples.names, itertools.pairwise(bounds), strict=True))
    for name, task in stated.items():
        first, last = spans.get(name, (0, 0))
        rows = order[first:last]
        if why := _damage(task, samples, rows):
            kind, said = why
            problems.append(f"{kind}: {file}: {name} {said}; {name} is left out")
            continue
        yield name, _task(name, task, samples, rows)


def _damage(stated: dict[str, Any], samples: _Samples, rows: np.ndarray) -> tuple[str, str] | None:
    """Returns what is wrong with a task, the kind and the words, None where nothing is."""
    questions = samples.question[rows]
    if (twice := questions[1:][np.diff(questions) == 0]).size:
        return "duplicated", f"has question {twice[0]} more than once ({twice.size} in all)"
    if len(rows) != stated["n"]:
        kind = "missing" if len(rows) < stated["n"] else "mismatch"
        return kind, f"has {len(rows)} questions, {layout.RESULTS} says {stated['n']}"
    for metric, value in stated["metrics"].items():
        answers = samples.correct[metric][rows]
        unknown = int((answers == _UNKNOWN).sum())
        if unknown == len(rows) and metric != stated["primary"]:
            continue  # of all questions together, as F1
        if unknown:
            return "missing", f"has no {metric} of {unknown} of its {len(rows)} questions"
        if abs((mean := float(answers.mean())) - value) > ROUNDING:
            return "mismatch", f"has {metric} {mean:.6g}, {layout.RESULTS} says {value:.6g}"
    decodable = samples.decodable[rows]
    if 0 < (unknown := int((decodable == _UNKNOWN).sum())) < len(rows):
        return "missing", f"does not say of {unknown} of its {len(rows)} answers if it is decodable"
    return None


def _task(name: str, stated: dict[str, Any], samples: _Samples, rows: np.ndarray) -> Task:
    columns = {metric: samples.correct[metric][rows] for metric in stated["metrics"]}
    known = {metric: column for metric, column in columns.items() if column[0] != _UNKNOWN}
    decodable = samples.decodable[rows]
    asked = hashlib.sha256(samples.question[rows].tobytes())
    asked.update("\n".join(samples.gold[rows]).encode())
    asked.update(repr((stated.get("shots"), stated.get("data_sha256"))).encode())
    return Task(
        name=name,
        primary=stated["primary"],
        n=len(rows),
        shots=stated.get("shots") or 0,
        metrics=stated["metrics"],
        majority=stated.get("majority"),
        references=stated.get("references") or {},
        truncated=stated.get("truncated") or 0,
        published_n=stated.get("published_n"),
        undecodable=None if decodable[0] == _UNKNOWN else float((decodable == _WRONG).mean()),
        identity=asked.hexdigest(),
        bits={metric: np.packbits(column == _RIGHT) for metric, column in known.items()},
    )
