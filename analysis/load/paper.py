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
    mean: str = ""


@dataclass(frozen=True)
class PaperSuite:
    """A table of the paper that a suite of ours gives: its key, the study's workload, the printed
    method of each variant and the printed name of each task; `checkpoints` is the key of the table
    that has the same over the last checkpoints, empty where there is none."""

    key: str
    workload: str
    methods: Mapping[str, str]
    tasks: Mapping[str, str]
    checkpoints: str = ""


@dataclass(frozen=True)
class PrintedMean:
    """A method's mean over a table's tasks: as the paper prints it, and that of its `rows`. What
    `follows` differs by no more than rounding both can make it; `implied` is the one further task
    that would explain a difference."""

    method: str
    printed: PaperCell
    rows: int
    of_rows: float

    @property
    def follows(self) -> bool:
        """Returns whether the mean is that of the rows."""
        return abs(self.printed.value - self.of_rows) <= 2 * HALF_DIGIT + 1e-9

    @property
    def implied(self) -> float:
        """Returns the accuracy of one more task with which the mean would follow."""
        return self.printed.value * (self.rows + 1) - self.of_rows * self.rows


# Percentages are printed with two decimals.
HALF_DIGIT = 0.005
CLAIMS = "claims.csv"


def _tables() -> tuple[dict[str, PaperTable], dict[str, PrintedTable], dict[str, PaperSuite]]:
    """Returns what `tables.toml` says of the tables: beside a study's numbers, as printed, and by
    the suite that gives them."""
    beside, printed, suites = {}, {}, {}
    content = tomllib.loads((DIRECTORY / "tables.toml").read_text("utf-8"))
    for key, entry in content.items():
        if found := entry.pop("beside", None):
            columns = [PrintedColumn(**column) for column in found["columns"]]
            beside[key] = PaperTable(**{"place": entry["place"]} | found | {"columns": columns})
        if found := entry.pop("suite", None):
            name = found.pop("name")
            suites[name] = PaperSuite(key, **found)
        printed[key] = PrintedTable(**entry)
    return beside, printed, suites


# By their keys: those that a study can name (`paper_table`), and every one that the paper prints;
# by names of suites those that they give.
TABLES, PRINTED, SUITES = _tables()


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


def of_task(suite: str, variant: str, task: str) -> PaperCell | None:
    """Returns the paper's number, in percent, of a variant on a task of a suite, None where it
    prints none."""
    entry = SUITES.get(suite)
    if entry is None or variant not in entry.methods or task not in entry.tasks:
        return None
    return _of_method(PRINTED[entry.key].files[0], entry.tasks[task], entry.methods[variant])


def of_mean(suite: str, variant: str) -> PaperCell | None:
    """Returns the paper's mean over the tasks of a suite, in percent, None where it prints none."""
    entry = SUITES.get(suite)
    if entry is None or variant not in entry.methods:
        return None
    return _mean(PRINTED[entry.key], entry.methods[variant])


def over_checkpoints(suite: str, variant: str, task: str | None) -> PaperCell | None:
    """Returns the paper's number over the last checkpoints, `±` and all, on a task (of the mean
    over tasks without one), None where it prints none."""
    entry = SUITES.get(suite)
    if entry is None or not entry.checkpoints or variant not in entry.methods:
        return None
    table, method = PRINTED[entry.checkpoints], entry.methods[variant]
    heading = entry.tasks.get(task, "") if task else table.mean
    cells = (_of_method(file, heading, method) for file in (*table.files, CLAIMS))
    return next((cell for cell in cells if cell), None)


def means(key: str) -> tuple[PrintedMean, ...]:
    """Returns the means over tasks that a table of PRINTED has, recomputed from its rows."""
    table = PRINTED[key]
    rows = [row for row in lines(table.files[0]) if row["dataset_or_metric"] != table.mean]
    found = []
    for method in dict.fromkeys(row["method"] for row in rows):
        values = [float(row["value"]) for row in rows if row["method"] == method]
        if table.mean and (printed := _mean(table, method)):
            found.append(PrintedMean(method, printed, len(values), sum(values) / len(values)))
    return tuple(found)


def _mean(table: PrintedTable, method: str) -> PaperCell | None:
    places = (*table.files, CLAIMS)
    found = (_of_method(file, table.mean, method) for file in places)
    return next((cell for cell in found if cell), None)


def _of_method(file: str, heading: str, method: str) -> PaperCell | None:
    """Returns a file's number of a method under `heading`, whatever the model."""
    for row in lines(file):
        if (row["dataset_or_metric"], row["method"]) == (heading, method):
            spread = f" ± {row['std']}" if row["std"] else ""
            return PaperCell(float(row["value"]), row["value"] + spread, row["bold"] == "1")
    return None


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
