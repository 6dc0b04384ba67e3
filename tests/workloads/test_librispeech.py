"""LibriSpeech's tree into AlgoPerf's layout: every kind of bad utterance is counted and named."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.workloads import data_files
from tests.workloads.small_directories import (
    TEXTS,
    VOCABULARY,
    librispeech_job,
    samples,
    write_chapter,
    write_flac,
    write_librispeech,
)
from workloads.base.errors import DataError
from workloads.speech.corpora import librispeech, librispeech_prepare, speech_tokenizer


def _rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


@pytest.fixture
def job(tmp_path: Path) -> librispeech_prepare.SplitToPrepare:
    """Two chapters of two speakers in one split."""
    write_librispeech(tmp_path)
    return librispeech_job(tmp_path)


def test_samples_and_transcripts_survive(job: librispeech_prepare.SplitToPrepare) -> None:
    """A byte-order mark is no part of an id, and what a system lays beside files no utterance."""
    chapter = job.tree / "dev-clean" / "7" / "11"
    lines = (chapter / "7-11.trans.txt").read_text("utf-8").replace("\n", "\r\n")
    (chapter / "7-11.trans.txt").write_text(lines, "utf-8-sig", newline="")
    (chapter / "._7-11-0000.flac").write_bytes(b"\x00\x05\x16\x07")
    report = librispeech_prepare.prepare_split(job, expected=4)
    assert report.kept == ("20-3-0000", "20-3-0001", "7-11-0000", "7-11-0001")
    assert str(report) == "dev-clean: 4 utterances, 0 left out"
    assert _rows(job.data_dir / "dev-clean.csv") == [
        ["", "id"],
        *([str(number), name] for number, name in enumerate(report.kept)),
    ]
    tokenizer = speech_tokenizer.load(job.data_dir, VOCABULARY, "")
    for name, text, length, seed in (
        ("20-3-0001", TEXTS[1], 101, 21),
        ("7-11-0000", TEXTS[2], 100, 7),
    ):
        files = (job.data_dir / "dev-clean" / f"{name}_{part}.npy" for part in ("audio", "targets"))
        audio, targets = map(np.load, files)
        assert audio.dtype == np.int16
        assert targets.dtype == np.int32
        assert (audio == samples(length, seed)).all()
        assert targets[-1] == tokenizer.eos_id() == 2
        assert speech_tokenizer.decode(tokenizer, targets.tolist()) == text


def test_every_reason_is_counted(job: librispeech_prepare.SplitToPrepare) -> None:
    """By two processes."""
    long = "THE DOG JUMPS OVER THE BOX OVER THE DOG JUMPS OVER A LAZY FOXES"
    folder = write_chapter(job.tree, "dev-clean", 9, 1, ["FOX"] * 9)
    transcripts = {
        "9-1-0000": "THE FOX",
        "9-1-0001": "",
        "9-1-0002": "THE F0X",
        "9-1-0003": "the fox",
        "9-1-0004": long[:60],
        "9-1-0005": long[:61],
        "9-1-0006": "QX" * 29,
        # 0007 and 0008 stand in no line.
        "9-1-0009": "WITHOUT AUDIO",
        "9-1-0010": "LONG",
        "9-1-0011": "JUST NOT TOO LONG",
    }
    lines = "".join(f"{name} {text}\n" for name, text in transcripts.items())
    (folder / "9-1.trans.txt").write_text(lines)
    for name, length in (("9-1-0010", 201), ("9-1-0011", 200)):
        write_flac(folder / f"{name}.flac", samples(length, 1))
    lonely = write_chapter(job.tree, "dev-clean", 10, 1, ["FOX"])
    (lonely / "10-1.trans.txt").unlink()
    report = librispeech_prepare.prepare_split(job, num_workers=2)
    assert [name for name in report.kept if name.startswith(("9-", "10-"))] == [
        "9-1-0000",
        "9-1-0004",
        "9-1-0011",
    ]
    unknown = "with characters other than A-Z, apostrophe and space"
    expected = [
        ("10-1-0000", "without transcript"),
        ("9-1-0001", "with an empty transcript"),
        ("9-1-0002", unknown),
        ("9-1-0003", unknown),
        ("9-1-0005", "of more than 60 characters"),
        ("9-1-0006", "of more than 58 targets"),
        ("9-1-0007", "without transcript"),
        ("9-1-0008", "without transcript"),
        ("9-1-0009", "without audio"),
        ("9-1-0010", "of more than 200 samples"),
    ]
    assert list(report.left_out) == expected
    assert _rows(job.data_dir / "dev-clean_left_out.csv") == [
        ["id", "reason"],
        *map(list, expected),
    ]
    assert str(report).startswith(
        "dev-clean: 7 utterances, 10 left out (1 of more than 200 samples;"
    )
    assert not (job.data_dir / "dev-clean" / "9-1-0010_audio.npy").exists()
    targets = ([5] * 58, [5] * 59, [5, speech_tokenizer.BLANK, 2])
    assert [job.judge_sizes(ids, 200) for ids in targets] == [
        "",
        "of more than 58 targets",
        "with characters that the tokenizer does not know",
    ]


@pytest.mark.parametrize("file", ["20-3-0001_audio.npy", "20-3-0001_targets.npy"])
@pytest.mark.parametrize(
    "damage",
    [
        data_files.cut,
        Path.unlink,
        # Of another utterance.
        lambda path: shutil.copy(path.with_name(path.name.replace("0001", "0000")), path),
    ],
)
def test_what_is_not_whole_is_made_again(
    job: librispeech_prepare.SplitToPrepare, file: str, damage: Callable[[Path], object]
) -> None:
    librispeech_prepare.prepare_split(job)
    folder = job.data_dir / "dev-clean"
    contents = data_files.contents(folder)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    damage(folder / file)
    librispeech_prepare.prepare_split(job)
    assert data_files.contents(folder) == contents
    assert [p.name for p in folder.iterdir() if p.stat().st_mtime_ns != before[p.name]] == [file]


def test_another_count_is_said_before_any_audio_is_decoded(
    job: librispeech_prepare.SplitToPrepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(librispeech_prepare, "prepare_chapter", None)
        with pytest.raises(DataError, match="has 4 utterances; LibriSpeech has 5"):
            librispeech_prepare.prepare_split(job, expected=5)
    assert not (job.data_dir / job.split).exists()
    for path in job.tree.rglob("*.trans.txt"):
        path.unlink()
    with pytest.raises(DataError, match="no utterance can be kept.*4 without transcript"):
        librispeech_prepare.prepare_split(job)
    assert not (job.data_dir / "dev-clean.csv").exists()


# The module: all splits, at a small size.


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a whole LibriSpeech of two or four utterances a split."""
    counts = {}
    for number, split in enumerate(librispeech.NUM_UTTERANCES):
        texts = [*TEXTS] if split.startswith("train") else [*TEXTS[:2]]
        write_chapter(tmp_path / "LibriSpeech", split, 100 + number, 1, texts)
        counts[split] = len(texts)
    monkeypatch.setattr(librispeech, "NUM_UTTERANCES", counts)
    monkeypatch.setattr(librispeech, "VOCAB_SIZE", VOCABULARY)
    monkeypatch.setattr(librispeech, "SIZES", {"train": 12, "validation": 4, "test": 2})
    monkeypatch.setattr(librispeech, "_TOLERANCE", {"train": 1, "validation": 0, "test": 0})
    return tmp_path


