"""Read Russian: cut at labelled pauses, phones as words, and nothing else taken for it."""

import dataclasses
import hashlib
import json
import wave
from pathlib import Path

import numpy as np
import pytest

from tests.workloads import data_files
from workloads import __main__ as command
from workloads.base.errors import DataError
from workloads.speech import ctc
from workloads.speech.corpora import read_speech, speech_records, speech_tokenizer

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
    assert always["test/wer"] == pytest.approx(ctc.word_error_rate(texts["test"], ["a b a"] * 2))
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
