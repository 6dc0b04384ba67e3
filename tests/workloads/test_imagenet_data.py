"""ImageNet's directories, on a small directory of the same format with JPEGs of many sizes."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sweeps.study import jax_calls
from tests.workloads import data_files
from workloads.base import loader
from workloads.base.errors import DataError
from workloads.images import imagenet, images
from workloads.storage import tfrecord

SIZES = {"train": 48, "validation": 12, "test": 9}


def _examples(count: int, seed: int) -> list[dict[str, Any]]:
    """Photograph-like JPEGs from 30 to 500 pixels a side, among them very long ones."""
    generator = np.random.default_rng(seed)
    shapes = generator.integers(30, 500, (count, 2))
    shapes[:2] = (30, 500), (500, 31)
    examples = []
    for number, (height, width) in enumerate(shapes.tolist()):
        coarse = generator.integers(0, 256, (6, 6, 3), np.uint8)
        picture = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
        encoded = cv2.imencode(".jpg", picture)[1].tobytes()
        label = int(generator.integers(1000))
        examples.append({"image": encoded, "label": label, "file_name": f"n{number}.JPEG"})
    return examples


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("small")
    _write(data_dir)
    return data_dir


def _write(data_dir: Path, num_classes: int = 1000, **changes: list[dict[str, Any]]) -> None:
    examples = {role: _examples(size, size) for role, size in SIZES.items()}
    imagenet.write(
        data_dir, {**examples, **changes}, num_classes=num_classes, description="for the tests"
    )


@pytest.fixture
def sizes_of_the_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check, expecting the small directory's sizes."""
    monkeypatch.setattr(imagenet, "SIZES", SIZES)


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "copy"))


def test_training_views_of_every_shape_of_jpeg(small: Path) -> None:
    source = imagenet.open_split(small, "train")
    with loader.train_batches(
        source,
        seed=0,
        batch_size=16,
        transform=images.train_view,
    ) as stream:
        batches = [next(stream) for _ in range(3)]
    assert {batch["inputs"].shape for batch in batches} == {(16, 224, 224, 3)}
    labels = np.concatenate([batch["targets"] for batch in batches])
    assert sorted(labels) == sorted(source[number]["label"] for number in range(48))
    assert all(picture.std() > 0 for batch in batches for picture in batch["inputs"])


def test_a_label_out_of_range_is_refused(small: Path) -> None:
    split = imagenet.open_split(small, "test")
    label = split[8]["label"]
    with pytest.raises(DataError, match=f"example 8 has label {label}; 0 to {label - 1} are allo"):
        list(imagenet.checked(split, [8], label, decode=False))


NO_IMAGE = {"image": bytes(1000), "label": 3, "file_name": "none.JPEG"}


@pytest.mark.usefixtures("sizes_of_the_small")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda copy: _write(copy, test=_examples(8, 8)),
            "has 8 examples of 1000 classes; expected 9",
        ),
        (lambda copy: _write(copy, num_classes=1001), "of 1001 classes; expected 48 of 1000"),
        (
            lambda copy: _write(copy, test=[*_examples(4, 4), NO_IMAGE, *_examples(4, 5)]),
            r"'test': example 4: 1000 bytes .* no JPEG or PNG",
        ),
        (shutil.rmtree, "prepare imagenet_vit --data_dir=.*/copy"),
    ],
)
def test_other_data_is_refused(copy: Path, change: Callable[[Path], None], message: str) -> None:
    change(copy)
    with pytest.raises(DataError, match=message):
        imagenet.check(copy)


@pytest.mark.usefixtures("sizes_of_the_small")
def test_a_damaged_record_is_found_by_the_full_check(copy: Path) -> None:
    sampled = np.random.RandomState(0).choice(48, imagenet._SAMPLE, replace=False)
    number = next(n for n in range(48) if n not in sampled)
    shard = Path(imagenet.open_split(copy, "train").shards[0])
    data_files.flip(shard, tfrecord.TFRecordFile(shard).offsets[number] + 500)
    lines = imagenet.check(copy)
    assert [line.split(":")[0] for line in lines] == ["train", "validation", "test"]
    assert "48 examples" in lines[0]
    with pytest.raises(DataError, match=rf"00000-of-00001: record {number} at byte \d+ is cor"):
        imagenet.check(copy, full=True)


def test_roles_are_algoperfs_data_sets() -> None:
    """tests/workloads/test_catalog.py has their sizes."""
    assert imagenet.DATASETS == {
        "train": "imagenet2012:5.1.0",
        "validation": "imagenet2012:5.1.0",
        "test": "imagenet_v2/matched-frequency:3.0.0",
    }


def test_what_preparing_lacks_is_named(tmp_path: Path, small: Path) -> None:
    """Where the folder above AlgoPerf's is given, too."""
    shutil.copytree(small, tmp_path / "imagenet" / "jax")
    with pytest.raises(DataError, match=r"give --data_dir .*/imagenet/jax"):
        imagenet.check(tmp_path)
    (tmp_path / imagenet.TRAIN_TAR).touch()
    with pytest.raises(DataError, match=rf"{tmp_path}: ILSVRC2012_img_val\.tar missing"):
        imagenet.prepare(tmp_path, tmp_path)
    (tmp_path / imagenet.VALIDATION_TAR).touch()
    if importlib.util.find_spec("tensorflow") is None:
        with pytest.raises(DataError, match=r"pip install -e '\.\[tfds\]'"):
            imagenet.prepare(tmp_path, tmp_path)


@pytest.mark.usefixtures("sizes_of_the_small")
def test_the_driver_s_digest_is_that_of_the_shards_wherever_they_lie(
    copy: Path, tmp_path: Path
) -> None:
    """Another image in one shard, of as many examples, is another digest."""
    digest = jax_calls.data("imagenet_vit", str(copy))["digest"]
    assert len(digest) == 64
    moved = copy.rename(tmp_path / "moved")
    assert jax_calls.data("imagenet_vit", str(moved))["digest"] == digest
    for role, size in SIZES.items():
        other = tmp_path / role
        _write(other, **{role: _examples(size, size + 1)})
        assert jax_calls.data("imagenet_vit", str(other))["digest"] != digest
