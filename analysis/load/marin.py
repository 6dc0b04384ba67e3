"""Reads `speedrun_results.json`, which marin writes for each of its speedruns.

A file has a list of runs, to which marin gives one item: what was trained, for how long, and the
loss on Paloma's part of C4, in bits per byte. Files lie in folders such as
`adamw_llama_scaling/130m`.
"""

import pathlib
from collections.abc import Iterator
from typing import Any, TypedDict

import msgspec

from analysis.load import records, results
from attention.common import files

FILE = "speedrun_results.json"
LOSS = "eval/paloma/c4_en/bpb"
# Columns of results to a run's keys. `model_flops` are the model's operations for all tokens.
KEYS = {
    "value": LOSS,
    "budget_steps": "train_config.num_train_steps",
    "parameters": "model_size",
    "flops": "model_flops",
    "seconds": "training_time",
    "url": "wandb_run_link",
}


class Speedruns(TypedDict):
    """A file."""

    runs: list[dict[str, dict[str, Any]]]


def find(root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files in the directory `root` and at most four folders below, where the deepest
    of marin's are."""
    return sorted(path for level in range(5) for path in root.glob(f"{'*/' * level}{FILE}"))


def read(root: pathlib.Path, whole: bool = False) -> records.StudyRuns:
    """Returns the study of the speedruns in `root`."""
    return results.read_folders(root, "speedrun", find(root), _runs)


def _runs(path: pathlib.Path) -> Iterator[list[dict[str, Any]]]:
    """Yields the runs of a file. Raises ValueError for a file or run of another form."""
    for run in msgspec.convert(files.loads(path.read_bytes()), Speedruns)["runs"]:
        stated = records.flattened(run.get("run_info", {}))
        if LOSS not in stated:
            raise ValueError(f"a run has no run_info with {LOSS}")
        known = {column: x for column, key in KEYS.items() if (x := stated.get(key)) is not None}
        yield [{"metric": "bpb", **known}]
