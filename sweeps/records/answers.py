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
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        with np.load(io.BytesIO(path.read_bytes())) as arrays:
            places = dict.fromkeys(name.rpartition("/")[0] for name in arrays.files)
            return {_key(place): _record(arrays, place) for place in places}
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); train the trial anew") from error


def _key(place: str) -> Key:
    variant, _, seed = place.rpartition("/")
    return variant, int(seed)


def _record(arrays: Mapping[str, np.ndarray], place: str) -> ItemRecord:
    step, split, metric, values, weights = (arrays[f"{place}/{x}"] for x in ItemRecord._fields)
    if values.dtype == np.uint8:
        values = np.unpackbits(values, count=len(weights)).astype(bool)
    return ItemRecord(step.item(), split.item(), metric.item(), values, weights)
