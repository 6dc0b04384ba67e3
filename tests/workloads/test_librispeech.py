"""LibriSpeech in AlgoPerf's layout: its records, what is whole, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from tests.workloads import data_files, small_directories, small_speech
from workloads import __main__ as command
from workloads.base.errors import DataError
from workloads.speech.corpora import librispeech, speech_tokenizer

VOCABULARY = 40
TEXTS = (
    "THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG",
    "PACK MY BOX WITH FIVE DOZEN LIQUOR JUGS",
    "IT'S A PITY THE DOG DIDN'T JUMP",
    "HOW VEXINGLY QUICK DAFT ZEBRAS JUMP",
)


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four utterances in each split of train, two in the others, AlgoPerf's int64."""
    monkeypatch.setattr(librispeech, "VOCAB_SIZE", VOCABULARY)
    monkeypatch.setattr(librispeech, "SIZES", {"train": 12, "validation": 4, "test": 2})
    monkeypatch.setattr(librispeech, "_TOLERANCE", {"train": 1, "validation": 0, "test": 0})
    folder = tmp_path / "data"
    folder.mkdir()
    names = [split for parts in librispeech.SPLITS.values() for split in parts]
    splits = {
        split: [
            (f"{100 + number}-1-{place:04d}", np.arange(100), text)
            for place, text in enumerate(TEXTS if split.startswith("train") else TEXTS[:2])
        ]
        for number, split in enumerate(names)
    }
    small_speech.write_splits(folder, splits, TEXTS, VOCABULARY)
    return folder


def test_a_whole_directory_has_a_line_for_every_split(prepared: Path) -> None:
    lines = librispeech.check(prepared, full=True)
    assert lines[1] == "train-clean-100: 4 utterances, every utterance read"
    assert [line for line in lines if "in all" in line] == [
        "train: 12 utterances in all",
        "validation: 4 utterances in all",
        "test: 2 utterances in all",
    ]


def test_algoperf_s_command_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("prepare", "check"):
        assert command.main([action, "librispeech_conformer", f"--data_dir={tmp_path}"]) == 2
        assert "datasets/dataset_setup.py --librispeech --data_dir=" in capsys.readouterr().err


def test_check_of_what_is_missing_or_damaged(prepared: Path) -> None:
    assert librispeech.check(prepared)[1] == "train-clean-100: 4 utterances, 4 decoded"
    targets = "test-clean/105-1-0000_targets.npy"
    texts = ["SPHINX OF BLACK QUARTZ JUDGE MY VOW ITS", *TEXTS]
    other = speech_tokenizer.train(texts, VOCABULARY)
    damages = [
        ("spm_model.vocab", Path.unlink, "cannot be read"),
        ("spm_model.vocab", data_files.written(other), "is not the one that made them"),
        ("dev-other.csv", Path.unlink, "cannot be read"),
        ("test-clean/105-1-0001_audio.npy", Path.unlink, "is missing; test-clean.csv lists it"),
        ("test-clean/105-1-0001_targets.npy", Path.unlink, "is missing; test-clean.csv lists it"),
        (targets, data_files.saved(np.load(prepared / targets)[:-1]), "ends with"),
    ]
    for file, damage, words in damages:
        content = (prepared / file).read_bytes()
        damage(prepared / file)
        with pytest.raises(DataError, match=f"(?s){Path(file).name}.* {words}.*--librispeech"):
            librispeech.check(prepared)
        (prepared / file).write_bytes(content)
    (prepared.parent / "above" / "librispeech").mkdir(parents=True)
    with pytest.raises(DataError, match="give --data_dir .*/above/librispeech"):
        librispeech.check(prepared.parent / "above")


@pytest.mark.parametrize(
    ("role", "size", "message"),
    [
        ("train", 14, "list 12 utterances; 14 are"),
        ("validation", 5, "list 4 utterances; 5 are"),
    ],
)
def test_check_refuses_other_sizes_and_tells_a_slight_one(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, role: str, size: int, message: str
) -> None:
    monkeypatch.setitem(librispeech.SIZES, "train", 13)
    assert "train: 12 utterances in all (AlgoPerf says 13)" in librispeech.check(prepared)
    monkeypatch.setitem(librispeech.SIZES, role, size)
    with pytest.raises(DataError, match=message):
        librispeech.check(prepared)


def test_the_description_is_that_of_the_lists_and_the_tokenizer(prepared: Path) -> None:
    description = librispeech.describe(prepared)
    moved = prepared.rename(prepared.with_name("moved"))
    assert librispeech.describe(moved) == description
    for name in ("train-clean-100.csv", "dev-other.csv", "test-clean.csv", "spm_model.vocab"):
        content = (moved / name).read_bytes()
        data_files.flip(moved / name)
        assert librispeech.describe(moved) != description
        (moved / name).write_bytes(content)


def test_records_come_in_the_order_of_the_lists_padded(tmp_path: Path) -> None:
    small_directories.write_speech(tmp_path)
    source = small_directories.open_speech(tmp_path)
    assert len(source) == 3
    records = [source[number] for number in range(3)]
    assert [record["audio"].tolist() for record in records] == [
        [4, 5, 0, 0],
        [1, -32768, 32767, 0],
        [6, 0, 0, 0],
    ]
    assert [record["audio_length"] for record in records] == [2, 3, 1]
    assert [record["targets"].tolist() for record in records] == [[5, 7, 0], [5, 7, 2], [2, 0, 0]]
    assert [record["targets_length"] for record in records] == [2, 3, 1]
    for record in records:
        assert record["audio"].dtype == np.int16
        assert {record[name].dtype for name in record if name != "audio"} == {np.dtype("int32")}
    with pytest.raises(IndexError):
        source[3]
