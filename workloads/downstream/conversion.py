"""Benchmarks' own files into ours, once, on a host that has them: `prepare downstream --from=TREE`.

Of each data set TREE is looked through for a TFDS directory, then for the Hub's folders, then for
the published files (workloads/downstream/data_sets.py). What is there already is replaced.
"""

import csv
import json
import os
import xml.etree.ElementTree
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet

from attention import files
from workloads.base.errors import DataError
from workloads.downstream import local_data, suites
from workloads.downstream.data_sets import DATA_SETS, SPLIT_NAMES, DataSet, Row, schema_of_xml
from workloads.storage import preparation, tfds_directory
from workloads.storage.tfds_directory import TfdsSplit

# Questions of the published figures, by data set and split.
PUBLISHED: dict[tuple[str, str], int] = {
    (entry.data, entry.split): entry.n for entry in suites.TASKS.values() if entry.n is not None
}
_WINOGRAD = {"wsc285": 285, "wsc273": 273}
_UNREADABLE = (
    *(OSError, KeyError, ValueError, TypeError, IndexError, AssertionError),
    *(AttributeError, RecursionError, csv.Error),
    xml.etree.ElementTree.ParseError,
)


def prepare(
    tree: str | os.PathLike[str],
    data_dir: str | os.PathLike[str],
) -> list[str]:
    """Writes every data set that `tree` has; returns a line for each, also for those it has not.

    Raises DataError where the tree is missing or has none of them, and after all others are written
    where one is damaged or lacks a field. Numbers of questions are those of `check`.
    """
    tree = Path(tree)
    if not tree.is_dir():
        raise DataError(f"{tree} is no directory", "give --from what was downloaded")
    lines, problems, written = [], [], 0
    for name, data_set in DATA_SETS.items():
        try:
            splits, source = _converted(tree, name, data_set)
            if not splits:
                lines.append(f"{name}: not found; {_looked_for(data_set)}")
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
        raise DataError("\n".join([f"{tree} has none of the data sets", *lines]))
    return lines


def check(data_dir: str | os.PathLike[str]) -> list[str]:
    """Returns a line for each suite: whole, or what it lacks.

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


def _looked_for(data_set: DataSet) -> str:
    tfds = [f"TFDS {data_set.tfds}"] if data_set.tfds else []
    folders = [f"{folder}/*.parquet" for folder in data_set.folders]
    published = [pattern.format("SPLIT") for pattern in data_set.files]
    return "looked for " + ", ".join(tfds + folders + published)


def _converted(tree: Path, name: str, data_set: DataSet) -> tuple[dict[str, list[Row]], str]:
    """Returns a data set's rows by split, and where they are from; nothing where it is not there.

    Raises DataError where it has some of its splits alone.
    """
    splits: dict[str, list[Row]] = {}
    source = ""
    for split in data_set.splits:
        opened = _opened(tree, data_set, split)
        if opened is None:
            continue
        source, raw = opened
        try:
            rows = [ours for row in _in_order(list(raw)) for ours in data_set.convert(row)]
            splits[split] = [{field: row[field] for field in data_set.fields} for row in rows]
        except _UNREADABLE as problem:
            raise DataError(
                f"{name}: {source}, {split}, cannot be read, or a row of it is none of the forms "
                f"that are known ({type(problem).__name__}: {problem}); {_looked_for(data_set)}"
            ) from problem
    if name in _WINOGRAD and source.endswith(".xml"):
        # The 273 are the first of the 285.
        splits["test"] = splits["test"][: _WINOGRAD[name]]
    missing = set(data_set.splits) - set(splits)
    if splits and missing:
        raise DataError(f"{name}: {source} is there, but not {', '.join(sorted(missing))}")
    return splits, source


def _in_order(rows: list[Row]) -> list[Row]:
    """Rows in their authors' order where they are numbered: TFDS has shuffled them."""
    keys = [_number(row.get("idx")) for row in rows]
    if any(key is None for key in keys):
        return rows
    return [rows[i] for i in sorted(range(len(rows)), key=lambda i: keys[i] or ())]


def _number(idx: Any) -> tuple[int, ...] | None:
    if isinstance(idx, dict):
        parts = [
            idx.get(name, 0) for name in ("paragraph", "passage", "question", "query", "answer")
        ]
        return tuple(map(int, parts))
    return None if idx is None else (int(idx),)


def _opened(tree: Path, data_set: DataSet, split: str) -> tuple[str, Iterator[Row]] | None:
    """Returns where a split's rows are, and the rows."""
    if data_set.tfds:
        for version in tfds_directory.versions(tree / data_set.tfds):
            names = tfds_directory.open_builder(version).info.splits
            for name in SPLIT_NAMES[split]:
                if name in names:
                    split_rows = TfdsSplit(version, name, features={})
                    return f"TFDS {split_rows.dataset}", split_rows.decoded()
    patterns = [f"{folder}/{{}}{end}" for folder in data_set.folders for end in _ENDS]
    for pattern in (*patterns, *data_set.files):
        for name in SPLIT_NAMES[split]:
            paths = preparation.visible(tree, pattern.format(name))
            if paths:
                return str(paths[0].relative_to(tree)), _read(paths)
    return None


_ENDS = ("-*.parquet", ".parquet", "-*.jsonl", ".jsonl")


def _read(paths: list[Path]) -> Iterator[Row]:
    for path in paths:
        yield from _READERS[path.suffix](path)


def _lines(path: Path) -> Iterator[Row]:
    """JSON lines; PIQA's labels lie beside them."""
    labels = path.with_name(f"{path.stem}-labels.lst")
    beside = labels.read_text("utf-8-sig").split() if labels.is_file() else []
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines):
            row = json.loads(line)
            yield {**row, "label": int(beside[number])} if beside else row


def _table(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        yield from csv.DictReader(lines)


def _schemas(path: Path) -> Iterator[Row]:
    return map(schema_of_xml, xml.etree.ElementTree.parse(path).getroot().iter("schema"))


# What reads a file's rows, by how its name ends.
_READERS: dict[str, Callable[[Path], Iterable[Row]]] = {
    ".parquet": lambda path: pyarrow.parquet.read_table(path).to_pylist(),
    ".jsonl": _lines,
    ".txt": lambda path: [json.loads(path.read_bytes())],
    ".csv": _table,
    ".xml": _schemas,
}
