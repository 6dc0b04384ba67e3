"""Small real data in the places and formats that init2winit reads, made of what is installed.

`mnist`: scikit-learn's 1797 handwritten digits, 28 × 28, as a TFDS directory of MNIST's features;
`wikitext2`: Python's own documentation as the three text files. Both are stand-ins: their tables
say nothing about MNIST or WikiText. init2winit's hyperparameters train_size, valid_size and
test_size must be those of `SIZES`.
"""

import os
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from workloads.base.errors import DataError
from workloads.storage import preparation, tfds_writer

# What init2winit's hyperparameters must say: it validates on the end of the split train.
SIZES = {"train_size": 997, "valid_size": 400, "test_size": 400}
NOTE = "Stand-in: scikit-learn's 1797 handwritten digits at 28 x 28, not MNIST"


def prepare(directory: str | os.PathLike[str], dataset: str) -> Path:
    """Writes the data for `dataset` below `directory`, which is `--data_dir`; returns that.

    The same files every time. Raises ValueError for another data set, DataError where data that
    this did not write are there.
    """
    if dataset not in _WRITERS:
        raise ValueError(
            f"no data for {dataset!r} can be made of what is installed; for {', '.join(_WRITERS)} "
            "it can"
        )
    path = Path(directory).absolute()
    path.mkdir(parents=True, exist_ok=True)
    with preparation.locked(path):
        _WRITERS[dataset](path)
    return path


def _write_mnist(path: Path) -> None:
    from sklearn.datasets import load_digits

    target = path / "mnist/3.0.1"
    info = target / "dataset_info.json"
    if target.exists() and (not info.is_file() or NOTE not in info.read_text("utf-8")):
        raise DataError(f"{target} holds other data; it is not replaced", "name a new directory")
    scans = load_digits()
    # RandomState's stream is frozen (NEP 19), so the split is the same with every NumPy.
    order = np.random.RandomState(0).permutation(len(scans.target))
    examples = [_example(scans.images[i], int(scans.target[i])) for i in order]
    test = SIZES["test_size"]
    tfds_writer.write_mnist(
        target, splits={"train": examples[:-test], "test": examples[-test:]}, description=NOTE
    )


def _example(scan: np.ndarray, label: int) -> dict[str, object]:
    grey = np.rint(scan * (255 / 16)).astype(np.uint8)
    # LINEAR_EXACT is integer arithmetic: the same pixels on every machine.
    large = cv2.resize(grey, (28, 28), interpolation=cv2.INTER_LINEAR_EXACT)
    return {"image": cv2.imencode(".png", large)[1].tobytes(), "label": label}


_WRITERS: dict[str, Callable[[Path], None]] = {"mnist": _write_mnist}
