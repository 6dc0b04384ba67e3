"""LibriSpeech in AlgoPerf's layout and Read Russian: records, what is whole, what is refused."""

import dataclasses
import hashlib
import json
import wave
from pathlib import Path

import numpy as np
import pytest

from tests.workloads import data_files, small_directories, small_speech
from workloads import __main__ as command
from workloads.base.errors import DataError
from workloads.speech import ctc
from workloads.speech.corpora import librispeech, read_speech, speech_records, speech_tokenizer

RATE = 16_000
# Of each utterance: (phone, seconds to its end); pauses are 'pau'.
UTTERANCES = {
    "ru_0001": [("pau", 0.5), ("a", 0.6), ("b", 0.75), ("a", 1.0), ("pau", 1.25), ("c", 1.5)],
    "ru_0002": [("a", 0.25), ("b", 0.5), ("b", 1.0), ("c", 3.0)],
    "ru_0003": [
        ("b", 0.5),
        ("a", 1.0),
        ("c", 3.5),
        ("pau", 3.75),
        ("c", 4.0),
        ("a", 4.5),
        ("b", 4.75),
    ],
    "ru_0004": [
        ("c", 0.1),
        ("b", 0.2),
        ("a", 0.3),
        ("pau", 1.0),
        ("a", 1.5),
        ("a", 2.0),
        ("c", 2.5),
    ],
}


def _folder(folder):
    (folder / "lab").mkdir(parents=True)
    (folder / "wav").mkdir()
    for number, (name, phones) in enumerate(UTTERANCES.items()):
        lines = [f"\t{end:.5f} 125 {phone}" for phone, end in phones]
        (folder / "lab" / f"{name}.lab").write_text("\n".join(["#", *lines]) + "\n")
        samples = np.random.RandomState(number).randint(-9000, 9000, 5 * RATE).astype("<i2")
        with wave.open(str(folder / "wav" / f"{name}.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes(samples.tobytes())
    return folder


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A folder of four utterances that is taken for festvox-ru."""
    folder = _folder(tmp_path / "source")
    paths = [folder / kind / f"{name}.{kind}" for name in UTTERANCES for kind in ("lab", "wav")]
    content = b"".join(path.read_bytes() for path in paths)
    monkeypatch.setattr(read_speech, "SOURCE_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(read_speech, "_UTTERANCES", {"train": 2, "validation": 1, "test": 1})
    return folder


SMALL = dataclasses.replace(read_speech.RUSSIAN, vocab_size=6, max_targets=5)


def test_segments_are_cut_at_pauses(source):
    """Two phones are too few, 3.5 s too many; a segment begins where its pause ends."""
    segments = read_speech.read(source)
    assert [(segment.role, segment.name, segment.text) for segment in segments] == [
        ("train", "ru_0001_01", "a b a"),
        ("train", "ru_0002_01", "a b b c"),
        ("validation", "ru_0003_01", "c a b"),
        ("test", "ru_0004_01", "c b a"),
        ("test", "ru_0004_02", "a a c"),
    ]
    drawn = [np.random.RandomState(n).randint(-9000, 9000, 5 * RATE) for n in (0, 1, 2, 3, 3)]
    spans = [(0.5, 1.0), (0.0, 3.0), (3.75, 4.75), (0.0, 0.3), (1.0, 2.5)]
    for segment, samples, (begin, end) in zip(segments, drawn, spans, strict=True):
        np.testing.assert_array_equal(segment.audio, samples[int(begin * RATE) : int(end * RATE)])


def test_what_is_prepared_is_read(source, tmp_path):
    data = tmp_path / "data"
    SMALL.prepare(data, source)
    assert SMALL.prepare(data) == data
    tokenizer = speech_tokenizer.load(data, 6, "")
    texts = {"train": ["a b a", "a b b c"], "validation": ["c a b"], "test": ["c b a", "a a c"]}
    for role, expected in texts.items():
        split = SMALL.open_split(data, role)
        ids = [record["targets"][: record["targets_length"]] for record in split]
        assert [speech_tokenizer.decode(tokenizer, row) for row in ids] == expected
        assert [len(row) for row in ids] == [1 + len(text.split()) for text in expected]
    assert "Shmyrev" in (data / read_speech.LICENSE_FILE).read_text()
    empty, always = SMALL.read_reference(data).rows
    assert empty["test/wer"] == 1.0
    # 'a b a' for 'c b a' and 'a a c': one phone of three, then two.
    assert always["test/wer"] == pytest.approx(
        ctc.word_error_rate(*ctc.word_errors(texts["test"], ["a b a"] * 2))
    )
    assert always["test/wer"] == pytest.approx(0.5)
    audio = speech_records.path_of(data, "test", "ru_0004_02", "audio")
    data_files.flip(audio)
    with pytest.raises(DataError, match="the content has SHA-256"):
        SMALL.check(data)
    data_files.cut(audio)
    with pytest.raises(DataError, match="ru_0004_02_audio.npy"):
        SMALL.check(data)
    SMALL.prepare(data, source)
    assert json.loads((data / "reference.json").read_text())["made_by"] == "festvox-ru 0.5"


@pytest.mark.parametrize(
    ("spoil", "name", "message"),
    [
        (Path.unlink, "wav/ru_0002.wav", "ru_0002.wav cannot be read: No such file"),
        (Path.unlink, "lab/ru_0002.lab", "the SHA-256 of 3 lab"),
        (data_files.flip, "wav/ru_0003.wav", "the SHA-256 of 4 lab"),
        (data_files.flip, "lab/ru_0001.lab", "the SHA-256 of 4 lab"),
    ],
)
def test_other_recordings_are_refused(spoil, name, message, source, tmp_path):
    spoil(source / name)
    with pytest.raises(DataError, match=message):
        read_speech.RUSSIAN.prepare(tmp_path / "data", source)
    assert not (tmp_path / "data").exists()


def test_a_folder_without_recordings_or_a_missing_one(tmp_path, capsys):
    arguments = ["prepare", "read_speech_conformer", f"--data_dir={tmp_path}/data"]
    for more in ([], [f"--from={tmp_path}"], [f"--from={tmp_path}/nowhere"]):
        assert command.main([*arguments, *more]) == 2
        printed = capsys.readouterr().err
        assert "make data-speech" in printed
        assert "Traceback" not in printed


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
