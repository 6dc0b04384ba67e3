"""Fashion-MNIST: read from the IDX files, and nothing else taken for it."""

import dataclasses
import errno
import gc
import gzip
import hashlib
import re

import jax
import numpy as np
import pytest

import workloads.images.image_workload  # noqa: F401  it takes the sizes when it is imported
from attention import registry as variants
from tests.workloads import data_files
from workloads import __main__ as command
from workloads import registry
from workloads.base import workload as base
from workloads.base.errors import DataError
from workloads.images import fashion, imagenet, images
from workloads.storage import tfrecord

TRAIN, TEST = 60, 10
TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = fashion.FILES


def _idx(array):
    """An IDX file by its description: 0, 0, 8 (uint8), axes; their lengths, big-endian; values."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.tobytes()


def _arrays(seed):
    drawn = np.random.RandomState(seed)
    arrays = []
    for count in (TRAIN, TEST):
        labels = np.arange(count, dtype=np.uint8) % 10
        arrays += [drawn.randint(0, 256, (count, 28, 28)).astype(np.uint8), labels]
    return dict(zip(fashion.FILES, arrays, strict=True))


ARRAYS = _arrays(0)
CONTENTS = {name: _idx(array) for name, array in ARRAYS.items()}
# The same format, names and sizes, other pictures: what MNIST is to Fashion-MNIST.
OTHERS = {name: _idx(array) for name, array in _arrays(1).items()}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Fashion-MNIST of 60 and 10 images."""
    files = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}
    sizes = {"train": 50, "validation": 10, "test": TEST}
    set_of = dataclasses.replace(fashion.FASHION, sizes=sizes, neighbours=20)
    monkeypatch.setattr(fashion, "FILES", files)
    monkeypatch.setattr(fashion, "FASHION", set_of)
    digest = set_of.digest(fashion.examples(*ARRAYS.values()))
    monkeypatch.setattr(fashion, "FASHION", dataclasses.replace(set_of, content_sha256=digest))


