"""Embedded speech: the same everywhere, voices and texts disjoint, never over other speech."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import espeakng_loader
import numpy as np
import pytest

from tests.workloads.small_speech import SPOKEN
from workloads.base.errors import DataError
from workloads.speech.corpora import speech_corpus, speech_tokenizer, spoken

ROLES = ["train", "validation", "test"]
# Variants with `breath` in their definition: its noise is seeded by the clock.
CLOCK_SEEDED = frozenset(
    {"Alicia", "Demonic", "Reed", "caleb", "f2", "f3", "f5"}
    | {"sandro", "victor", "whisper", "whisperf"}
)


@pytest.fixture(scope="module")
def small(made_once: Callable[..., Path]) -> Path:
    return made_once("spoken", SPOKEN.prepare)


# What is said, and by whom.


def test_no_text_has_two_roles() -> None:
    texts = {role: spoken.digits(role) for role in ROLES}
    assert {role: len(parts) for role, parts in texts.items()} == spoken.DIGITS.sizes
    for first, second in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not set(texts[first]) & set(texts[second])


def test_digit_strings_are_of_two_to_four_words() -> None:
    lengths = {role: [len(text.split()) for text in spoken.digits(role)] for role in ROLES}
    assert {role: [counts.count(n) for n in (2, 3, 4)] for role, counts in lengths.items()} == {
        "train": [160, 720, 720],
        "validation": [20, 90, 90],
        "test": [20, 90, 90],
    }
    assert len({text for role in ROLES for text in spoken.digit_strings(role, 2)}) == 100


def test_no_timbre_has_two_roles() -> None:
    variants = [set(spoken.VARIANTS[role]) for role in ROLES]
    assert [len(names) for names in variants] == [41, 10, 10]
    assert len(set.union(*variants)) == 61
    assert not CLOCK_SEEDED & set.union(*variants)
    # espeak-ng ignores a variant that it lacks.
    folder = Path(espeakng_loader.get_data_path()) / "voices" / "!v"
    assert set.union(*variants) <= {path.name for path in folder.iterdir()}
    assert len(set(spoken.speaker_ids().values())) == 61 * 7


# espeak-ng.


@pytest.mark.slow
def test_two_processes_say_the_same() -> None:
    """Every timbre of every role with changing accents."""
    voices = [voice for role in ROLES for voice in spoken.voices(role)][::5]
    utterances = [
        spoken.Prompt("three seven", voices[number % len(voices)], 200 + number, 50)
        for number in range(90)
    ]
    (_, first), (_, second) = spoken.speak(utterances), spoken.speak(utterances)
    assert len(first) == 90
    for samples, again in zip(first, second, strict=True):
        assert samples.dtype == np.int16
        assert (samples == again).all()
    # A third of a second to a second, and not silence.
    assert all(5000 < len(samples) < 16_000 and np.abs(samples).max() > 2000 for samples in first)
    with pytest.raises(ValueError, match="espeak-ng has no voice"):
        spoken.speak([spoken.Prompt("one", "xx+m1")])


def test_resampling_keeps_tones_and_clips() -> None:
    tone = 10_000 * np.cos(2 * np.pi * 440 * np.arange(22_050) / 22_050)
    expected = 10_000 * np.cos(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    resampled = spoken.resample(np.rint(tone).astype(np.int16))
    # The Kaiser window's ripple is 0.3 %.
    assert np.abs(resampled - expected)[200:-200].max() < 60
    loud = np.repeat(np.array([-(2**15), 2**15 - 1] * 20, np.int16), 50)
    resampled = spoken.resample(loud)
    assert (resampled.min(), resampled.max()) == (-(2**15), 2**15 - 1)


def test_noise_lies_10_to_30_db_below_the_speech() -> None:
    speech = np.rint(8000 * np.sin(np.arange(16_000) / 9)).astype(np.int16)
    noisy = [spoken.with_noise(speech, np.random.RandomState(seed)) for seed in range(60)]
    leads = [len(samples) - len(speech) for samples in noisy]
    noise = [
        samples[lead:] - speech.astype(float) for samples, lead in zip(noisy, leads, strict=True)
    ]
    ratios = [20 * np.log10(np.std(speech) / np.std(samples)) for samples in noise]
    assert 9.8 < min(ratios) < 12
    assert 28 < max(ratios) < 30.2
    assert 0 <= min(leads) < 200
    assert 1400 < max(leads) <= 1600


# Preparation.


@pytest.mark.slow
def test_transcripts_are_what_the_voices_of_a_role_said(small: Path) -> None:
    tokenizer = speech_tokenizer.load(small, SPOKEN.vocab_size, "")
    numbers = spoken.speaker_ids()
    for role in ROLES:
        source = SPOKEN.open_split(small, role)
        ids = [source[number]["targets"] for number in range(len(source))]
        texts = [speech_tokenizer.decode(tokenizer, targets) for targets in ids]
        assert sorted(texts) == sorted(spoken.digits(role)[: SPOKEN.sizes[role]])
        known = {numbers[voice] for voice in spoken.voices(role)}
        assert {int(name.split("-")[0]) for _, name in source.ids} <= known


@pytest.mark.slow
def test_an_utterance_that_is_too_long_ends_a_preparation(tmp_path: Path) -> None:
    short = dataclasses.replace(SPOKEN, max_audio=9000)
    with pytest.raises(DataError, match="1 to 9000 samples are expected"):
        short.prepare(tmp_path)
    assert not (tmp_path / "reference.json").exists()


@pytest.mark.slow
def test_check_compares_with_the_published_hash(small: Path) -> None:
    reference = SPOKEN.read_reference(small)
    digest, made_by = reference.sha256, reference.made_by
    assert made_by.startswith("espeak-ng 1.")
    same = dataclasses.replace(SPOKEN, content_sha256=digest, made_by=made_by)
    assert same.check(small)[-2:] == [
        f"SHA-256 of the content: {digest}",
        f"made by {made_by}, the same audio as the author's",
    ]
    for other in ({"content_sha256": "0" * 64}, {"made_by": "espeak-ng 1.51"}):
        (last,) = dataclasses.replace(same, **other).check(small)[-1:]
        assert last.startswith(f"note: made by {made_by}; figures")


def test_reference_rows() -> None:
    texts = {
        "train": ["ONE TWO", "ONE TWO", "SIX SIX SIX"],
        "validation": ["ONE SIX TWO", "NINE"],
        "test": ["ONE TWO"],
    }
    empty, constant = speech_corpus.reference_rows(texts)
    assert empty == {
        "name": "empty transcript",
        "constant": True,
        "train/wer": 1.0,
        "validation/wer": 1.0,
        "test/wer": 1.0,
    }
    # Three substitutions... of "six six six": two substituted, one deleted, of 7 words; then one
    # deletion, and one substitution with one insertion, of 4 words.
    assert constant == {
        "name": "always 'one two'",
        "constant": True,
        "train/wer": pytest.approx(3 / 7),
        "validation/wer": pytest.approx(3 / 4),
        "test/wer": 0.0,
    }


@pytest.mark.nightly
def test_the_digits_are_those_of_the_repository(tmp_path: Path) -> None:
    """The whole preparation: every utterance is kept, and can be learned."""
    spoken.DIGITS.prepare(tmp_path)
    lines = spoken.DIGITS.check(tmp_path)
    assert [line.rsplit(" ", 2)[1] for line in lines[:3]] == ["1600", "200", "200"]
    for role in ROLES:
        for record in spoken.DIGITS.open_split(tmp_path, role):
            ids = record["targets"][: record["targets_length"]]
            repeats = int((ids[1:] == ids[:-1]).sum())
            # CTC needs a frame per target and one between equal ones; a frame is 40 ms.
            assert record["audio_length"] // 640 >= len(ids) + repeats
