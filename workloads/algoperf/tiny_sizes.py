"""Evaluations of fabricated data: as many examples as there are, and no more."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Written beside the data by `workloads.algoperf.tiny_data`.
MARKER = "attnperf_tiny_data.json"
# The number of devices must divide a batch (submission_runner.py): this, rounded up to that.
# AlgoPerf's own are 128 to 2048.
EVAL_BATCH_SIZE = 4


def read(directory: str | os.PathLike[str]) -> dict[str, dict[str, int]]:
    """Returns the sizes of the splits that are fabricated, by workload; {} without a marker.

    Raises ValueError, naming the file, for one that is damaged.
    """
    path = Path(directory) / MARKER
    try:
        sizes: dict[str, dict[str, int]] = json.loads(path.read_text("utf-8"))["sizes"]
        if not all(isinstance(size, int) for splits in sizes.values() for size in splits.values()):
            raise ValueError("sizes are numbers")
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError) as damage:
        raise ValueError(
            f"{path} is damaged, or of an earlier version ({damage!r}); make the data again with "
            "`python -m workloads algoperf_data` in a new directory"
        ) from damage
    return sizes


def read_sizes(directory: str | os.PathLike[str], workload: str) -> dict[str, int] | None:
    """Returns the number of examples by split, or None where the workload's data is not fabricated.

    `workload` is AlgoPerf's name; variants of a workload read the data of the first. Raises
    ValueError as `read`.
    """
    by_workload = read(directory).items()
    return next((sizes for base, sizes in by_workload if workload.startswith(base)), None)


def check_batch(size: int, sizes: Mapping[str, int], what_to_do: str) -> None:
    """Raises ValueError for a batch larger than the fabricated training split.

    AlgoPerf repeats the split to fill it: 1024 images through its ViT take over 22 GB.
    """
    if size > sizes["train"]:
        raise ValueError(
            f"a batch of {size} examples, and the fabricated data has {sizes['train']} to train "
            f"on: {what_to_do}"
        )


def with_sizes(workload: Any, sizes: Mapping[str, int]) -> Any:
    """Returns `workload` itself, which now evaluates `sizes` examples instead of the real numbers.

    `sizes` gives the examples of `train`, `validation` and `test`; the training split is evaluated
    on as many as the validation split, as in AlgoPerf, rounded up to whole batches: imagenet_vit
    repeats that split to fill them and divides by the number. `attnperf_tiny` is True, and reaches
    meta_data_0.json with the numbers. Targets, step hint and times stay AlgoPerf's.
    """
    import jax

    devices = jax.local_device_count()
    batch = -(-EVAL_BATCH_SIZE // devices) * devices
    members = {
        "attnperf_tiny": True,
        "eval_batch_size": batch,
        "num_train_examples": sizes["train"],
        "num_eval_train_examples": -(-sizes["validation"] // batch) * batch,
        "num_validation_examples": sizes["validation"],
        "num_test_examples": sizes["test"],
    }
    workload.__class__ = subclass(type(workload), members)
    return workload


def subclass(base: Any, members: Mapping[str, Any]) -> Any:
    """Returns a subclass of the same name, with these members beside its own."""
    about = {"__module__": base.__module__, "__doc__": base.__doc__}
    return type(base)(base.__name__, (base,), {**about, **members})
