"""Documents of a text corpus, file by file: shards of a TFDS directory, or MLPerf's text files.

Readers are given a file and yield its documents in order; they are picklable with their arguments
(`functools.partial`), so that any process may read any file.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from workloads.base.errors import DataError
from workloads.storage import tfds_directory


def tfds_documents(split: tfds_directory.TfdsSplit, shard: int) -> Iterator[str]:
    """The feature `text` of one shard; every record's checksums are compared.

    Raises DataError where a record is damaged or its text is no UTF-8.
    """
    for number, example in enumerate(split.iterate_shard(shard)):
        yield decoded(example["text"], f"{split.shards[shard]}: record {number}", split.repair)


def mlperf_documents(path: str | os.PathLike[str], repair: str) -> Iterator[str]:
    """Documents of a file with one sentence per line and blank lines between documents.

    Sentences of a document are joined by line breaks. Raises DataError where a line is no UTF-8.
    """
    lines: list[str] = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            sentence = decoded(line, f"{path}: line {number}", repair).strip()
            if sentence:
                lines.append(sentence)
            elif lines:
                yield "\n".join(lines)
                lines = []
    if lines:
        yield "\n".join(lines)


def decoded(text: bytes, where: str, repair: str) -> str:
    """The text; DataError, naming `where`, unless it is UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError as problem:
        raise DataError(f"{where} is no UTF-8: {problem}", repair) from problem


def versions(directory: Path) -> list[Path]:
    """Prepared versions of a TFDS data set in `directory`, the newest first."""
    found = [path for path in _folders(directory) if (path / "dataset_info.json").is_file()]
    return sorted(found, key=lambda path: _version(path.name), reverse=True)


def _folders(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.is_dir()] if directory.is_dir() else []


def _version(name: str) -> tuple[int, ...]:
    parts = name.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
