"""Answers: what a trial's evaluation says of each item of the split that the study reports.

`<trial>/answers.npz` is of the evaluation that validation has chosen so far, hence of the one that
tables report. A results file may have one beside it, of several trials. Its arrays are called
`<variant>/<seed>/<field of ItemRecord>`. Items stand in the order of the data, so that those of
trials on the same data pair. Right and wrong are kept as bits.
"""

import io
import pathlib
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attention.common import files

FILE = "answers.npz"
Key = tuple[str, int]


class ItemRecord(NamedTuple):
    """A trial's answers after `global_step` updates. values [N]: bool (right or wrong), word errors
    or losses in nats; weights [N]: 1, words or tokens. The sum of values over that of weights is
    the `metric` of the `split`."""

    global_step: int
    split: str
    metric: str
    values: np.ndarray
    weights: np.ndarray


def write(folder: pathlib.Path, records: Mapping[Key, ItemRecord]) -> None:
    """Writes the answers of trials, by variant and seed, in the place of those that are there,
    atomically."""
    arrays: dict[str, Any] = {}
    for (variant, seed), record in records.items():
        fields = record._asdict()
        if record.values.dtype == bool:
            fields["values"] = np.packbits(record.values)
        arrays |= {f"{variant}/{seed}/{name}": value for name, value in fields.items()}
    with files.replacing(folder / FILE) as new, new.open("wb") as file:
        np.savez_compressed(file, **arrays)


def read(folder: pathlib.Path) -> dict[Key, ItemRecord]:
    """Returns the answers in a folder, by variant and seed; {} if there is no file of them. Raises
    ValueError, with the file's name, if it is damaged."""
    fields: dict[Key, dict[str, Any]] = defaultdict(dict)
    try:
        with np.load(io.BytesIO((folder / FILE).read_bytes())) as arrays:
            for path in arrays.files:
                variant, seed, name = path.rsplit("/", 2)
                array = arrays[path]
                fields[variant, int(seed)][name] = array if array.ndim else array.item()
        records = {key: ItemRecord(**record) for key, record in fields.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{folder / FILE} is damaged ({error}); train the trial anew") from error
    return {
        key: record._replace(values=_unpacked(record.values, len(record.weights)))
        for key, record in records.items()
    }


def _unpacked(values: np.ndarray, count: int) -> np.ndarray:
    is_packed = values.dtype == np.uint8
    return np.unpackbits(values, count=count).astype(bool) if is_packed else values
