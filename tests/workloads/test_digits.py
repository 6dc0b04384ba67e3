"""The embedded digits: prepared whole, and the same everywhere."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from workloads.base.errors import DataError
from workloads.images import digits, imagenet, images

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def prepared(made_once: Callable[..., Path]) -> Path:
    return made_once("digits", digits.DIGITS.prepare)


def test_every_scan_plays_one_role(prepared: Path) -> None:
    from sklearn.datasets import load_digits

    scans = load_digits()
    sources = [imagenet.open_split(prepared, role) for role in ("train", "validation", "test")]
    assert [len(source) for source in sources] == [997, 400, 400]
    order = np.random.RandomState(0).permutation(1797)
    records = [record for source in sources for record in source]
    for scan, record in zip(order, records, strict=True):
        assert record["label"] == scans.target[scan]
        picture = images.decode(record["image"])
        # The corners of an enlarged picture are the corners of the scan, 16 being white.
        corner = round(float(scans.images[scan][0, 0]) * 255 / 16)
        assert picture.shape == (32, 32, 3)
        assert (picture[0, 0] == corner).all()


def test_reference_rows_are_the_nearest_neighbour_s_and_the_most_frequent_class_s(
    prepared: Path,
) -> None:
    assert digits.DIGITS.content_sha256 in digits.DIGITS.check(prepared)[3]
    row, constant = digits.DIGITS.read_reference(prepared).rows
    assert row == {
        "name": "1 nearest neighbour, raw pixels",
        "train/error": 17 / 997,
        "validation/error": 8 / 400,
        "test/error": 5 / 400,
    }
    assert (constant["name"], constant["constant"]) == ("always 5", True)
    assert 0.85 < constant["train/error"] < 0.9


def test_other_images_are_found_by_their_hash(prepared: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(prepared, tmp_path / "copy")
    examples = digits.examples()
    examples["test"][7]["label"] = (examples["test"][7]["label"] + 1) % 10
    note = digits.DIGITS.note
    imagenet.write(copy, examples, num_classes=10, description=note, encoding="png")
    with pytest.raises(DataError, match=r"the images have SHA-256 .*, not 16f4c9f2"):
        digits.DIGITS.check(copy)
