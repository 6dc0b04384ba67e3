"""FineWeb-Edu as AlgoPerf prepares it.

AlgoPerf tokenises with GPT-2's vocabulary of 50,257 and saves Arrow files with `datasets`, in the
folders `train` and `val` (datasets/dataset_setup.py). Its loader
(algoperf/workloads/finewebedu_lm/input_pipeline.py at a6ce1da) cuts the stream of all tokens into
sequences of 1,025: inputs are the first 1,024, targets the last. There is no test split.
"""

import os
from pathlib import Path
from typing import Any

from attention.common import files
from workloads.base.errors import DataError
from workloads.storage.arrow_tokens import ArrowTokens

FOLDERS = {"train": "train", "validation": "val"}
VOCABULARY, LENGTH = 50_257, 1025
_SAMPLE = 32  # sequences


def open_split(data_dir: str | os.PathLike[str], split: str) -> ArrowTokens:
    """Returns the sequences of a split, each one token longer than the context.

    Raises DataError if they are absent or damaged.
    """
    return ArrowTokens(Path(data_dir) / FOLDERS[split], LENGTH, VOCABULARY, _repair(data_dir))


def check(data_dir: str | os.PathLike[str], full: bool = False) -> list[str]:
    """Returns a line per split. Raises DataError at the first thing amiss.

    With `full` every token is read, else those of a sample.
    """
    splits = {split: open_split(data_dir, split) for split in FOLDERS}
    for tokens in splits.values():
        for number in range(0, len(tokens), 1 if full else len(tokens) // _SAMPLE + 1):
            tokens[number]
    return [f"{split}: {len(tokens):,} sequences" for split, tokens in splits.items()]


def describe(data_dir: str | os.PathLike[str]) -> list[Any]:
    """Returns what tells the splits of a directory from others, as `ArrowTokens.describe`."""
    return [open_split(data_dir, split).describe() for split in FOLDERS]


def prepare(data_dir: str | os.PathLike[str], source: Any = None) -> Path:
    """Raises DataError: AlgoPerf prepares these data."""
    raise DataError(f"{data_dir}: AlgoPerf prepares the data of finewebedu_lm", _repair(data_dir))


def _repair(data_dir: str | os.PathLike[str]) -> str:
    return (
        "prepare it with AlgoPerf's `python3 datasets/dataset_setup.py --finewebedu`, and "
        "give the folder that holds `train` and `val` as data_dir; then run "
        f"python -m workloads check finewebedu_lm --data_dir={files.quoted(data_dir)}"
    )
