"""The paper's own figures, beside which a full reproduction is printed.

A study names its table in study.json (`paper_table`, a key of TABLES). The files, and what to know
about them: `tables.toml` and `README.md` of `analysis/reference`.
"""

import csv
import functools
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attention import table as variants

DIRECTORY = pathlib.Path(__file__).resolve().parents[1] / "reference"
SOURCE = "LASER: Attention with Exponential Transformation (ICML 2025)"


@dataclass(frozen=True)
class PaperCell:
    """A printed number: `value` in the unit of the table's metric, `text` its digits and `bold`
    as the paper prints them."""

    value: float
    text: str
    bold: bool


@dataclass(frozen=True)
class PrintedColumn:
    """Where the cells of one split are printed: the file and its `dataset_or_metric`. `dtype`
    says of which studies, by their weights and activations; empty: of all."""

    file: str
    heading: str
    split: str
    dtype: str = ""


@dataclass(frozen=True)
class PaperTable:
    """A table that stands beside a study's: its place in the paper, the metric it prints, the
    printed model of each workload, its columns, and what a reader has to know."""

    place: str
    metric: str
    models: Mapping[str, str]
    columns: Sequence[PrintedColumn]
    caution: str


@dataclass(frozen=True)
class PrintedTable:
    """A table of the paper: its place, what its cells are, its files, its known inconsistencies, a
    sentence on what of ours gives the same (empty: nothing), and its layout: the columns of the
    files whose texts name a row, and the one whose texts head the columns, empty for a single
    column of values."""

    place: str
    what: str
    files: Sequence[str]
    notes: Sequence[str]
    ours: str = ""
    down: Sequence[str] = ("method",)
    across: str = "dataset_or_metric"


def _tables() -> tuple[dict[str, PaperTable], dict[str, PrintedTable]]:
    """Returns what `tables.toml` says of the tables: beside a study's numbers, and as printed."""
    beside, printed = {}, {}
    content = tomllib.loads((DIRECTORY / "tables.toml").read_text("utf-8"))
    for key, entry in content.items():
        if found := entry.pop("beside", None):
            columns = [PrintedColumn(**column) for column in found["columns"]]
            beside[key] = PaperTable(**{"place": entry["place"]} | found | {"columns": columns})
        printed[key] = PrintedTable(**entry)
    return beside, printed


# By their keys: those that a study can name (`paper_table`), and every one that the paper prints.
TABLES, PRINTED = _tables()


def cell(
    table: str, workload: str, config: Mapping[str, Any], variant: str, split: str
) -> PaperCell | None:
    """Returns the paper's number of a canonical variant name on a split, None where it prints
    none for that workload or for the dtypes of the study's `config`."""
    entry = TABLES[table]
    # AlgoPerf's own workload, 'algoperf:imagenet_vit', is what the paper trained.
    model = entry.models.get(workload.rpartition(":")[2])
    for column in entry.columns:
        if column.split != split or column.dtype not in ("", dtype(config)):
            continue
        if found := printed(column.file, model, column.heading, variant):
            return found
    return None


def printed(file: str, model: str | None, heading: str, variant: str) -> PaperCell | None:
    """Returns the number that `file` has for a canonical variant name under `heading`, None where
    it has none."""
    return _read(file).get((model, heading, variants.label(variant).lower()))


def dtype(config: Mapping[str, Any]) -> str:
    """Returns the dtype of weights and activations, `mixed` where they differ."""
    weights, activations = (config.get(key, "float32") for key in ("param_dtype", "compute_dtype"))
    return str(weights) if weights == activations else "mixed"


@functools.cache
def _read(file: str) -> dict[tuple[str | None, str, str], PaperCell]:
    """Returns (model, heading, row's label in lower case) to the printed cell."""
    return {
        (row["model"], row["dataset_or_metric"], row["method"].lower()): PaperCell(
            float(row["value"]), row["value"], row["bold"] == "1"
        )
        for row in lines(file)
    }


@functools.cache
def lines(file: str) -> tuple[dict[str, str], ...]:
    """Returns the lines of a file of `reference/`, a column's name to its text as printed."""
    with (DIRECTORY / file).open(encoding="utf-8", newline="") as opened:
        return tuple(csv.DictReader(opened))
