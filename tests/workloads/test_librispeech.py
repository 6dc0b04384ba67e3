"""LibriSpeech's tree into AlgoPerf's layout: every kind of bad utterance is counted and named."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from workloads.base.errors import DataError
from workloads.speech.corpora import librispeech, librispeech_prepare, speech_tokenizer

VOCAB_SIZE = 40
TEXTS = (
    "THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG",
    "PACK MY BOX WITH FIVE DOZEN LIQUOR JUGS",
    "IT'S A PITY THE DOG DIDN'T JUMP",
    "HOW VEXINGLY QUICK DAFT ZEBRAS JUMP",
)

LONG = "THE DOG JUMPS OVER THE BOX OVER THE DOG JUMPS OVER A LAZY FOXES"


def _samples(length: int, seed: int) -> np.ndarray:
    return np.random.RandomState(seed).randint(-(2**15), 2**15, length).astype(np.int16)


def _flac(path: Path, samples: np.ndarray, rate: int = 16_000, subtype: str = "PCM_16") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate, subtype=subtype)


def _chapter(tree: Path, split: str, speaker: int, chapter: int, texts: list[str]) -> Path:
    """A chapter of sound utterances of 100, 101, … samples; returns its folder."""
    folder = tree / split / str(speaker) / str(chapter)
    names = [f"{speaker}-{chapter}-{number:04d}" for number in range(len(texts))]
    for number, name in enumerate(names):
        _flac(folder / f"{name}.flac", _samples(100 + number, speaker + number))
    lines = [f"{name} {text}\n" for name, text in zip(names, texts, strict=True)]
    (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))
    return folder


def _rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


@pytest.fixture
def job(tmp_path: Path) -> librispeech_prepare.SplitToPrepare:
    """Two chapters of two speakers in one split."""
    tree = tmp_path / "LibriSpeech"
    _chapter(tree, "dev-clean", 20, 3, list(TEXTS[:2]))
    _chapter(tree, "dev-clean", 7, 11, list(TEXTS[2:]))
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    model = speech_tokenizer.train(TEXTS, VOCAB_SIZE)
    (data_dir / speech_tokenizer.FILE_NAME).write_bytes(model)
    limits = {"max_audio": 200, "max_characters": 60, "max_targets": 58}
    return librispeech_prepare.SplitToPrepare(
        tree, data_dir, "dev-clean", VOCAB_SIZE, "mend it", **limits
    )


def test_samples_and_transcripts_survive(job: librispeech_prepare.SplitToPrepare) -> None:
    report = librispeech_prepare.prepare_split(job)
    assert report.kept == ("20-3-0000", "20-3-0001", "7-11-0000", "7-11-0001")
    assert str(report) == "dev-clean: 4 utterances, 0 left out"
    assert _rows(job.data_dir / "dev-clean.csv") == [
        ["", "id"],
        *([str(number), name] for number, name in enumerate(report.kept)),
    ]
    tokenizer = speech_tokenizer.load(job.data_dir, VOCAB_SIZE, "")
    for name, text, length, seed in (
        ("20-3-0001", TEXTS[1], 101, 21),
        ("7-11-0000", TEXTS[2], 100, 7),
    ):
        files = (job.data_dir / "dev-clean" / f"{name}_{part}.npy" for part in ("audio", "targets"))
        audio, targets = map(np.load, files)
        assert audio.dtype == np.int16
        assert targets.dtype == np.int32
        assert (audio == _samples(length, seed)).all()
        assert targets[-1] == tokenizer.eos_id() == 2
        assert speech_tokenizer.decode(tokenizer, targets.tolist()) == text


def test_every_reason_is_counted(job: librispeech_prepare.SplitToPrepare) -> None:
    folder = _chapter(job.tree, "dev-clean", 9, 1, ["FOX"] * 9)
    transcripts = {
        "9-1-0000": "THE FOX",
        "9-1-0001": "",
        "9-1-0002": "THE F0X",
        "9-1-0003": "the fox",
        "9-1-0004": LONG[:60],
        "9-1-0005": LONG[:61],
        "9-1-0006": "QX" * 29,
        # 0007 and 0008 stand in no line.
        "9-1-0009": "WITHOUT AUDIO",
        "9-1-0010": "LONG",
        "9-1-0011": "JUST NOT TOO LONG",
    }
    lines = "".join(f"{name} {text}\n" for name, text in transcripts.items())
    (folder / "9-1.trans.txt").write_text(lines)
    for name, length in (("9-1-0010", 201), ("9-1-0011", 200)):
        _flac(folder / f"{name}.flac", _samples(length, 1))
    lonely = _chapter(job.tree, "dev-clean", 10, 1, ["FOX"])
    (lonely / "10-1.trans.txt").unlink()
    report = librispeech_prepare.prepare_split(job)
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


def test_what_the_tokenizer_does_not_know_is_left_out(
    job: librispeech_prepare.SplitToPrepare,
) -> None:
    unknown = "with characters that the tokenizer does not know"
    assert job.judge_sizes([5, speech_tokenizer.BLANK, 2], 100) == unknown


def _patch(start: int, new: bytes) -> Callable[[Path], object]:
    def patch(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[start : start + len(new)] = new
        path.write_bytes(content)

    return patch


FLAC, TEXT = "7-11-0001.flac", "7-11.trans.txt"


@pytest.mark.parametrize(
    ("damage", "file", "message"),
    [
        # STREAMINFO says how many samples there are, in 36 bits from the middle of byte 21 on.
        (_patch(25, b"\x96"), FLAC, "cannot be decoded"),
        (_patch(21, b"\xf0" + bytes(4)), FLAC, "and a length are expected"),
        (_patch(150, bytes(50)), FLAC, "decoded"),
        (lambda path: path.write_bytes(b""), FLAC, "is no sound file"),
        (lambda path: path.write_bytes(b"no flac"), FLAC, "is no sound file"),
        (lambda path: _flac(path, _samples(9, 0), rate=8000), FLAC, "has 8000 Hz"),
        (lambda path: _flac(path, _samples(18, 0).reshape(9, 2)), FLAC, "2 channels"),
        (lambda path: _flac(path, _samples(9, 0), subtype="PCM_24"), FLAC, "PCM_16 and a length"),
        (lambda path: path.write_text("7-11-0000 A\n7-11-0000 B\n"), TEXT, "twice"),
        (lambda path: path.write_text("7-11-0000 A\n\n"), TEXT, "line 2: '' is no id"),
        (lambda path: path.write_text("../../x A\n"), TEXT, "is no id"),
        (lambda path: path.write_bytes(b"7-11-0000 \xff\n"), TEXT, "cannot be read"),
    ],
)
def test_damaged_files_stop_the_split_and_are_named(
    job: librispeech_prepare.SplitToPrepare, damage: Callable[[Path], None], file: str, message: str
) -> None:
    damage(job.tree / "dev-clean/7/11" / file)
    with pytest.raises(DataError) as caught:
        librispeech_prepare.prepare_split(job)
    assert str(job.tree / "dev-clean/7/11" / file) in str(caught.value)
    assert message in str(caught.value)
    assert str(caught.value).endswith("mend it")
    assert not (job.data_dir / "dev-clean.csv").exists()


def _stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


@pytest.mark.parametrize("file", ["20-3-0001_audio.npy", "20-3-0001_targets.npy"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        Path.unlink,
        # Of another utterance.
        lambda path: shutil.copy(path.with_name(path.name.replace("0001", "0000")), path),
    ],
)
def test_what_is_not_whole_is_made_again(
    job: librispeech_prepare.SplitToPrepare, file: str, damage: Callable[[Path], object]
) -> None:
    librispeech_prepare.prepare_split(job)
    path = job.data_dir / "dev-clean" / file
    content, before = path.read_bytes(), _stamps(path.parent)
    damage(path)
    librispeech_prepare.prepare_split(job)
    assert path.read_bytes() == content
    after = _stamps(path.parent)
    assert {name for name in before if after[name] != before[name]} == {file}


def test_processes_give_the_same_files(job: librispeech_prepare.SplitToPrepare) -> None:
    first = librispeech_prepare.prepare_split(job)
    folder = job.data_dir / "dev-clean"
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(folder)
    assert librispeech_prepare.prepare_split(job, num_workers=2) == first
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents


def test_a_split_of_nothing_is_refused(job: librispeech_prepare.SplitToPrepare) -> None:
    for path in job.tree.rglob("*.trans.txt"):
        path.unlink()
    with pytest.raises(DataError, match=r"no utterance can be kept.*4 without transcript"):
        librispeech_prepare.prepare_split(job)


# The module: all splits, at a small size.


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a whole LibriSpeech of two or four utterances a split."""
    counts = {}
    for number, split in enumerate(librispeech.NUM_UTTERANCES):
        texts = [*TEXTS] if split.startswith("train") else [*TEXTS[:2]]
        _chapter(tmp_path / "LibriSpeech", split, 100 + number, 1, texts)
        counts[split] = len(texts)
    monkeypatch.setattr(librispeech, "NUM_UTTERANCES", counts)
    monkeypatch.setattr(librispeech, "VOCAB_SIZE", VOCAB_SIZE)
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
    model = speech_tokenizer.train(texts or TEXTS, VOCAB_SIZE)
    if texts:
        (corpus / speech_tokenizer.FILE_NAME).write_bytes(model)
    librispeech.prepare(corpus, num_workers=0)
    assert (corpus / speech_tokenizer.FILE_NAME).read_bytes() == model
    assert librispeech.check(corpus)[-1] == "test: 2 utterances in all"


