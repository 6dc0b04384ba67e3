"""The paper's own figures, beside which a full reproduction is printed.

A study names its table in study.json (`paper_table`, a key of TABLES). The files are described in
`tables.toml` and `README.md` of `analysis/reference`.
"""

import functools
import itertools
import pathlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pandas as pd

from attention import table as variants

DIRECTORY = pathlib.Path(__file__).resolve().parents[1] / "reference"
SOURCE = "LASER: Attention with Exponential Transformation (ICML 2025)"
CLAIMS = "claims.csv"


@dataclass(frozen=True)
class PaperCell:
    """A printed number: `value` in the unit of the table's metric, `text` its digits and `bold`
    as the paper prints them."""

    value: float
    text: str
    bold: bool


@dataclass(frozen=True)
class PrintedColumn:
    """The place of the cells of one split: the file and its `dataset_or_metric`. `dtype` is the
    dtype of the studies that it belongs to, by their weights and activations; empty: all."""

    file: str
    heading: str
    split: str
    dtype: str = ""


@dataclass(frozen=True)
class PaperTable:
    """A table that stands beside a study's: its place in the paper, the metric it prints, the
    printed model of each workload, its columns, and a caution for the reader."""

    place: str
    metric: str
    models: Mapping[str, str]
    columns: Sequence[PrintedColumn]
    caution: str


@dataclass(frozen=True)
class PaperSuite:
    """A table of the paper that a suite of ours gives: its place, its file, the name of its `mean`
    over tasks, the study's workload, the printed method of each variant and the printed name of
    each task."""

    place: str
    file: str
    mean: str
    workload: str
    methods: Mapping[str, str]
    tasks: Mapping[str, str]


PRINTED = tomllib.loads((DIRECTORY / "tables.toml").read_text("utf-8"))
# By the keys that a study can name (`paper_table`), and by the names of suites.
TABLES = msgspec.convert(PRINTED["studies"], dict[str, PaperTable])
SUITES = msgspec.convert(PRINTED["suites"], dict[str, PaperSuite])


def cell(
    table: str, metric: str, workload: str, config: Mapping[str, Any], variant: str, split: str
) -> PaperCell | None:
    """Returns the paper's number of a canonical variant name on a split, None if `table` is of
    another metric or empty, or prints none for that workload or for the dtypes of the study's
    `config`."""
    entry = TABLES.get(table)
    if entry is None or entry.metric != metric:
        return None
    # AlgoPerf's own workload, 'algoperf:imagenet_vit', is the paper's model.
    model = entry.models.get(workload.rpartition(":")[2])
    cells = (
        printed(column.file, model, column.heading, variant)
        for column in entry.columns
        if column.split == split and column.dtype in ("", dtype(config))
    )
    return next(filter(None, cells), None)


def printed(file: str, model: str | None, heading: str, variant: str) -> PaperCell | None:
    """Returns the number that `file` has for a canonical variant name under `heading`, None if
    it has none."""
    method = variants.label(variant)
    return _find([file], model=model, dataset_or_metric=heading, method=method)


def dtype(config: Mapping[str, Any]) -> str:
    """Returns the dtype of weights and activations, `mixed` where they differ."""
    weights, activations = (config.get(key, "float32") for key in ("param_dtype", "compute_dtype"))
    return str(weights) if weights == activations else "mixed"


def of_suite(suite: str, variant: str, task: str | None) -> PaperCell | None:
    """Returns the paper's number, in percent, of a variant on a task of a suite (its mean over
    tasks without one), None if it prints none."""
    entry = SUITES.get(suite)
    if entry is None:
        return None
    heading = entry.tasks.get(task) if task else entry.mean
    method = entry.methods.get(variant)
    return _find([entry.file, CLAIMS], dataset_or_metric=heading, method=method)


def _find(files: Iterable[str], **place: str | None) -> PaperCell | None:
    """Returns the first number of the files whose line has these texts in these columns, in
    whatever case; None if there is none."""
    wanted = {name: str(text).lower() for name, text in place.items()}
    for row in itertools.chain.from_iterable(map(lines, files)):
        if wanted == {name: row[name].lower() for name in wanted}:
            spread = f" ± {row['std']}" if row["std"] else ""
            return PaperCell(float(row["value"]), row["value"] + spread, row["bold"] == "1")
    return None


@functools.cache
def lines(file: str) -> list[dict[str, str]]:
    """Returns the lines of a file of `reference/`, a column's name to its text as printed."""
    frame = pd.read_csv(DIRECTORY / file, dtype=str, keep_default_na=False)
    return list(frame.to_dict("records"))
