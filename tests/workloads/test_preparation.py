"""Data is made once, by one process at a time; damage is mended and data of others kept."""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.workloads import data_files, small_speech
from workloads.base.errors import DataError
from workloads.images import digits, imagenet, images
from workloads.storage import json_records, preparation, small_data
from workloads.text.corpora import pydoc_text
from workloads.text.corpora.large_corpora import C4

# JSON writes both the quotation marks and the letter otherwise.
NOTE = 'Small: "naïve" pictures.'
REFERENCE = small_data.Reference(note=NOTE, rows=[], sha256="0")
TEXT = msgspec.json.encode(REFERENCE).decode()


def test_a_claimed_directory_stays_that_of_its_data(tmp_path):
    preparation.claim(tmp_path / "new", NOTE)
    (tmp_path / "new" / "shard").touch()
    preparation.claim(tmp_path / "new", NOTE)
    for note in ("Small: sounds.", "Small", ""):
        for names in (None, ["nothing"]):
            with pytest.raises(DataError, match=r"NOTE is there, .* other data; .*\n.*remove"):
                preparation.claim(tmp_path / "new", note, names)
    assert (tmp_path / "new" / "NOTE").read_text("utf-8") == f"{NOTE}\n"
    # Files of others. What a system lays beside people's files is no data.
    for file in ("shard", "folder/file"):
        path = tmp_path / "other" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        for names in (None, ["nothing", file.split("/")[0]]):
            with pytest.raises(DataError, match=f"{file.split('/')[0]} is there"):
                preparation.claim(tmp_path / "other", NOTE, names)
        path.unlink()
    (tmp_path / "other" / "folder" / "@eaDir").mkdir()
    (tmp_path / "other" / "folder" / ".DS_Store").touch()
    preparation.claim(tmp_path / "other", NOTE, ["folder"])
    preparation.claim(tmp_path / "other" / "folder", NOTE)


@pytest.mark.parametrize("name", ["reference.json", "dataset_info.json", "tokens.json"])
def test_every_file_that_is_whole_must_say_the_same(name, tmp_path):
    path = tmp_path / name
    for text in (TEXT, json.dumps(json.loads(TEXT))):
        path.write_text(text, "utf-8")
        preparation.claim(tmp_path, NOTE)
        assert path.exists() == (name != preparation.REFERENCE_FILE)
    with pytest.raises(DataError, match="it is not replaced"):
        preparation.claim(tmp_path, "")
    path.write_text('{"note": "Sm', "utf-8")  # a crash
    preparation.claim(tmp_path, NOTE)
    for text in ('{"description": "photographs"}', '{"descr'):
        path.write_text(text, "utf-8")
        with pytest.raises(DataError, match="it is not replaced"):
            preparation.claim(tmp_path, NOTE)
        (tmp_path / preparation.NOTE_FILE).unlink(missing_ok=True)


def _write(directory):
    preparation.claim(directory, NOTE)
    (directory / preparation.REFERENCE_FILE).write_text(TEXT, "utf-8")


def _check(directory):
    path = directory / preparation.REFERENCE_FILE
    return json_records.read(path, small_data.Reference, "mend it")


def test_data_are_made_where_they_are_not_whole_and_left_where_they_are(tmp_path, capfd):
    with pytest.raises(DataError, match=r"reference\.json cannot be read"):
        preparation.prepare_once(tmp_path / "nothing", _check, lambda directory: None)
    data = preparation.prepare_once(tmp_path / "new", _check, _write)
    assert capfd.readouterr().err == ""
    (data / preparation.REFERENCE_FILE).write_text('{"note": ')
    preparation.prepare_once(data, _check, _write)
    [line] = capfd.readouterr().err.splitlines()
    assert str(data / preparation.REFERENCE_FILE) in line
    assert "mend it" not in line
    (data / ".prepare.lock").unlink()
    (data / ".prepare.lock").mkdir()  # to open it for writing would now fail
    preparation.prepare_once(data, _check, None)
    assert capfd.readouterr().err == ""
    assert _check(data) == REFERENCE


@pytest.mark.parametrize("content", ['{"note": ', "\xff"])
def test_a_reference_that_cannot_be_read_is_named_and_made_again(content, tmp_path):
    for damaged in ("[]", '{"note": ""}', '{"rows": []}', content):
        (tmp_path / preparation.REFERENCE_FILE).write_text(damaged, "latin-1")
        with pytest.raises(DataError, match=r"reference\.json cannot be read.*\n.*mend it"):
            _check(tmp_path)
    (tmp_path / preparation.NOTE_FILE).write_text(NOTE, "utf-8")
    preparation.prepare_once(tmp_path, _check, _write)
    assert _check(tmp_path) == REFERENCE


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.EINVAL, errno.ENOLCK])
def test_a_file_system_without_locks_is_named(number, tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = tmp_path / "data"
    prepares = [
        lambda: preparation.prepare_once(folder, _check, _write),
        lambda: C4.prepare(folder, tmp_path),
    ]
    for prepare in prepares:
        with pytest.raises(DataError, match=rf"{tmp_path}/\w+/.prepare.lock cannot be locked"):
            prepare()
    _write(folder)  # what is whole needs no lock
    assert preparation.prepare_once(folder, _check, None) == folder


def test_two_preparations_at_once_wait_for_each_other(tmp_path):
    with (tmp_path / ".prepare.lock").open("w") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = pool.submit(preparation.prepare_once, tmp_path, _check, None)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.5)
        _write(tmp_path)  # the other one ends
        fcntl.flock(lock, fcntl.LOCK_UN)
        waiting.result(timeout=60)


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
