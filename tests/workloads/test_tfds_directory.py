"""TFDS directories: written without TensorFlow, read by record, refused when not whole."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.workloads import data_files
from workloads.base.errors import DataError
from workloads.storage import tfds_directory, tfrecord

DATASET = "imagenet_v2/matched-frequency:3.0.0"
REPAIR = "run the repair command"
LAST = "imagenet_v2-train.tfrecord-00002-of-00003"


def _examples(count: int) -> list[dict[str, Any]]:
    pictures = np.random.default_rng(0).integers(0, 256, (count, 6, 5, 3), np.uint8)
    return [
        {
            "image": cv2.imencode(".png", picture)[1].tobytes(),
            "label": number % 7,
            "file_name": f"{number}.png",
        }
        for number, picture in enumerate(pictures)
    ]


EXAMPLES = _examples(20)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tfds_directory.directory_of(tmp_path / "data", DATASET)
    _write(directory)
    return directory


def _write(directory: Path, train: list[dict[str, Any]] = EXAMPLES) -> None:
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(encoding_format="png"),
            "label": tfds.features.ClassLabel(num_classes=7),
            "file_name": tfds.features.Text(),
        }
    )
    tfds_directory.write_dataset(
        directory,
        dataset=DATASET,
        splits={"train": train, "test": EXAMPLES[:5]},
        features=features,
        description="for the tests",
        shards={"train": 3, "test": 3},
    )


def _open(directory: Path, split: str = "train") -> Any:
    return tfds_directory.TfdsSplit(directory, split, dataset=DATASET, repair=REPAIR)


def test_the_library_opens_what_was_written(directory: Path) -> None:
    info = tfds.builder_from_directory(directory).info
    assert f"{info.name}/{info.config_name}:{info.version}" == DATASET
    assert info.splits["train"].shard_lengths == [7, 7, 6]
    assert info.splits["test"].num_examples == 5
    assert info.features["label"].num_classes == 7


def test_examples_come_back_by_number(directory: Path) -> None:
    split = _open(directory)
    assert len(split) == 20
    assert split.num_classes == 7
    order = np.random.default_rng(1).permutation(20).tolist()
    for number in order:
        assert split[number] == {k: EXAMPLES[number][k] for k in ("image", "label")}
    with pytest.raises(IndexError, match="example 20 asked, there are 20"):
        split[20]


def test_examples_are_what_the_library_parses(directory: Path) -> None:
    features = tfds.builder_from_directory(directory).info.features
    skip = {"image": tfds.decode.SkipDecoding()}
    split = _open(directory, "test")
    for number in range(len(split)):
        parsed = features.deserialize_example_np(split.serialized(number), decoders=skip)
        assert {k: parsed[k] for k in ("image", "label")} == split[number]
        assert parsed["file_name"] == EXAMPLES[number]["file_name"].encode()


def test_writing_again_replaces_what_is_there(directory: Path) -> None:
    (directory / "imagenet_v2-train.tfrecord-00001-of-00003").unlink()
    (directory / "imagenet_v2-train.tfrecord-00000-of-00001").touch()
    _write(directory)
    assert _open(directory)[19]["label"] == 5
    assert not (directory / "imagenet_v2-train.tfrecord-00000-of-00001").exists()


def test_what_is_half_written_is_refused(directory: Path) -> None:
    broken = [*EXAMPLES[:2], {**EXAMPLES[0], "label": 7}]
    with pytest.raises(ValueError, match="7"):
        _write(directory, broken)
    with pytest.raises(DataError, match="has no dataset_info.json"):
        _open(directory)


def _edit(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Returns what changes the content of a JSON file."""

    def edit(directory: Path) -> None:
        content = json.loads((directory / name).read_text())
        change(content)
        (directory / name).write_text(json.dumps(content))

    return edit


def _one_record_more(directory: Path) -> None:
    records = list(tfrecord.TFRecordFile(directory / LAST))
    tfrecord.write_tfrecord(directory / LAST, [*records, records[0]])


def _no_examples(directory: Path) -> None:
    shard = directory / "imagenet_v2-test.tfrecord-00000-of-00003"
    tfrecord.write_tfrecord(shard, [b"\xff" * shard.stat().st_size, b""])


