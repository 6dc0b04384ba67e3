"""Data that the project makes itself: damage is found and mended, data of others is kept."""

import shutil
from pathlib import Path

import pytest

from tests.workloads import data_files, small_speech
from workloads.base.errors import DataError
from workloads.images import digits
from workloads.text.corpora import pydoc_text

pytestmark = pytest.mark.slow

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
