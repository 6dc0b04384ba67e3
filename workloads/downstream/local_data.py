"""Questions on local disk: `DATA_DIR/downstream/TASK/SPLIT.jsonl`, listed by `tasks.json`.

`tasks.json` is written after the rows and says of every split how many there are and their file's
SHA-256; what it does not name is not there. All but `lm_eval_dataset` needs the standard library
alone.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from attention.common import files
from workloads.base.errors import DataError
from workloads.storage import preparation

FOLDER, INDEX = "downstream", "tasks.json"
FORMAT = "attnperf downstream data 1"


def folder(data_dir: str | os.PathLike[str]) -> pathlib.Path:
    """Returns where questions lie below a data directory."""
    return pathlib.Path(data_dir, FOLDER)


def rows_path(data_dir: str | os.PathLike[str], task: str, split: str) -> pathlib.Path:
    """Returns the file of a split's rows."""
    return folder(data_dir) / task / f"{split}.jsonl"


def write(
    data_dir: str | os.PathLike[str],
    task: str,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    **about: Any,
) -> None:
    """Writes a task's rows and its entry in `tasks.json`, with `about` (JSON types)."""
    entry: dict[str, Any] = {**about, "splits": {}}
    for split, rows in splits.items():
        path = rows_path(data_dir, task, split)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()
        files.write(path, text)
        digest = hashlib.sha256(text).hexdigest()
        entry["splits"][split] = {"rows": len(rows), "bytes": len(text), "sha256": digest}
    tasks = index(data_dir) if (folder(data_dir) / INDEX).exists() else {}
    whole = {"format": FORMAT, "tasks": dict(sorted({**tasks, task: entry}.items()))}
    files.write(folder(data_dir) / INDEX, json.dumps(whole, indent=1) + "\n")


def index(data_dir: str | os.PathLike[str], repair: str = "") -> dict[str, Any]:
    """Returns what `tasks.json` says of each task. Raises DataError where it cannot be read."""
    path = folder(data_dir) / INDEX
    try:
        record = json.loads(path.read_bytes())
        if record["format"] != FORMAT:
            raise ValueError(f"its format is {record['format']!r}, not {FORMAT!r}")
        return dict(record["tasks"])
    except FileNotFoundError:
        raise DataError(f"{path} is missing: no questions are prepared there", repair) from None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise DataError(f"{path} cannot be used: {problem}", repair) from problem


def problem(
    data_dir: str | os.PathLike[str],
    entries: Mapping[str, Any],
    task: str,
    split: str,
    n: int | None = None,
    full: bool = False,
) -> str:
    """Returns what is wrong with a split of `entries`, those of `tasks.json`; '' where it is whole
    and has `n` rows (None: any number).

    With `full` its SHA-256 is computed.
    """
    path, entry = rows_path(data_dir, task, split), entries[task]["splits"][split]
    if n is not None and entry["rows"] != n:
        return (
            f"{path} has {entry['rows']:,} questions; the published figures are of {n:,}: this is "
            "another version of the data, or a part of it"
        )
    size = path.stat().st_size if path.is_file() else -1
    if size != entry["bytes"] or (full and files.sha256(path) != entry["sha256"]):
        return f"{path} is missing, cut short or changed: it is not the file that {INDEX} describes"
    return ""


def read(data_dir: str | os.PathLike[str], task: str, split: str) -> list[dict[str, Any]]:
    """Returns the rows of a split."""
    with rows_path(data_dir, task, split).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def lm_eval_dataset(data_dir: str, data: str, **metadata: Any) -> dict[str, Any]:
    """Returns a `datasets.Dataset` in memory per split that is there: `custom_dataset` of tasks.

    lm-eval's own `datasets.load_dataset` writes a copy of every file below the user's home.
    """
    import datasets

    return {
        path.stem: datasets.Dataset.from_list(read(data_dir, data, path.stem))
        for path in preparation.visible(folder(data_dir) / data, "*.jsonl")
    }
