"""Embedded small data: scikit-learn's handwritten digits in ImageNet's format.

1797 scans of 8 × 8 pixels (values 0 … 16; UCI "Optical Recognition of Handwritten Digits"),
enlarged to 32 × 32 RGB and written as PNG into the directories that `workloads.images.imagenet`
reads. One fixed permutation of the scans gives the roles, none of which share a scan: 997 to train,
400 to validate (choose hyperparameters and the step), 400 to test. What is evaluated of the
training set is a fixed subset of it (`workloads.base.sources.fixed_subset`).
"""

from pathlib import Path
from typing import Any

import cv2
import numpy as np

from workloads.images import image_set

IMAGE_SIZE = 32


class Digits(image_set.ImageSet):
    """The enlarged scans."""

    def examples(self, data_dir: Path, content: Any) -> image_set.Examples:
        return examples()


DIGITS = Digits(
    workload="digits_vit",
    note=(
        "Stand-in: scikit-learn's 1797 handwritten digits at 32 x 32, not ImageNet. Errors on it "
        "say nothing about ImageNet."
    ),
    sizes={"train": 997, "validation": 400, "test": 400},
    num_classes=10,
    image_size=IMAGE_SIZE,
    num_eval_train=400,
    # Measured on one CPU core, 1200 images: 0.38 s in batches of 16, 1.11 s in one of 400.
    eval_batch_size=16,
    max_shift=1,
    content_sha256="16f4c9f253479c4bb57586999594d78cddc3f7e421e34a18feed17706c067276",
)


def scans() -> dict[str, list[tuple[np.ndarray, int, int]]]:
    """The scans of each role: grey values, uint8 [8, 8], the digit and the scan's number."""
    from sklearn.datasets import load_digits

    data = load_digits()
    grey = np.rint(data.images * (255 / 16)).astype(np.uint8)
    # RandomState's stream is frozen (NEP 19), so the split is the same with every NumPy.
    order = np.random.RandomState(0).permutation(len(grey))
    ends = np.cumsum(list(DIGITS.sizes.values()))
    parts = dict(zip(DIGITS.sizes, np.split(order, ends[:-1]), strict=True))
    return {
        role: [(grey[i], int(data.target[i]), int(i)) for i in part] for role, part in parts.items()
    }


def examples() -> dict[str, list[dict[str, Any]]]:
    """The examples of each role, as `imagenet.write` takes them."""
    return {role: [_example(*scan) for scan in part] for role, part in scans().items()}


def _example(grey: np.ndarray, label: int, number: int) -> dict[str, Any]:
    # LINEAR_EXACT is integer arithmetic: the same pixels on every machine.
    large = cv2.resize(grey, (IMAGE_SIZE, IMAGE_SIZE), interpolation=cv2.INTER_LINEAR_EXACT)
    _, encoded = cv2.imencode(".png", cv2.cvtColor(large, cv2.COLOR_GRAY2BGR))
    return {"image": encoded.tobytes(), "label": label, "file_name": f"digit_{number:04d}.png"}
