"""The paper's own ViT table, beside which a full reproduction is printed.

The file and what to know about it: `analysis/reference/README.md`.
"""

import csv
import functools
import pathlib
from dataclasses import dataclass

from analysis import variants

FILE = pathlib.Path(__file__).resolve().parent / "reference" / "paper_vit_error.csv"
SOURCE = "LASER: Attention with Exponential Transformation (ICML 2025), table tab:vit_error"
SPLITS = {"Train Error": "train", "Valid Error": "validation", "Test Error": "test"}


@dataclass(frozen=True)
class PaperCell:
    """A printed number: `value` as a fraction in [0, 1], `bold` as the paper prints it."""

    value: float
    bold: bool


@functools.cache
def vit_error() -> dict[tuple[str, str], PaperCell]:
    """Returns (row's label, split) to the printed error; labels as `variants.label` makes them."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return {
            (row["method"], SPLITS[row["dataset_or_metric"]]): PaperCell(
                float(row["value"]), row["bold"] == "1"
            )
            for row in csv.DictReader(file)
        }


def cell(variant: str, split: str) -> PaperCell | None:
    """Returns the paper's error of a canonical variant name, None where it prints none."""
    return vit_error().get((variants.label(variant), split))
