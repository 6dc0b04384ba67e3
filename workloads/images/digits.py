"""The embedded stand-in for ImageNet: scikit-learn's handwritten digits in ImageNet's format.

1797 scans of 8 × 8 pixels (values 0 … 16; UCI "Optical Recognition of Handwritten Digits"),
enlarged to 32 × 32 RGB and written as PNG into the directories that `workloads.images.imagenet`
reads. One fixed permutation of the scans gives the roles, none of which share a scan: 997 to train,
400 to validate (choose hyperparameters and the step), 400 to test. What is evaluated of the
training set is a fixed subset of it (`workloads.base.sources.fixed_subset`).
"""

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from attention import files
from workloads.base.errors import DataError
from workloads.base.sources import Source
from workloads.images import imagenet, images
from workloads.storage import preparation, tfds_directory

NUM_CLASSES = 10
IMAGE_SIZE = 32
SIZES = {"train": 997, "validation": 400, "test": 400}
NOTE = (
    "Stand-in: scikit-learn's 1797 handwritten digits at 32 x 32, not ImageNet. Errors on it say "
    "nothing about ImageNet."
)
# Of pixels and labels, split by split, whatever library encoded them.
CONTENT_SHA256 = "16f4c9f253479c4bb57586999594d78cddc3f7e421e34a18feed17706c067276"
_PERMUTATION_SEED = 0
_repair = functools.partial(preparation.repair, "digits_vit")


def prepare(data_dir: str | os.PathLike[str]) -> Path:
    """Write the data below `data_dir` unless it is there and whole; returns `data_dir`.

    Every directory appears whole or not at all; `reference.json`, written last, says that all of
    it is there. The same libraries give the same bytes. Two preparations at once wait for each
    other. Raises DataError where the directories hold anything but these digits.
    """
    return preparation.prepare_once(data_dir, check, _write)


def check(data_dir: str | os.PathLike[str]) -> list[str]:
    """Read and decode everything; one line per split, DataError at the first thing amiss."""
    sources = {role: _open(data_dir, role) for role in SIZES}
    digest = content_sha256(sources)
    stored = read_reference(data_dir).get("sha256")
    preparation.check_digest(data_dir, "the images", digest, stored, _repair(data_dir))
    if digest != CONTENT_SHA256:
        raise DataError(
            f"{data_dir}: the images have SHA-256 {digest}, but this version says {CONTENT_SHA256}",
            _repair(data_dir),
        )
    sizes = (f"{role}: {source}, {len(source)} examples" for role, source in sources.items())
    return [*sizes, f"SHA-256 of all images and labels: {digest}"]


