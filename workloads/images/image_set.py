"""A small set of labelled images in ImageNet's format: written, checked, with reference rows.

Below `data_dir`: `NOTE`, the directories that `workloads.images.imagenet` reads, and
`reference.json`, written last: it marks the set as complete.
"""

import abc
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.base import sources
from workloads.base.errors import DataError
from workloads.images import imagenet, images
from workloads.storage import small_data, tfds_directory

Examples = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class ImageSet(small_data.SmallData):
    """A set of square images, and how they are read.

    sizes: examples by role (train, validation, test). image_size: pixels of a side. num_eval_train:
    training examples that are evaluated. max_shift: pixels by which training views are moved at
    most. grey: whether a decoded image is kept as one channel. content_sha256: expected result of
    `digest`; without it the first preparation decides. neighbours: training examples whose nearest
    other example is looked for; 0: all.
    """

    sizes: Mapping[str, int]
    num_classes: int
    image_size: int
    num_eval_train: int
    eval_batch_size: int
    content_sha256: str = ""
    max_shift: int = 0
    grey: bool = False
    neighbours: int = 0

    @property
    def names(self) -> list[str]:
        datasets = (imagenet.IMAGENET, imagenet.IMAGENET_V2)
        return [os.fspath(tfds_directory.directory_of("", dataset)) for dataset in datasets]

    @abc.abstractmethod
    def examples(self, data_dir: Path, content: Any) -> Examples:
        """Returns the examples of each role, as `imagenet.write` takes them."""

    def _examine(self, data_dir: Path) -> tuple[list[str], str]:
        splits = {role: self.open_split(data_dir, role) for role in self.sizes}
        digest = self.digest(splits)
        if digest != (self.content_sha256 or digest):
            raise DataError(
                f"{data_dir}: the images have SHA-256 {digest}, not {self.content_sha256}",
                self.repair(data_dir),
            )
        lines = [f"{role}: {source}, {len(source)} examples" for role, source in splits.items()]
        return lines, digest

    def digest(self, splits: Mapping[str, tfds_directory.TfdsSplit]) -> str:
        """SHA-256 over the splits: name, then every label (one byte) and its pixels, in order.

        Raises DataError for a record that is damaged, or no image, or has another label.
        """
        digest = hashlib.sha256()
        for role in sorted(splits):
            digest.update(role.encode())
            every = range(len(splits[role]))
            for record in imagenet.checked(splits[role], every, self.num_classes, decode=True):
                digest.update(bytes([record["label"]]))
                digest.update(record["image"].tobytes())
        return digest.hexdigest()

    def open_split(self, data_dir: str | os.PathLike[str], role: str) -> tfds_directory.TfdsSplit:
        """Returns the examples of a role. Raises DataError if they are not as many, or others."""
        source = imagenet.open_split(data_dir, role, self.repair(data_dir))
        if (len(source), source.num_classes) != (self.sizes[role], self.num_classes):
            raise source.error(
                f"has {len(source)} examples of {source.num_classes} classes; expected "
                f"{self.sizes[role]} of {self.num_classes}"
            )
        return source

    def _write(self, data_dir: Path, content: Any) -> dict[str, Any]:
        imagenet.write(
            data_dir,
            self.examples(data_dir, content),
            num_classes=self.num_classes,
            encoding="png",
            description=self.note,
        )
        return {"rows": self._rows({role: self.open_split(data_dir, role) for role in self.sizes})}

    def _rows(self, splits: Mapping[str, sources.Source]) -> list[dict[str, Any]]:
        """Errors (fractions) of one nearest neighbour, on train of its nearest other example, and
        of the most frequent class of train, always."""
        from sklearn.neighbors import NearestNeighbors

        train = splits["train"]
        asked = {**splits, "train": sources.fixed_subset(train, self.neighbours or len(train))}
        pixels, labels = arrays(train)
        finder = NearestNeighbors().fit(pixels)
        frequent = int(np.bincount(labels).argmax())
        neighbour: dict[str, Any] = {"name": "1 nearest neighbour, raw pixels"}
        constant: dict[str, Any] = {"name": f"always {frequent}", "constant": True}
        for role, source in asked.items():
            itself = int(role == "train")
            points, truth = arrays(source)
            nearest = finder.kneighbors(points, 1 + itself, return_distance=False)[:, itself]
            neighbour[f"{role}/error"] = float(np.mean(labels[nearest] != truth))
            constant[f"{role}/error"] = float(np.mean(truth != frequent))
        return [neighbour, constant]


def arrays(source: sources.Source) -> tuple[np.ndarray, np.ndarray]:
    """Pixels of one channel, float32 `[N, H·W]`, and labels, int64 `[N]`."""
    records = [source[number] for number in range(len(source))]
    pixels = np.stack([images.decode(record["image"])[..., 0].ravel() for record in records])
    return pixels.astype(np.float32), np.array([record["label"] for record in records])
