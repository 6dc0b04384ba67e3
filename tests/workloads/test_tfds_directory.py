"""TFRecord files and TFDS directories: framing, checksums, the index, what is refused."""

import io
import logging
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attention.common import machine
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


# What TensorFlow 2.21's TFRecordWriter wrote for the records b"abc" and b"".
WRITTEN_BY_TENSORFLOW = bytes.fromhex(
    "0300000000000000b099490e6162636e57f121000000000000000029039807d8ea82a2"
)
RECORDS = [b"abc", b"", bytes(range(256)) * 3, b"last"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tfrecord.write_tfrecord(tmp_path / "some.tfrecord", RECORDS)
    return tmp_path / "some.tfrecord"


def _read(path: Path) -> list[bytes]:
    return list(tfrecord.TFRecordFile(path))


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_files_are_the_bytes_that_tensorflow_writes(tmp_path: Path) -> None:
    """Where the name is none that the locale can read: `é` as Python has it under LC_ALL=C."""
    # CRC-32C of "123456789" is 0xE3069283 (the check value of the Castagnoli polynomial); rotated
    # right by 15 bits it is 0x2507C60D, and adding 0xA282EAD8 gives 0xC78AB0E5.
    assert tfrecord.masked_crc32c(b"123456789") == 0xC78AB0E5
    path = tmp_path / os.fsdecode(b"\xff\xe9.tfrecord")
    tfrecord.write_tfrecord(path, [b"abc", b""])
    assert path.read_bytes() == WRITTEN_BY_TENSORFLOW
    assert list(tmp_path.iterdir()) == [path]
    assert _read(path) == [b"abc", b""]
    assert list(machine.cache_folder().rglob("*.npy"))


def test_records_come_back_by_number_in_any_order(path: Path) -> None:
    file = tfrecord.TFRecordFile(path)
    assert len(file) == 4
    assert [file[number] for number in (3, 0, 2, 1)] == [b"last", b"abc", RECORDS[2], b""]
    np.testing.assert_array_equal(file.offsets, [0, 19, 35, 35 + 768 + 16, path.stat().st_size])
    with pytest.raises(IndexError, match="record 4 asked, the file has 4"):
        file[4]
    assert list(pickle.loads(pickle.dumps(file))) == RECORDS


@given(place=st.integers(0, 10**6), change=st.integers(1, 255))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_never_goes_unnoticed(tmp_path: Path, place: int, change: int) -> None:
    path = tmp_path / "changed.tfrecord"
    tfrecord.write_tfrecord(path, RECORDS)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= change
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"changed\.tfrecord: record \d at byte \d+"):
        _read(path)


@given(size=st.integers(0, 10**6))
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_cut_file_is_noticed_unless_cut_between_records(tmp_path: Path, size: int) -> None:
    path = tmp_path / "cut.tfrecord"
    tfrecord.write_tfrecord(path, RECORDS)
    ends = tfrecord.scan_offsets(str(path)).tolist()
    size %= ends[-1]
    os.truncate(path, size)
    if size in ends:
        assert _read(path) == RECORDS[: ends.index(size)]
    else:
        with pytest.raises(DataError, match=r"record \d at byte \d+ is cut off"):
            tfrecord.scan_offsets(str(path))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**45])
@pytest.mark.parametrize(
    "read", [tfrecord.scan_offsets, lambda path: list(tfrecord.stream(path)), _read]
)
def test_a_length_beyond_the_file_is_named(
    path: Path, length: int, read: Callable[[str], object]
) -> None:
    """Its checksum is right."""
    stated = struct.pack("<Q", length)
    header = tfrecord.HEADER.pack(length, tfrecord.masked_crc32c(stated))
    path.write_bytes(header + bytes(100))
    with pytest.raises(DataError, match="record 0 at byte 0 is cut off"):
        read(str(path))


def test_a_file_changed_behind_a_cached_index_is_noticed(path: Path) -> None:
    assert _read(path)[0] == b"abc"
    tfrecord.write_tfrecord(path, [b"xyz", *RECORDS[1:]])
    assert _read(path)[0] == b"xyz"
    status = path.stat()
    swapped = [*RECORDS[:2], RECORDS[3], RECORDS[2]]
    path.write_bytes(b"".join(map(tfrecord.framed, swapped)))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(DataError, match="record 2 at byte 35 has a length other than"):
        _read(path)


@pytest.mark.parametrize(
    "damage", [b"", b"not an array", b"\x93NUMPY", _npy(np.zeros(0, np.int64)), _npy(np.arange(5))]
)
def test_a_damaged_cache_entry_is_replaced(
    path: Path, damage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    _read(path)
    (entry,) = machine.cache_folder().rglob("*.npy")
    with monkeypatch.context() as patch:
        patch.setattr(tfrecord, "scan_offsets", None)  # a scan would now fail
        assert _read(path) == RECORDS
    good = entry.read_bytes()
    entry.write_bytes(damage)
    assert _read(path) == RECORDS
    assert entry.read_bytes() == good


def test_an_unwritable_cache_is_told_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tfrecord._warn_once.cache_clear()
    monkeypatch.setenv("ATTNPERF_CACHE", str(path))  # a file, so no folder can be made below it
    with caplog.at_level(logging.WARNING):
        assert _read(path) == RECORDS
        assert _read(path) == RECORDS
    (message,) = caplog.messages
    assert "cannot be written" in message
    assert "ATTNPERF_CACHE" in message