JSON_DAMAGE = "dataset_info.json or features.json cannot be read"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "3.0.0: does not exist"),
        (lambda d: (d / "dataset_info.json").unlink(), "3.0.0: has no dataset_info.json"),
        (lambda d: (d / "dataset_info.json").write_text("{"), JSON_DAMAGE),
        (lambda d: (d / "features.json").write_text("{}"), JSON_DAMAGE),
        (lambda d: (d / LAST).unlink(), f"1 of 3 shards are missing: {LAST}"),
        (lambda d: data_files.cut(d / LAST), r"the shards have \d+ bytes together"),
        (
            _edit("dataset_info.json", lambda info: info.update(fileFormat="riegeli")),
            "'riegeli' cannot be read; tfrecord and array_record can",
        ),
        (
            _edit("dataset_info.json", lambda info: info.update(name="imagenet2012")),
            r"data set imagenet2012/matched-frequency:3\.0\.0, not imagenet_v2/matched",
        ),
        (
            _edit("dataset_info.json", lambda info: info["splits"].pop(0)),
            "it has: t",
        ),
        (
            _edit("features.json", lambda f: f["featuresDict"]["features"].pop("label")),
            "no feature 'label'",
        ),
        (_one_record_more, f"{LAST} has 7 records, .* says 6"),
        (_no_examples, r"'test': example 0 is no tf\.train\.Example"),
    ],
)
def test_a_directory_that_is_not_whole_is_refused(
    directory: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(directory)
    with pytest.raises(DataError, match=message) as caught:
        _ = _open(directory)[19], _open(directory, "test")[0]
    assert str(directory) in str(caught.value)
    assert REPAIR in str(caught.value)


def test_a_record_without_features_is_refused(directory: Path) -> None:
    _no_examples(directory)
    with pytest.raises(DataError, match="example 1 has 0 images and 0 labels"):
        _open(directory, "test")[1]


@pytest.fixture
def array_record_directory(directory: Path) -> Path:
    """The same data set with its shards in the other file format."""
    from array_record.python import array_record_module

    for path in sorted(directory.glob("*.tfrecord-*")):
        writer = array_record_module.ArrayRecordWriter(
            str(path).replace("tfrecord", "array_record"), "group_size:1"
        )
        for record in tfrecord.TFRecordFile(path):
            writer.write(record)
        writer.close()
        path.unlink()
    _edit("dataset_info.json", lambda info: info.update(fileFormat="array_record"))(directory)
    return directory


def test_array_record_is_read_alike(array_record_directory: Path) -> None:
    split = _open(array_record_directory)
    assert split.file_format == "array_record"
    sent = pickle.loads(pickle.dumps(split))
    for number in (19, 0, 7, 6):
        assert split[number] == {k: EXAMPLES[number][k] for k in ("image", "label")}
        assert sent[number] == split[number]


def test_a_damaged_array_record_never_goes_unnoticed(array_record_directory: Path) -> None:
    shard = array_record_directory / "imagenet_v2-train.array_record-00000-of-00003"
    whole = shard.read_bytes()
    noticed = 0
    for place in range(0, 2000, 61):  # the rest of the file is padding
        shard.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        split = _open(array_record_directory)
        try:
            images = [split[number]["image"] for number in range(7)]
        except DataError:
            noticed += 1
        else:
            assert images == [example["image"] for example in EXAMPLES[:7]]
    assert noticed > 20


def _forget_configuration(directory: Path) -> None:
    names = ("configName", "configDescription")
    _edit("dataset_info.json", lambda info: [info.pop(name, None) for name in names])(directory)


def test_the_place_says_the_configuration_of_a_data_set_prepared_before_2020(
    directory: Path, tmp_path: Path
) -> None:
    _forget_configuration(directory)
    assert _open(directory).dataset == DATASET
    for elsewhere in ("other/matched-frequency/3.0.0", "imagenet_v2/3.0.0"):
        copy = tmp_path / "elsewhere" / elsewhere
        shutil.copytree(directory, copy)
        with pytest.raises(DataError, match=r"this is data set imagenet_v2:3\.0\.0, not"):
            _open(copy)
    builder = tfds.builder_from_directory(directory)
    for shallow in ("/", "/data"):
        assert tfds_directory._full_name(builder, Path(shallow)) == "imagenet_v2:3.0.0"
