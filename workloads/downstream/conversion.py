"""The Hub's Parquet files into local questions, once, on a host that has them:
`prepare downstream --from=TREE`. What is already prepared is replaced. lm-eval's task files ask for
rows as the Hub's repositories have them.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from attention.common import files
from workloads.base.errors import DataError
from workloads.downstream import local_data, suites
from workloads.storage import preparation

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set of the Hub.

    splits: the splits that suites ask for. fields: the columns that its tasks read. folders: where
    a tree may have its Parquet files, the repository's name first.
    """

    splits: tuple[str, ...]
    fields: tuple[str, ...]
    folders: tuple[str, ...]


def _glue(name: str, *fields: str) -> DataSet:
    return DataSet(("train", "validation"), fields, (f"super_glue/{name}",))


def _race(level: str) -> DataSet:
    return DataSet(
        ("train", "test"), ("article", "question", "options", "answer"), (f"race/{level}",)
    )


_SCHEMA = ("text", "pronoun", "pronoun_loc", "options", "label")
_WIC = ("word", "sentence1", "sentence2", "start1", "end1", "start2", "end2", "label")
_WSC = ("text", "span1_index", "span1_text", "span2_index", "span2_text", "label")
_PAIR = ("premise", "hypothesis", "label")
_STORY = tuple(f"input_sentence_{number}" for number in range(1, 5))

DATA_SETS: dict[str, DataSet] = {
    "wsc285": DataSet(("test",), _SCHEMA, ("winograd_wsc/wsc285",)),
    "wsc273": DataSet(("test",), _SCHEMA, ("winograd_wsc/wsc273",)),
    "winogrande": DataSet(
        ("train", "validation"),
        ("sentence", "option1", "option2", "answer"),
        ("winogrande/winogrande_xl",),
    ),
    "race_middle": _race("middle"),
    "race_high": _race("high"),
    "storycloze_2016": DataSet(
        ("validation", "test"),
        (*_STORY, "sentence_quiz1", "sentence_quiz2", "answer_right_ending"),
        ("story_cloze/2016",),
    ),
    "record": _glue("record", "passage", "query", "entities", "answers"),
    "multirc": _glue("multirc", "paragraph", "question", "answer", "label"),
    "sglue_rte": _glue("rte", *_PAIR),
    "cb": _glue("cb", *_PAIR),
    "copa": _glue("copa", "premise", "choice1", "choice2", "question", "label"),
    "wic": _glue("wic", *_WIC),
    "wsc": _glue("wsc.fixed", *_WSC),
    "boolq": _glue("boolq", "passage", "question", "label"),
    "hellaswag": DataSet(
        ("train", "validation"),
        ("activity_label", "ctx_a", "ctx_b", "endings", "label"),
        ("hellaswag/data", "hellaswag/default"),
    ),
    "piqa": DataSet(
        ("train", "validation"),
        ("goal", "sol1", "sol2", "label"),
        ("piqa/plain_text", "piqa/data", "piqa/default"),
    ),
    "openbookqa": DataSet(
        ("train", "validation", "test"),
        ("question_stem", "choices", "answerKey"),
        ("openbookqa/main",),
    ),
    "arc_easy": DataSet(
        ("train", "validation", "test"),
        ("question", "choices", "answerKey"),
        ("ai2_arc/ARC-Easy",),
    ),
}

# Questions of the published figures, by data set and split.
PUBLISHED: dict[tuple[str, str], int] = {
    (entry.data, entry.split): entry.n for entry in suites.TASKS.values() if entry.n is not None
}


def prepare(
    tree: str | os.PathLike[str],
    data_dir: str | os.PathLike[str],
) -> list[str]:
    """Writes every data set that `tree` has; returns a line for each, also for those it has not.

    Raises DataError where the tree is missing or has none of them, and after all others are written
    where one is damaged or lacks a column. Numbers of questions are those of `check`.
    """
    tree = Path(tree)
    if not tree.is_dir():
        raise DataError(f"{tree} is no directory", "give --from what was downloaded")
    lines, problems, written = [], [], 0
    for name, data_set in DATA_SETS.items():
        try:
            splits, source = _read(tree, name, data_set)
            if not splits:
                expected = ", ".join(f"{path}/SPLIT-*.parquet" for path in data_set.folders)
                lines.append(f"{name}: not found; looked for {expected}")
                continue
        except DataError as problem:
            problems.append(str(problem))
            continue
        local_data.write(data_dir, name, splits, source=source)
        written += 1
        counts = ", ".join(f"{len(rows):,} {split}" for split, rows in splits.items())
        lines.append(f"{name}: {counts}, from {source}")
    if problems:
        raise DataError("\n".join(problems))
    if not written:
        raise DataError(
            "\n".join([f"{tree} has none of the data sets", *lines]),
            "download the Parquet files of the Hub's repositories; no other form is read. "
            "SuperGLUE: hf download aps/super_glue --repo-type=dataset "
            f"--local-dir={files.quoted(tree / 'super_glue')}",
        )
    return lines


def check(data_dir: str | os.PathLike[str], full: bool = True) -> list[str]:
    """Reads everything, whatever `full` says; returns a line for each suite: whole, or its lack.

    Raises DataError where a file that `tasks.json` names is not what it says or has another number
    of questions than the published figures are of, and where no suite is whole.
    """
    advice = (
        f"python -m workloads prepare downstream --data_dir={files.quoted(data_dir)} --from=TREE"
    )
    entries = local_data.index(data_dir, advice)
    for name, entry in entries.items():
        for split in entry["splits"]:
            n = PUBLISHED.get((name, split))
            if problem := local_data.problem(data_dir, entries, name, split, n, full=True):
                raise DataError(problem, advice)
    lines, whole = [], 0
    for name in suites.names():
        suite = suites.get(name)
        try:
            suites.check_data(suite, data_dir)
        except DataError as error:
            lines.append(str(error).partition("\nTo repair")[0].removeprefix("suite "))
        else:
            whole += 1
            lines.append(f"{name}: whole, {len(suite.tasks)} task(s)")
    if not whole:
        raise DataError("\n".join(lines), advice)
    return lines


def _read(tree: Path, name: str, data_set: DataSet) -> tuple[dict[str, list[Row]], str]:
    """Returns a data set's rows by split, and its first file; ({}, "") where it has no file.

    Raises DataError where a file is damaged or lacks a column, and where a split is missing.
    """
    splits: dict[str, list[Row]] = {}
    source = ""
    for split in data_set.splits:
        paths = _paths(tree, data_set, split)
        for path in paths:
            try:
                table = pyarrow.parquet.read_table(path).select(list(data_set.fields))
            except (OSError, KeyError, pyarrow.ArrowException) as problem:
                raise DataError(
                    f"{name}: {path} cannot be read, or lacks one of the columns "
                    f"{', '.join(data_set.fields)}: {problem}"
                ) from problem
            splits.setdefault(split, []).extend(table.to_pylist())
            source = str(paths[0].relative_to(tree))
    missing = set(data_set.splits) - set(splits)
    if splits and missing:
        raise DataError(f"{name}: {source} is there, but not {', '.join(sorted(missing))}")
    return splits, source


def _paths(tree: Path, data_set: DataSet, split: str) -> list[Path]:
    """Returns a split's files, in order, of the first folder that has them."""
    for folder in data_set.folders:
        # The last one is of the Hub's branch `refs/convert/parquet`.
        for pattern in (f"{split}-*.parquet", f"{split}.parquet", f"{split}/*.parquet"):
            paths = preparation.visible(tree / folder, pattern)
            if paths:
                return paths
    return []
