"""TFDS directories: written without TensorFlow, read by record, refused when not whole."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.workloads import data_files
from tests.workloads.small_directories import EXAMPLES, PICTURES, open_pictures, write_pictures
from workloads.base.errors import DataError
from workloads.storage import tfds_directory, tfrecord


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "data")


def test_examples_come_back_by_number_as_the_library_parses_them(directory: Path) -> None:
    split = open_pictures(directory)
    assert len(split) == 20
    assert split.num_classes == 7
    info = tfds.builder_from_directory(directory).info
    assert f"{info.name}/{info.config_name}:{info.version}" == PICTURES
    assert info.splits["train"].shard_lengths == [7, 7, 6]
    features = info.features
    skip = {"image": tfds.decode.SkipDecoding()}
    for number in np.random.default_rng(1).permutation(20).tolist():
        image_and_label = {name: EXAMPLES[number][name] for name in ("image", "label")}
        assert split[number] == image_and_label
        parsed = features.deserialize_example_np(split.serialized(number), decoders=skip)
        assert parsed == {**image_and_label, "file_name": f"{number}.png".encode()}
    with pytest.raises(IndexError, match="example 20 asked, there are 20"):
        split[20]


def test_writing_again_replaces_what_is_there(directory: Path, tmp_path: Path) -> None:
    (directory / "imagenet_v2-train.tfrecord-00001-of-00003").unlink()
    (directory / "imagenet_v2-train.tfrecord-00000-of-00001").touch()
    write_pictures(tmp_path / "data")
    assert open_pictures(directory)[19]["label"] == 5
    assert not (directory / "imagenet_v2-train.tfrecord-00000-of-00001").exists()


def test_what_is_half_written_is_refused(directory: Path, tmp_path: Path) -> None:
    broken = [*EXAMPLES[:2], {**EXAMPLES[0], "label": 7}]
    with pytest.raises(ValueError, match="7"):
        write_pictures(tmp_path / "data", broken)
    with pytest.raises(DataError, match="has no dataset_info.json"):
        open_pictures(directory)


def test_array_record_is_read_alike_and_its_damage_noticed(directory: Path) -> None:
    from array_record.python import array_record_module

    for path in sorted(directory.glob("*.tfrecord-*")):
        writer = array_record_module.ArrayRecordWriter(
            str(path).replace("tfrecord", "array_record"), "group_size:1"
        )
        for record in tfrecord.TFRecordFile(path):
            writer.write(record)
        writer.close()
        path.unlink()
    edit = data_files.edited(lambda info: info.update(fileFormat="array_record"))
    edit(directory / "dataset_info.json")
    split = open_pictures(directory)
    assert split.file_format == "array_record"
    sent = pickle.loads(pickle.dumps(split))
    for number in (19, 0, 7, 6):
        assert split[number] == {k: EXAMPLES[number][k] for k in ("image", "label")}
        assert sent[number] == split[number]
    data_files.flip(directory / "imagenet_v2-train.array_record-00000-of-00003", 100)
    with pytest.raises(DataError, match="record 0 cannot be read"):
        open_pictures(directory)[0]


def test_the_place_says_the_configuration_of_a_data_set_prepared_before_2020(
    directory: Path, tmp_path: Path
) -> None:
    for name in ("configName", "configDescription"):
        forget = data_files.edited(lambda info, name=name: info.pop(name, None))
        forget(directory / "dataset_info.json")
    assert open_pictures(directory).dataset == PICTURES
    for elsewhere in ("other/matched-frequency/3.0.0", "imagenet_v2/3.0.0"):
        copy = tmp_path / "elsewhere" / elsewhere
        shutil.copytree(directory, copy)
        with pytest.raises(DataError, match=r"this is data set imagenet_v2:3\.0\.0, not"):
            open_pictures(copy)
    builder = tfds.builder_from_directory(directory)
    for shallow in ("/", "/data"):
        assert tfds_directory._full_name(builder, Path(shallow)) == "imagenet_v2:3.0.0"
