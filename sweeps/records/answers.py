"""Answers: what a trial's evaluation says of each item of the split that the study reports.

`<trial>/answers.npz` is of the evaluation that validation has chosen so far, hence of the one that
tables report: `global_step`, `split` (test, or validation where there is no test split), `metric`,
`values` and `weights` of each item in the order of the data, so that items of trials on the same
data pair. The sum of values over that of weights is the metric. Right and wrong are kept as bits.
"""

import pathlib
from typing import NamedTuple

import numpy as np

from attention.common import files

FILE = "answers.npz"


class ItemRecord(NamedTuple):
    """A trial's answers. values [N]: bool (right or wrong), word errors, or losses in nats;
    weights [N]: 1, words or tokens."""

    global_step: int
    split: str
    metric: str
    values: np.ndarray
    weights: np.ndarray


def write(trial_directory: pathlib.Path, record: ItemRecord) -> None:
    """Writes a trial's answers, atomically, in the place of those that are there."""
    values = record.values
    packed = record._replace(values=np.packbits(values) if values.dtype == bool else values)
    with files.replacing(trial_directory / FILE) as new, new.open("wb") as file:
        np.savez_compressed(file, **packed._asdict())
