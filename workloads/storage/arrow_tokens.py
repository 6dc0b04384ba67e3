"""Token ids in Arrow files, as Hugging Face's `datasets` writes a data set to disk.

A folder holds `state.json`, which names its files in order, and files of Arrow's stream format with
a column `input_ids`: a list of token ids per document. The ids of all documents, one after another,
are one stream of tokens; sequences are cut from it without regard to where documents end, and what
is left at the end is dropped. Read by pyarrow, mapped and not copied.
"""

import bisect
import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from attention.common import files
from workloads.base.errors import DataError
from workloads.storage import json_records

STATE_FILE, COLUMN = "state.json", "input_ids"
# What a stream ends with (Arrow's columnar format, "IPC Streaming Format").
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class _DataFile(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    files: list[_DataFile] = msgspec.field(name="_data_files")


class ArrowTokens:
    """Sequences of one folder: `tokens[i]` is `{"tokens": int32 [length]}`.

    Opening maps every file and counts its tokens. A copy in another process opens the folder again.
    Raises DataError if the folder is absent, if a file is missing or damaged, if the column does
    not hold lists of integers, and, at reading, if an id is not below the vocabulary's size.
    """

    def __init__(self, folder: Path, length: int, vocabulary: int, repair: str) -> None:
        self.folder, self.length, self.vocabulary, self.repair = folder, length, vocabulary, repair
        self._paths = [str(folder / name) for name in _file_names(folder, repair)]
        self._chunks = [chunk for path in self._paths for chunk in _of_file(path, repair)]
        self._starts = list(itertools.accumulate(map(len, self._chunks), initial=0))

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrowTokens, (self.folder, self.length, self.vocabulary, self.repair)

    def describe(self) -> list[Any]:
        """Returns the tokens before each record batch and the bytes of each file, wherever it
        lies: what tells data apart without reading them, in JSON types."""
        return [self._starts, [os.path.getsize(path) for path in self._paths]]

    def __len__(self) -> int:
        return self._starts[-1] // self.length

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        """The sequence's tokens, a copy; IndexError beyond the end."""
        if not 0 <= number < len(self):
            raise IndexError(f"{self}: sequence {number} asked, there are {len(self)}")
        start = number * self.length
        position = bisect.bisect_right(self._starts, start) - 1
        parts, missing = [], self.length
        while missing:
            offset = start + self.length - missing - self._starts[position]
            parts.append(self._chunks[position][offset : offset + missing])
            missing -= len(parts[-1])
            position += 1
        tokens = np.concatenate(parts)  # compared before int32 cuts them
        if tokens.min() < 0 or tokens.max() >= self.vocabulary:
            raise DataError(
                f"{self}: sequence {number} has token ids from {tokens.min()} to {tokens.max()}; "
                f"the model's vocabulary has {self.vocabulary:,}",
                self.repair,
            )
        return {"tokens": tokens.astype(np.int32)}

    def __str__(self) -> str:
        return str(self.folder)


def _file_names(folder: Path, repair: str) -> list[str]:
    """Returns the names of a folder's files, in order; DataError where one is lost."""
    path = folder / STATE_FILE
    if not path.is_file():
        raise DataError(
            f"{path} does not exist: {folder} holds no data set as `datasets` saves one "
            f"({STATE_FILE} and data-*.arrow)",
            repair,
        )
    state = json_records.read(path, _State, repair)
    names = [file.filename for file in state.files]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing or not names:
        raise DataError(f"{folder} lacks {missing[0] if missing else 'any file of data'}", repair)
    return names


def _of_file(path: str, repair: str) -> list[np.ndarray]:
    """Returns a file's token ids, an array per record batch. Raises DataError for damage."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - len(_END)))
            # pyarrow takes a file that was cut between record batches for a whole one.
            if file.read() != _END:
                raise DataError(f"{path} is cut short: Arrow's end of stream is missing", repair)
        with pa.ipc.open_stream(pa.memory_map(path)) as stream:
            schema = stream.schema
            kind: Any = schema.field(COLUMN).type if COLUMN in schema.names else pa.null()
            is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
            if not is_list or not pa.types.is_integer(kind.value_type):
                raise DataError(
                    f"{path} has columns {', '.join(schema.names)}, {COLUMN} of type {kind}; lists "
                    "of integers are expected there",
                    repair,
                )
            documents = stream.read_all().column(COLUMN)
        null = documents.is_null().index(True).as_py()
        if null >= 0:  # `flatten` would leave it out
            raise DataError(f"{path}: document {null} is null, no list of token ids", repair)
        columns = [batch.flatten() for batch in documents.chunks]
        return [column.to_numpy() for column in columns if len(column)]
    except (pa.ArrowException, OSError) as problem:
        raise DataError(f"{path} cannot be read: {problem}", repair) from problem


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Callable[[np.ndarray], None]]:
    """Gives a function that appends rows of ids, uint16 [n, L], to a file, a document a row.

    The file appears, whole, when the block ends.
    """
    schema = pa.schema([(COLUMN, pa.list_(pa.uint16()))])
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(path) as new, pa.ipc.new_stream(str(new), schema) as stream:

        def append(rows: np.ndarray) -> None:
            starts = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(rows.shape[1])
            lists = pa.ListArray.from_arrays(pa.array(starts), pa.array(rows.ravel()))
            stream.write_batch(pa.record_batch([lists], schema=schema))

        yield append


def write_state(folder: Path, names: Sequence[str]) -> None:
    """Writes STATE_FILE, which names a folder's files in order."""
    state = {"_data_files": [{"filename": name} for name in names], "_split": folder.name}
    files.write(folder / STATE_FILE, json.dumps(state, indent=1) + "\n")