def _directory(folder, contents, suffix=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        compressed = gzip.compress(content) if suffix == ".gz" else content
        (folder / f"{name}{suffix}").write_bytes(compressed)
    return folder


def _source(kind, folder):
    source = _directory(folder / "files", CONTENTS, "" if kind == "bare" else ".gz")
    if kind == "both":  # as torchvision leaves them
        _directory(source, CONTENTS)
    if kind == "dotted":
        for path in source.iterdir():
            path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    return source


@pytest.mark.parametrize("kind", ["bare", "compressed", "both", "dotted"])
def test_what_people_have_is_read(kind, tmp_path):
    source = _source(kind, tmp_path)
    for array, expected in zip(fashion.read(source), ARRAYS.values(), strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.fixture
def prepared(tmp_path):
    return fashion.FASHION.prepare(tmp_path / "data", _source("bare", tmp_path))


TEST_LABELS_GZ = f"{TEST_LABELS}.gz"
# Files of a folder (None: missing), and what the refusal says.
FOLDERS = {
    "MNIST": (OTHERS, "MNIST's digits come in files of the same names and sizes"),
    "cut gzip": (
        {TEST_LABELS: None, TEST_LABELS_GZ: gzip.compress(CONTENTS[TEST_LABELS])[:-9]},
        f"{TEST_LABELS_GZ} is cut short or damaged",
    ),
    "no gzip": ({TEST_LABELS_GZ: b"<html>404</html>"}, f"{TEST_LABELS_GZ} is cut short or damaged"),
    "cut file": ({TRAIN_IMAGES: CONTENTS[TRAIN_IMAGES][:-1]}, f"{TRAIN_IMAGES} is not"),
    "swapped": (
        {TRAIN_IMAGES: CONTENTS[TRAIN_LABELS], TRAIN_LABELS: CONTENTS[TRAIN_IMAGES]},
        f"{TRAIN_IMAGES} is not Fashion-MNIST's",
    ),
    "two sets": (
        {f"{TEST_IMAGES}.gz": gzip.compress(OTHERS[TEST_IMAGES])},
        f"{TEST_IMAGES}.gz is not Fashion-MNIST's",
    ),
    "one missing": ({TEST_LABELS: None}, f"lacks {TEST_LABELS}"),
    "all missing": (dict.fromkeys(CONTENTS), f"lacks {TRAIN_IMAGES}, {TRAIN_LABELS}"),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_of_other_files_is_refused_and_changes_nothing(kind, prepared, tmp_path):
    changes, message = FOLDERS[kind]
    contents = {**CONTENTS, **changes}
    present = {name: content for name, content in contents.items() if content is not None}
    before = data_files.contents(prepared)
    with pytest.raises(DataError, match=re.escape(message)):
        fashion.FASHION.prepare(prepared, _directory(tmp_path / "other", present))
    assert data_files.contents(prepared) == before


def test_a_fixed_permutation_gives_the_roles(prepared):
    order = np.random.RandomState(0).permutation(TRAIN)
    trained = ARRAYS[TRAIN_IMAGES], ARRAYS[TRAIN_LABELS]
    parts = {
        "train": (*trained, order[:50]),
        "validation": (*trained, order[50:]),
        "test": (ARRAYS[TEST_IMAGES], ARRAYS[TEST_LABELS], range(TEST)),
    }
    for role, (pictures, labels, numbers) in parts.items():
        source = imagenet.open_split(prepared, role)
        assert [record["label"] for record in source] == labels[numbers].tolist()
        for record, number in zip(source, numbers, strict=True):
            decoded = images.decode(record["image"])
            np.testing.assert_array_equal(decoded, np.stack([pictures[number]] * 3, -1))
    assert "Zalando SE" in (prepared / fashion.LICENSE_FILE).read_text("utf-8")


def test_reference_rows(prepared):
    """As by their definition: the label of the nearest other image of the 50 in train, asked of 20
    of them; the most frequent label."""
    neighbour, constant = fashion.FASHION.read_reference(prepared).rows
    errors = [neighbour[f"{role}/error"] for role in ("train", "validation", "test")]
    assert errors == [1.0, 0.9, 0.7]
    assert (constant["name"], constant["constant"]) == ("always 2", True)
    assert [constant[f"{role}/error"] for role in ("train", "validation", "test")] == [0.9, 1, 0.9]


def test_whole_data_need_no_source(prepared, tmp_path, capsys):
    arguments = ["prepare", "fashion_vit", f"--data_dir={prepared}"]
    assert command.main(arguments) == 0
    data_files.cut(next(prepared.glob("*/*/*train.tfrecord*")))
    capsys.readouterr()
    assert command.main(arguments) == 2
    message = capsys.readouterr().err
    for part in ("the shards have", "make data-fashion", "--from=FOLDER", TEST_LABELS, "dpkg-deb"):
        assert part in message
    assert command.main(["prepare", "fashion_vit", f"--from={tmp_path}/nothing"]) == 2
    assert f"there is no folder {tmp_path}/nothing" in capsys.readouterr().err


def test_a_disk_that_fills_is_named_and_then_goes_on(tmp_path, capsys, monkeypatch):
    source = _source("bare", tmp_path)
    arguments = ["prepare", "fashion_vit", f"--data_dir={tmp_path}/data", f"--from={source}"]

    def full(payload):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(tfrecord, "framed", full)
        assert command.main(arguments) == 2
    assert re.search(f"{tmp_path}/data/.*: no room is left there", capsys.readouterr().err)
    assert command.main(arguments) == 0


def _workload(name="laser", **options):
    return registry.make("fashion_vit", variants.get(name), **options)


def test_workloads_of_a_process_share_their_images(prepared):
    prepared = str(prepared)
    first, second = _workload("standard"), _workload("laser")
    source = first._source("train", prepared)
    assert second._source("train", prepared) is source
    assert source[0]["image"].shape == (28, 28, 1)
    assert _workload("laser", compute_dtype="bfloat16")._cached is not first._cached
    assert registry.make("fashion_vit_patch4")._cached is not first._cached
    key = (first._row, first.options)
    assert key in base._CACHES
    del first, second
    gc.collect()
    assert key not in base._CACHES


def test_one_channel_becomes_three_on_the_device(prepared):
    prepared = str(prepared)
    record = imagenet.open_split(prepared, "test")[0]
    picture = images.decode(record["image"]).astype(np.float32)
    mean = np.array([0.485, 0.456, 0.406], np.float32) * 255
    deviation = np.array([0.229, 0.224, 0.225], np.float32) * 255
    batch = next(_workload()._build_input_queue(jax.random.key(0), "test", prepared, 2))
    np.testing.assert_allclose(batch["inputs"][0], (picture - mean) / deviation, rtol=1e-5)
