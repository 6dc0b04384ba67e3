"""The bf16 reconstruction experiment, measured (`python -m attention reconstruct`) beside the
paper's figures."""

import pathlib
from typing import Any

from analysis.load import paper
from analysis.load.files import json_records
from analysis.render import pages
from analysis.render.pages import NONE, Cell, Page, Row, Table

FORMAT = "attnperf-reconstruction-1"
PRINTED = "text_bf16_reconstruction.csv"
KEYS = ("method", "dtype", "reference", "mean", "sd", "worst", "n", "layer")


def read(path: pathlib.Path) -> dict[str, Any]:
    """Returns the file's record. Raises ValueError where it is damaged or of another format."""
    record = json_records.of_format(path, FORMAT)
    if not isinstance(record.get("versions"), dict):
        raise ValueError(f"{path}: it does not say the versions it was measured with")
    rows = record.get("rows")
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path}: it has no rows")
    for number, row in enumerate(rows):
        missing = [key for key in KEYS if not isinstance(row, dict) or key not in row]
        if missing:
            raise ValueError(f"{path}: row {number} lacks {', '.join(missing)}")
    return record


def page(record: dict[str, Any], by_layer: bool = False) -> Page:
    """Returns the table over all tensors, and those of the layers where asked or where the tensors
    were drawn: a mean over different scales of values says little."""
    rows = record["rows"]
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    drawn = str(record.get("source", "")).startswith("drawn")
    chosen = [layer for layer in layers if layer is None or by_layer or drawn]
    shape = record.get("shape")
    size = f"shape {tuple(shape)}" if shape else "several shapes"
    return Page(
        title=f"bfloat16 reconstruction of attention: {record.get('source')}, {size}",
        tables=tuple(
            _table(layer, [row for row in rows if row["layer"] == layer]) for layer in chosen
        ),
        notes=tuple(_notes(record)),
        problems=tuple(_problems(rows)),
    )


def _table(layer: str | None, rows: list[dict[str, Any]]) -> Table:
    printed = _printed()
    words = ("Method", "Computed in", "Reference on")
    beside_us = (f"paper\n{device}" for device in printed)
    columns = pages.columns(*words, "Mean", "SD", "Worst", "n", *beside_us, words=words)
    sections = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        beside = [dict[str, Cell]()] * len(printed)
        if str(dtype).startswith("bfloat16"):
            beside = list(printed.values())
        of_dtype = [row for row in rows if row["dtype"] == dtype]
        sections.append(tuple(_cells(row, beside) for row in of_dtype))
    return Table(f"Relative error, {layer or 'all tensors'}", columns, tuple(sections))


def _cells(row: dict[str, Any], beside: list[dict[str, Cell]]) -> Row:
    return (
        *(Cell(str(row[name])) for name in ("method", "dtype", "reference")),
        *(
            Cell(f"{error:.1e}") if error is not None and error < 1e-4 else pages.number(error, 5)
            for error in (row[name] for name in ("mean", "sd", "worst"))
        ),
        Cell(str(row["n"])),
        *(cells.get(row["method"], NONE) for cells in beside),
    )


def _printed() -> dict[str, dict[str, Cell]]:
    """Returns device to method to what the paper prints."""
    found: dict[str, dict[str, Cell]] = {}
    for row in paper.lines(PRINTED):
        device = row["dataset_or_metric"].split(", ")[-1].removesuffix(" bfloat16")
        found.setdefault(device, {})[row["method"]] = Cell(f"{row['value']} ± {row['std']}")
    return found


def _notes(record: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    return [
        "Error: norm of (output - reference) / norm of reference per tensor, the reference in "
        "float64; mean, sd and worst over n tensors.",
        f"Measured on {record.get('device')}, {versions}, "
        f"{'causal' if record.get('causal') else 'not causal'}.",
        f"paper: {paper.SOURCE}, text, 4,800 cached tensors of (1024, 8, 256). It does not say "
        "what was rounded, nor what the reference was: 'rounded inputs' judges the arithmetic "
        "alone, 'float32 inputs' counts the rounding of q, k, v too, 'bfloat16 products' keeps "
        "float32 arrays and rounds what each matrix product reads. 0.0017 is what one rounding of "
        "an exact result to bfloat16 leaves.",
    ]


def _problems(rows: list[dict[str, Any]]) -> list[str]:
    return [
        f"nonfinite: {row['method']} in {row['dtype']}: {row['nonfinite']} of "
        f"{row['nonfinite'] + row['n']} tensors, left out of the mean"
        for row in rows
        if row["layer"] is None and row.get("nonfinite") and row["reference"] == "rounded inputs"
    ]