@pytest.fixture
def prepared(corpus: Path) -> Path:
    librispeech.prepare(corpus / "data", corpus, num_workers=0)
    return corpus / "data"


def test_all_splits_are_prepared_and_read(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (corpus / "LibriSpeech/dev-other/104/1/104-1-0001.flac").unlink()
    librispeech.SIZES["validation"] = 3
    librispeech.prepare(corpus / "data", corpus / "LibriSpeech", num_workers=0)
    printed = capsys.readouterr().out.splitlines()
    assert printed[4] == "dev-other: 1 utterances, 1 left out (1 without audio)"
    assert len(printed) == 6
    lines = librispeech.check(corpus / "data", full=True)
    assert lines[1:4] == [
        f"{split}: 4 utterances, every utterance read"
        for split in ("train-clean-100", "train-clean-360", "train-other-500")
    ]
    assert [line for line in lines if "in all" in line] == [
        "train: 12 utterances in all",
        "validation: 3 utterances in all",
        "test: 2 utterances in all",
    ]


@pytest.mark.parametrize("texts", [TEXTS[::-1], None])
def test_a_tokenizer_is_used_or_trained_on_train_clean_100_alone(
    corpus: Path, texts: list[str] | None
) -> None:
    """The tree and the data may lie in one folder."""
    model = speech_tokenizer.train(texts or TEXTS, VOCABULARY)
    if texts:
        (corpus / speech_tokenizer.FILE_NAME).write_bytes(model)
    librispeech.prepare(corpus, num_workers=0)
    assert (corpus / speech_tokenizer.FILE_NAME).read_bytes() == model
    assert librispeech.check(corpus)[-1] == "test: 2 utterances in all"


@pytest.mark.parametrize("file", ["dev-other", ""])
def test_what_cannot_be_prepared_is_named_before_anything_is_written(
    corpus: Path, file: str
) -> None:
    shutil.rmtree(corpus / "LibriSpeech" / file)
    with pytest.raises(DataError, match=file or "openslr"):
        librispeech.prepare(corpus, num_workers=0)
    assert not list(corpus.glob("*.csv"))


def test_check_of_what_is_missing_or_damaged(prepared: Path) -> None:
    """AlgoPerf's int64 is fine."""
    for path in prepared.glob("*/*_audio.npy"):
        np.save(path, np.load(path).astype(np.int64))
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
        with pytest.raises(DataError, match=f"(?s){Path(file).name}.* {words}.*prepare librispee"):
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
