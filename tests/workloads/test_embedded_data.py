"""Data that the project makes itself: the digits' content, damage mended, data of others kept."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.workloads import data_files, small_speech
from workloads.base.errors import DataError
from workloads.images import digits, imagenet, images
from workloads.text.corpora import pydoc_text

SPEECH = "spoken_digits_conformer"
# The folder that tests share, and what makes the data there.
MAKERS = {
    "digits_vit": ("digits", digits.DIGITS),
    "pydoc_lm": ("pydoc", pydoc_text.PYDOC),
    SPEECH: ("spoken", small_speech.SPOKEN),
}


def _shorten(path):
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")


def _flip_inside(path):
    data_files.flip(path, path.stat().st_size // 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pattern", "damage", "message"),
    [
        ("digits_vit", "reference.json", Path.unlink, "reference.json"),
        ("digits_vit", "*/*/*-train.tfrecord-*", _flip_inside, "train.tfrecord-00000-of-00001"),
        ("digits_vit", "imagenet_v2/*/*/features.json", Path.unlink, "features.json"),
        ("pydoc_lm", "train/*.arrow", _flip_inside, "the content has SHA-256"),
        (SPEECH, "test/*_audio.npy", data_files.flip, "the content has SHA-256"),
        (SPEECH, "validation/*_targets.npy", data_files.flip, ""),
        (SPEECH, "train/*_audio.npy", Path.unlink, "_audio.npy cannot be read"),
        (SPEECH, "reference.json", Path.unlink, "reference.json cannot be read"),
        (SPEECH, "spm_model.vocab", Path.unlink, "spm_model.vocab: the tokenizer cannot be read"),
        (SPEECH, "validation.csv", Path.unlink, "validation.csv cannot be read"),
        (SPEECH, "test.csv", _shorten, "the content has SHA-256"),
    ],
)
def test_damage_is_named_and_mended(made_once, tmp_path, name, pattern, damage, message):
    folder, maker = MAKERS[name]
    whole = made_once(folder, maker.prepare)
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    damage(next(copy.glob(pattern)))
    with pytest.raises(DataError, match=f"python -m workloads prepare {name}") as caught:
        maker.check(copy)
    assert message in str(caught.value)
    maker.prepare(copy)
    assert data_files.contents(copy) == data_files.contents(whole)


@pytest.mark.parametrize("name", MAKERS)
def test_data_of_others_is_never_replaced(name, tmp_path):
    (tmp_path / "reference.json").write_text('{"note": "photographs"}')
    with pytest.raises(DataError, match=r"reference\.json is there, .* it is not replaced"):
        MAKERS[name][1].prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != data_files.LOCK] == [
        "reference.json"
    ]


@pytest.fixture(scope="module")
def prepared(made_once: Callable[..., Path]) -> Path:
    return made_once("digits", digits.DIGITS.prepare)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_other_images_are_found_by_their_hash(prepared: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(prepared, tmp_path / "copy")
    examples = digits.examples()
    examples["test"][7]["label"] = (examples["test"][7]["label"] + 1) % 10
    note = digits.DIGITS.note
    imagenet.write(copy, examples, num_classes=10, description=note, encoding="png")
    with pytest.raises(DataError, match=r"the images have SHA-256 .*, not 16f4c9f2"):
        digits.DIGITS.check(copy)
