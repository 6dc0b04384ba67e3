"""Fashion-MNIST in ImageNet's format: photographs of clothes, 28 × 28 grey pixels, 10 classes.

60,000 images to train and 10,000 to test (arXiv:1708.07747). One fixed permutation of the former
gives 55,000 to train and 5,000 to validate. The images are not in this package: `prepare` reads
the four IDX files of Debian's package dataset-fashion-mnist, which other libraries download, too,
and checks their SHA-256. An IDX file is a header of 4 bytes and 4 for each axis, then uint8.
"""

import gzip
import hashlib
import os
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from attention.common import files
from workloads.base.errors import DataError, repair_commands
from workloads.images import image_set

IMAGE_SIZE = 28
LICENSE_FILE = "LICENSE-fashion-mnist"
# The largest of the four files has 47 MB.
_MOST_BYTES = 2**26

# SHA-256 of the files before compression.
FILES = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


class FashionMnist(image_set.ImageSet):
    """The set of images, prepared from the files."""

    is_downloaded = True

    def repair(self, data_dir: str | os.PathLike[str]) -> str:
        """Returns where the images are found, and the command that prepares them."""
        return (
            "`make data-fashion` prepares the default folder on Debian and Ubuntu. Elsewhere, get "
            f"a folder with {', '.join(FILES)}, with or without .gz, such as FashionMNIST/raw; or "
            "unpack the Debian package dataset-fashion-mnist by `dpkg-deb -x`, or by `ar x` and "
            "`tar xf`, and take its usr/share/datasets/fashion-mnist. Then run: "
            + repair_commands(self.workload, data_dir, "FOLDER")
        )

    def _read(self, source: Any, data_dir: Path) -> list[np.ndarray]:
        return read(source, self.repair(data_dir))

    def examples(self, data_dir: Path, content: Any) -> image_set.Examples:
        files.write(data_dir / LICENSE_FILE, _LICENSE)
        return examples(*content)


FASHION = FashionMnist(
    workload="fashion_vit",
    note=(
        "Small: Fashion-MNIST, grey photographs of clothes at 28 x 28, not ImageNet. Errors on it "
        "say nothing about ImageNet."
    ),
    sizes={"train": 55_000, "validation": 5_000, "test": 10_000},
    num_classes=10,
    image_size=IMAGE_SIZE,
    num_eval_train=5_000,
    # Measured on one CPU core, 10,000 images: 0.48 s in batches of 100, 0.53 s in batches of 50 or
    # 500.
    eval_batch_size=100,
    grey=True,
    content_sha256="81274f5ffb51a3c753724fb4db3f514b197bb3d251ffac951821ac2e7a442700",
    neighbours=5_000,
)


def read(source: Path, repair: str = "") -> list[np.ndarray]:
    """Returns the arrays of FILES, uint8, in their order.

    source: a folder with the files, compressed by gzip or not. If a file is there in both forms,
    both are checked. Raises DataError naming the file that is missing, damaged or another one.
    """
    if not source.is_dir():
        raise DataError(f"there is no folder {source}", repair)
    arrays: dict[str, np.ndarray] = {}
    for path in filter(Path.is_file, sorted(source.iterdir())):
        name = path.name.removesuffix(".gz").replace(".idx", "-idx")
        if name in FILES:
            arrays[name] = _array(path, name, repair)
    if missing := [name for name in FILES if name not in arrays]:
        raise DataError(f"{source} lacks {', '.join(missing)}", repair)
    return [arrays[name] for name in FILES]


def _array(path: Path, name: str, repair: str) -> np.ndarray:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            content: bytes = file.read(_MOST_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise DataError(f"{path} is cut short or damaged: {problem}", repair) from problem
    digest = hashlib.sha256(content).hexdigest()
    if digest != FILES[name]:
        raise DataError(
            f"{path} is not Fashion-MNIST's {name}: its SHA-256 is {digest}, not {FILES[name]}; "
            "MNIST's digits come in files of the same names and sizes",
            repair,
        )
    axes = content[3]
    shape = np.frombuffer(content, ">u4", axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def examples(
    train_images: np.ndarray,
    train_labels: np.ndarray,
    test_images: np.ndarray,
    test_labels: np.ndarray,
) -> dict[str, list[dict[str, Any]]]:
    """The examples of each role, as `imagenet.write` takes them."""
    # RandomState's stream is frozen (NEP 19), so the split is the same with every NumPy.
    order = np.random.RandomState(0).permutation(len(train_labels)).tolist()
    size = FASHION.sizes["train"]
    return {
        "train": [_example("train", train_images, train_labels, n) for n in order[:size]],
        "validation": [_example("train", train_images, train_labels, n) for n in order[size:]],
        "test": [_example("test", test_images, test_labels, n) for n in range(len(test_labels))],
    }


def _example(part: str, images: np.ndarray, labels: np.ndarray, number: int) -> dict[str, Any]:
    _, encoded = cv2.imencode(".png", images[number])
    return {
        "image": encoded.tobytes(),
        "label": int(labels[number]),
        "file_name": f"{part}_{number:05d}.png",
    }


_LICENSE = """Fashion-MNIST, https://github.com/zalandoresearch/fashion-mnist

The MIT License (MIT)

Copyright (c) 2017 Zalando SE, https://tech.zalando.com

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or
substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