def _small_tokenizer(folder: Path) -> None:
    model = speech_tokenizer.train(TEXTS, VOCAB_SIZE - 1)
    (folder / speech_tokenizer.FILE_NAME).write_bytes(model)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_small_tokenizer, r"spm_model\.vocab has 39 pieces, unknown id 0"),
        (
            lambda folder: shutil.rmtree(folder / "LibriSpeech/dev-other"),
            "dev-other holds no <speaker>/<chapter> folders",
        ),
        (
            lambda folder: shutil.rmtree(folder / "LibriSpeech"),
            r"holds no LibriSpeech tree[\s\S]*openslr\.org/12",
        ),
    ],
)
def test_what_cannot_be_prepared_is_named_before_anything_is_written(
    corpus: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(corpus)
    with pytest.raises(DataError, match=message):
        librispeech.prepare(corpus, num_workers=0)
    assert not list(corpus.glob("*.csv"))


def test_algoperfs_int64_is_fine(prepared: Path) -> None:
    for path in prepared.glob("*/*_audio.npy"):
        np.save(path, np.load(path).astype(np.int64))
    assert librispeech.check(prepared)[1] == "train-clean-100: 4 utterances, 4 decoded"


def _without_an_end(prepared: Path) -> None:
    path = prepared / "test-clean/105-1-0000_targets.npy"
    np.save(path, np.load(path)[:-1])


def _other_tokenizer(prepared: Path) -> None:
    model = speech_tokenizer.train(["SPHINX OF BLACK QUARTZ JUDGE MY VOW ITS", *TEXTS], VOCAB_SIZE)
    (prepared / speech_tokenizer.FILE_NAME).write_bytes(model)


def _remove(file: str) -> Callable[[Path], None]:
    return lambda prepared: (prepared / file).unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_remove("spm_model.vocab"), "spm_model.vocab: the tokenizer cannot be read"),
        (_remove("dev-other.csv"), "dev-other.csv cannot be read"),
        (_remove("test-clean/105-1-0001_audio.npy"), "_audio.npy is missing; test-clean.csv lists"),
        (_remove("test-clean/105-1-0001_targets.npy"), "_targets.npy is missing; test-clean.csv"),
        (_without_an_end, "105-1-0000_targets.npy ends with"),
        (_other_tokenizer, "is not the one that made them"),
    ],
)
def test_check_names_what_is_missing_or_damaged(
    prepared: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(prepared)
    with pytest.raises(DataError, match=message) as caught:
        librispeech.check(prepared)
    assert "python -m workloads prepare librispeech_conformer --data_dir" in str(caught.value)
    assert "--from=DIR" in str(caught.value)


@pytest.mark.parametrize(
    ("role", "size", "message"),
    [
        ("train", 14, "train-other-500 list 12 utterances; 14 are expected"),
        ("validation", 5, "dev-clean and dev-other list 4 utterances; 5 are"),
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


def test_check_points_below(tmp_path: Path) -> None:
    (tmp_path / "librispeech").mkdir()
    with pytest.raises(DataError, match=f"give --data_dir {tmp_path}/librispeech"):
        librispeech.check(tmp_path)


def test_companions_of_files_are_no_utterances(job: librispeech_prepare.SplitToPrepare) -> None:
    plain = librispeech_prepare.prepare_split(job, expected=4)
    chapter = job.tree / "dev-clean" / "20" / "3"
    (chapter / "._20-3-0000.flac").write_bytes(b"\x00\x05\x16\x07")
    assert librispeech_prepare.prepare_split(job, expected=4) == plain


def test_another_count_is_said_before_any_audio_is_decoded(
    job: librispeech_prepare.SplitToPrepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job.tree / "dev-clean" / "7" / "11" / "7-11-0001.flac").rename(
        job.tree / "dev-clean" / "7" / "11" / "7-11-0001 copy.flac"
    )
    monkeypatch.setattr(librispeech_prepare, "prepare_chapter", None)
    with pytest.raises(DataError, match="has 5 utterances; LibriSpeech has 4"):
        librispeech_prepare.prepare_split(job, expected=4)
    assert not (job.data_dir / job.split).exists()


def test_a_byte_order_mark_is_no_part_of_an_id(job: librispeech_prepare.SplitToPrepare) -> None:
    path = job.tree / "dev-clean" / "7" / "11" / "7-11.trans.txt"
    before = librispeech_prepare.read_transcripts(path.parent, "")
    path.write_text(path.read_text("utf-8").replace("\n", "\r\n"), "utf-8-sig", newline="")
    assert librispeech_prepare.read_transcripts(path.parent, "") == before


def test_the_description_is_that_of_the_lists_and_the_tokenizer(prepared: Path) -> None:
    description = librispeech.describe(prepared)
    moved = prepared.rename(prepared.with_name("moved"))
    assert librispeech.describe(moved) == description
    for name in ("train-clean-100.csv", "dev-other.csv", "test-clean.csv"):
        file = moved / name
        content = file.read_bytes()
        file.write_bytes(content + b"9,9-9-9\n")
        assert librispeech.describe(moved) != description
        file.write_bytes(content)
    (moved / speech_tokenizer.FILE_NAME).write_bytes(b"another")
    assert librispeech.describe(moved) != description
