"""How init2winit's measurements.csv reads: its columns' names and ours. Standard library only.

Rows of training have no column of a split; rows of an evaluation have training's columns, too. An
evaluation's durations are since the one before it; `train_cost` is the mean cost since it.
"""

from typing import Any

META = "meta_data.json"
SPLITS = {"train": "train", "valid": "validation", "test": "test"}
ERROR_RATE = "error_rate"  # becomes an accuracy
NAMES = {ERROR_RATE: "accuracy", "ce_loss": "loss"}
LOGGED = {"train_cost": "loss"}
# Durations of each evaluation's row, in seconds, added up.
TIMES = {
    "run_time_no_eval": "accumulated_submission_time",
    "eval_time": "accumulated_eval_time",
    "run_time": "total_duration",
}


def is_of_a_split(column: str) -> bool:
    """Returns whether a column holds what was measured on a split of the data."""
    split, _, metric = column.partition("/")
    return bool(metric) and split in SPLITS


def our_name(column: str) -> str:
    """Returns our name of a column: 'valid/error_rate' is 'validation/accuracy'."""
    split, _, metric = column.partition("/")
    return f"{SPLITS[split]}/{NAMES.get(metric, metric)}" if metric else column


def our_value(column: str, value: Any) -> Any:
    """Returns what a column's number, or array of numbers, is by our name of it."""
    return 1 - value if column.endswith(f"/{ERROR_RATE}") else value