def read_reference(data_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """`reference.json`: `note`, `rows` of errors (fractions) by simple methods, `sha256`."""
    return preparation.read_reference(data_dir, _repair(data_dir))


def content_sha256(sources: Mapping[str, Source]) -> str:
    """SHA-256 over the splits: name, then every label (one byte) and its pixels, in order."""
    digest = hashlib.sha256()
    for role in sorted(sources):
        digest.update(role.encode())
        for number in range(len(sources[role])):
            record = sources[role][number]
            digest.update(bytes([record["label"]]))
            digest.update(images.decode(record["image"]).tobytes())
    return digest.hexdigest()


def _open(data_dir: str | os.PathLike[str], role: str) -> Source:
    source = imagenet.open_split(data_dir, role, _repair(data_dir))
    if (len(source), source.num_classes) != (SIZES[role], NUM_CLASSES):
        raise source.error(
            f"has {len(source)} examples of {source.num_classes} classes; the digits have "
            f"{SIZES[role]} of {NUM_CLASSES}"
        )
    imagenet.check_examples(source, range(len(source)), NUM_CLASSES, decode=True)
    return source


def _write(data_dir: Path) -> None:
    for dataset in (imagenet.IMAGENET, imagenet.IMAGENET_V2):
        _refuse_to_replace_others(data_dir, tfds_directory.directory_of(data_dir, dataset))
    imagenet.write(data_dir, _examples(), num_classes=NUM_CLASSES, encoding="png", description=NOTE)
    sources = {role: imagenet.open_split(data_dir, role, _repair(data_dir)) for role in SIZES}
    reference = {"note": NOTE, "rows": _rows(sources), "sha256": content_sha256(sources)}
    files.write(data_dir / preparation.REFERENCE_FILE, json.dumps(reference, indent=2) + "\n")


def _refuse_to_replace_others(data_dir: Path, directory: Path) -> None:
    """DataError unless the directory is absent, empty, or digits that were prepared before."""
    if not directory.exists() or not preparation.visible(directory):
        return
    description = None
    # The digits' own reference, written last, says it too, if the first is cut short.
    info = (directory / "dataset_info.json", "description")
    for path, key in (info, (data_dir / preparation.REFERENCE_FILE, "note")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            description = description or json.loads(path.read_bytes())[key]
    if description != NOTE:
        raise DataError(
            f"{directory} holds something other than the digits; it is not replaced",
            "choose another folder: python -m workloads prepare digits_vit --data_dir FOLDER; or, "
            f"if nothing in it is needed, remove {directory}",
        )


def _examples() -> dict[str, list[dict[str, Any]]]:
    """The examples of each role, as `tfds_writer` takes them."""
    from sklearn.datasets import load_digits

    scans = load_digits()
    # RandomState's stream is frozen (NEP 19), so the split is the same with every NumPy.
    order = np.random.RandomState(_PERMUTATION_SEED).permutation(len(scans.target))
    ends = np.cumsum(list(SIZES.values()))
    parts = dict(zip(SIZES, np.split(order, ends[:-1]), strict=True))
    return {
        role: [_example(scans.images[i], int(scans.target[i]), int(i)) for i in part]
        for role, part in parts.items()
    }


def _example(scan: np.ndarray, label: int, number: int) -> dict[str, Any]:
    grey = np.rint(scan * (255 / 16)).astype(np.uint8)
    # LINEAR_EXACT is integer arithmetic: the same pixels on every machine.
    large = cv2.resize(grey, (IMAGE_SIZE, IMAGE_SIZE), interpolation=cv2.INTER_LINEAR_EXACT)
    _, encoded = cv2.imencode(".png", cv2.cvtColor(large, cv2.COLOR_GRAY2BGR))
    return {"image": encoded.tobytes(), "label": label, "file_name": f"digit_{number:04d}.png"}


def _rows(sources: Mapping[str, Source]) -> list[dict[str, Any]]:
    """Errors (fractions) of one nearest neighbour, on train of its nearest other example, and of
    the most frequent class of train, always."""
    from sklearn.neighbors import NearestNeighbors

    pixels, labels = zip(*(_arrays(sources[role]) for role in SIZES), strict=True)
    finder = NearestNeighbors().fit(pixels[0])
    row: dict[str, Any] = {"name": "1 nearest neighbour, raw pixels"}
    for role, points, truth in zip(SIZES, pixels, labels, strict=True):
        itself = int(role == "train")
        nearest = finder.kneighbors(points, 1 + itself, return_distance=False)[:, itself]
        row[f"{role}/error"] = float(np.mean(labels[0][nearest] != truth))
    frequent = int(np.bincount(labels[0]).argmax())
    errors = {
        f"{role}/error": float(np.mean(truth != frequent))
        for role, truth in zip(SIZES, labels, strict=True)
    }
    return [row, {"name": f"always {frequent}", "constant": True, **errors}]


def _arrays(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Pixels float32 `[N, 32·32·3]` and labels int64 `[N]`."""
    records = [source[number] for number in range(len(source))]
    pixels = np.stack([images.decode(record["image"]).ravel() for record in records])
    return pixels.astype(np.float32), np.array([record["label"] for record in records])
