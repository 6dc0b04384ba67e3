"""A small set of labelled images in ImageNet's format: written, checked, with reference rows.

Below `data_dir`: `NOTE`, the directories that `workloads.images.imagenet` reads, and
`reference.json`, written last: it marks the set as complete.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.base import sources
from workloads.base.sources import Source
from workloads.images import imagenet, images
from workloads.storage import preparation, tfds_directory

Examples = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class ImageSet:
    """A set of square images, and how they are read.

    note: the warning that tables print; sizes: examples by role (train, validation, test);
    repair: returns the commands that make the data in a directory; examples: returns those of each
    role, as `imagenet.write` takes them, None where `prepare` needs what was downloaded.
    image_size: pixels of a side. num_eval_train: training examples that are evaluated. max_shift:
    pixels by which training views are moved at most. grey: whether a decoded image is kept as one
    channel.
    content_sha256: expected result of `digest`; without one, that of the first preparation.
    neighbours: training examples whose nearest other example is looked for; 0: all.
    """

    note: str
    sizes: Mapping[str, int]
    num_classes: int
    image_size: int
    repair: Callable[[str | os.PathLike[str]], str]
    num_eval_train: int
    eval_batch_size: int
    examples: Callable[[], Examples] | None = None
    max_shift: int = 0
    grey: bool = False
    content_sha256: str = ""
    neighbours: int = 0

    def prepare(
        self,
        data_dir: str | os.PathLike[str],
        examples: Callable[[], Examples] | None = None,
    ) -> Path:
        """Writes the data below `data_dir` unless it is there and whole; returns `data_dir`.

        examples: as the field, which is the default.
        The same libraries give the same bytes. Two preparations at once wait for each other. Raises
        DataError where the directories hold anything else, and as `examples` does.
        """
        return preparation.prepare_once(
            data_dir,
            self.check,
            lambda directory: self._write(directory, examples or self.examples),
        )

    def check(self, data_dir: str | os.PathLike[str], full: bool = True) -> list[str]:
        """Reads and decodes everything, always; returns a line per split and the content's hash.

        Raises DataError at the first thing that is not as expected.
        """
        del full
        splits = {role: self._open(data_dir, role) for role in self.sizes}
        expected = self.read_reference(data_dir)["sha256"]
        digest = self.digest(splits)
        preparation.check_digest(data_dir, "the images", digest, expected, self.repair(data_dir))
        lines = [f"{role}: {source}, {len(source)} examples" for role, source in splits.items()]
        return [*lines, f"SHA-256 of all images and labels: {digest}"]

    def read_reference(self, data_dir: str | os.PathLike[str]) -> dict[str, Any]:
        """Returns `reference.json`: `note`, and `rows` of errors (fractions) by simple methods; and
        `sha256`, which `check` compares with the content."""
        record = preparation.read_reference(data_dir, self.repair(data_dir))
        return {**record, "sha256": self.content_sha256 or record.get("sha256", "")}

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

    def _open(self, data_dir: str | os.PathLike[str], role: str) -> tfds_directory.TfdsSplit:
        source = imagenet.open_split(data_dir, role, self.repair(data_dir))
        if (len(source), source.num_classes) != (self.sizes[role], self.num_classes):
            raise source.error(
                f"has {len(source)} examples of {source.num_classes} classes; expected "
                f"{self.sizes[role]} of {self.num_classes}"
            )
        return source

    def _write(self, data_dir: Path, examples: Any) -> None:
        datasets = (imagenet.IMAGENET, imagenet.IMAGENET_V2)
        folders = [os.fspath(tfds_directory.directory_of("", dataset)) for dataset in datasets]
        preparation.claim(data_dir, self.note, [preparation.REFERENCE_FILE, *folders])
        imagenet.write(
            data_dir,
            examples(),
            num_classes=self.num_classes,
            encoding="png",
            description=self.note,
        )
        splits = {
            role: imagenet.open_split(data_dir, role, self.repair(data_dir)) for role in self.sizes
        }
        digest = self.content_sha256 or self.digest(splits)
        preparation.write_reference(data_dir, self.note, self._rows(splits), sha256=digest)

    def _rows(self, splits: Mapping[str, Source]) -> list[dict[str, Any]]:
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


def arrays(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Pixels of one channel, float32 `[N, H·W]`, and labels, int64 `[N]`."""
    records = [source[number] for number in range(len(source))]
    pixels = np.stack([images.decode(record["image"])[..., 0].ravel() for record in records])
    return pixels.astype(np.float32), np.array([record["label"] for record in records])
