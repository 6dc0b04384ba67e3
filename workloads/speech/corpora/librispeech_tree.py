"""LibriSpeech's own tree, read: chapters, transcripts, audio, and why an utterance is left out.

`<split>/<speaker>/<chapter>/<speaker>-<chapter>-<number>.flac` beside
`<speaker>-<chapter>.trans.txt`, whose lines are an id, a space and the transcript.
"""

import dataclasses
import re
from pathlib import Path

import numpy as np
import soundfile

from workloads.base.errors import DataError
from workloads.speech.corpora import speech_records, speech_tokenizer

ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ' ")
_UNKNOWN_LENGTH = 2**62  # soundfile gives 2**63 - 1 where the head names no length
_ID = re.compile(r"\d+-\d+-\d+")


@dataclasses.dataclass(frozen=True)
class Limits:
    """What an utterance may have at most; AlgoPerf's values (datasets/librispeech_preprocess.py).

    max_audio: samples at 16 kHz; max_characters: of the transcript; max_targets: ids with the end.
    """

    max_audio: int = 320_000
    max_characters: int = 256
    max_targets: int = 256

    def judge_text(self, transcript: str | None, audio: Path | None) -> str:
        """Why an utterance is left out, before its audio is opened; empty if it is not."""
        if transcript is None:
            return "without transcript"
        if audio is None:
            return "without audio"
        if not transcript:
            return "with an empty transcript"
        if not ALPHABET.issuperset(transcript):
            return "with characters other than A-Z, apostrophe and space"
        if len(transcript) > self.max_characters:
            return f"of more than {self.max_characters} characters"
        return ""

    def judge_targets(self, ids: list[int]) -> str:
        """The same by its target ids; 0, the unknown piece, is CTC's blank and no target."""
        if speech_tokenizer.BLANK in ids:
            return "with characters that the tokenizer does not know"
        return f"of more than {self.max_targets} targets" if len(ids) > self.max_targets else ""

    def judge_audio(self, frames: int) -> str:
        """The same by its length in samples."""
        return f"of more than {self.max_audio} samples" if frames > self.max_audio else ""


def chapters(tree: Path, split: str, repair: str) -> list[Path]:
    """The `<speaker>/<chapter>` folders of a split, sorted; DataError if there are none."""
    found = sorted(path for path in (tree / split).glob("*/*") if path.is_dir())
    if not found:
        raise DataError(
            f"{tree / split} holds no <speaker>/<chapter> folders of LibriSpeech", repair
        )
    return found


def read_transcripts(chapter: Path, repair: str) -> dict[str, str]:
    """Transcript by id, in the file's order; empty where the chapter has no transcript file.

    Raises DataError for a line without an id, or with one that stood there before.
    """
    path = chapter / f"{chapter.parent.name}-{chapter.name}.trans.txt"
    if not path.exists():
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} cannot be read: {problem}", repair) from problem
    transcripts: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, _, text = line.strip().partition(" ")
        if not _ID.fullmatch(name) or name in transcripts:
            kind = "an id that stands there twice" if name in transcripts else "no id"
            raise DataError(f"{path}, line {number}: {name!r} is {kind}", repair)
        transcripts[name] = text.strip()
    return transcripts


def frames(path: Path, repair: str) -> int:
    """Length in samples, by the file's head; DataError for anything but 16 kHz, mono, 16 bits."""
    try:
        info = soundfile.info(str(path))
    except (OSError, soundfile.SoundFileError) as problem:
        raise DataError(f"{path} is no sound file: {problem}", repair) from problem
    found = info.samplerate, info.channels, info.subtype
    if found != (speech_records.SAMPLE_RATE, 1, "PCM_16"):
        raise DataError(
            f"{path} has {found[0]} Hz, {found[1]} channels, {found[2]}; 16000 Hz, 1 channel, "
            "PCM_16 is expected",
            repair,
        )
    if not 0 < info.frames < _UNKNOWN_LENGTH:
        raise DataError(f"{path} does not say how many samples it has, or has none", repair)
    return int(info.frames)


def read_audio(path: Path, length: int, repair: str) -> np.ndarray:
    """The samples, int16 `[length]`; DataError where fewer can be decoded."""
    try:
        audio, _ = soundfile.read(str(path), dtype="int16")
    except (OSError, soundfile.SoundFileError) as problem:
        raise DataError(f"{path} cannot be decoded: {problem}", repair) from problem
    if audio.shape != (length,):
        raise DataError(f"{path}: {len(audio)} of {length} samples can be decoded", repair)
    return audio
