"""From LibriSpeech's own tree to AlgoPerf's layout (`speech_records`).

The tree: `<split>/<speaker>/<chapter>/<speaker>-<chapter>-<number>.flac` beside
`<speaker>-<chapter>.trans.txt`, whose lines are an id, a space and the transcript. Audio is stored
as int16, a quarter of AlgoPerf's int64. A run that was interrupted is repeated: audio that is there
and whole is kept, targets are made anew and written where they differ, and `<split>.csv`, written
last, says that a split is whole. `<split>_left_out.csv` holds what is left out, and why.
"""

import csv
import dataclasses
import functools
import io
import itertools
import re
from collections import Counter
from pathlib import Path

import numpy as np
import sentencepiece
import soundfile

from attention.common import files
from workloads.base.errors import DataError
from workloads.speech.corpora import speech_records, speech_tokenizer
from workloads.storage import npy, preparation

ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ' ")
_UNKNOWN_LENGTH = 2**62  # soundfile gives 2**63 - 1 where the head names no length
_ID = re.compile(r"\d+-\d+-\d+")


def chapters(tree: Path, split: str, repair: str) -> list[Path]:
    """The `<speaker>/<chapter>` folders of a split, sorted; DataError if there are none."""
    folders = [path for path in preparation.visible(tree / split, "[0-9]*/[0-9]*") if path.is_dir()]
    if not folders:
        raise DataError(
            f"{tree / split} holds no <speaker>/<chapter> folders of LibriSpeech", repair
        )
    return folders


def read_transcripts(chapter: Path, repair: str) -> dict[str, str]:
    """Transcript by id, in the file's order; empty where the chapter has no transcript file.

    Raises DataError for a line without an id, or with one that stood there before.
    """
    path = chapter / f"{chapter.parent.name}-{chapter.name}.trans.txt"
    if not path.exists():
        return {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
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
    encoding = info.samplerate, info.channels, info.subtype
    is_expected = encoding == (speech_records.SAMPLE_RATE, 1, "PCM_16")
    if not is_expected or not 0 < info.frames < _UNKNOWN_LENGTH:
        raise DataError(
            f"{path} has {info.samplerate} Hz, {info.channels} channels, {info.subtype}, "
            f"{info.frames} samples; 16000 Hz, 1 channel, PCM_16 and a length are expected",
            repair,
        )
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


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of the utterances of a split: ids kept in order, and (id, reason) left out."""

    split: str
    kept: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        reasons = Counter(reason for _, reason in self.left_out)
        counts = "; ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        note = f" ({counts})" if counts else ""
        return f"{self.split}: {len(self.kept)} utterances, {len(self.left_out)} left out{note}"


@dataclasses.dataclass(frozen=True)
class SplitToPrepare:
    """What a process needs to prepare chapters of one split.

    max_audio: samples at 16 kHz; max_characters: of the transcript; max_targets: ids with the end.
    The default is AlgoPerf's (datasets/librispeech_preprocess.py).
    """

    tree: Path
    data_dir: Path
    split: str
    vocab_size: int
    repair: str
    max_audio: int
    max_targets: int
    max_characters: int = 256

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

    def judge_sizes(self, ids: list[int], frames: int) -> str:
        """The same by its target ids (0, the unknown piece, is CTC's blank) and its samples."""
        if speech_tokenizer.BLANK in ids:
            return "with characters that the tokenizer does not know"
        if len(ids) > self.max_targets:
            return f"of more than {self.max_targets} targets"
        return f"of more than {self.max_audio} samples" if frames > self.max_audio else ""


def prepare_split(job: SplitToPrepare, num_workers: int = 0, expected: int | None = None) -> Report:
    """Write one split with the tokenizer in `data_dir`; returns what was kept and left out.

    `num_workers` processes share the chapters; 0 does them here. Raises DataError for a tree that
    lacks the split, for a file that cannot be read or is not 16 kHz mono, for a split in which
    nothing is left, and, where `expected` is given, for any other number of utterances before any
    is decoded.
    """
    folders = chapters(job.tree, job.split, job.repair)
    if expected is not None:
        _check_count(job, folders, expected)
    (job.data_dir / job.split).mkdir(parents=True, exist_ok=True)
    tokenizer = speech_tokenizer.load(job.data_dir, job.vocab_size, job.repair)
    prepare = functools.partial(prepare_chapter, job, tokenizer)
    parts = preparation.in_processes(prepare, folders, num_workers)
    outcomes = [*itertools.chain.from_iterable(parts)]
    kept = tuple(name for name, reason in outcomes if not reason)
    left_out = tuple((name, reason) for name, reason in outcomes if reason)
    report = Report(job.split, kept, left_out)
    if not kept:
        raise DataError(f"{job.tree / job.split}: no utterance can be kept. {report}", job.repair)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([["id", "reason"], *left_out])
    files.write(job.data_dir / f"{job.split}_left_out.csv", text.getvalue())
    speech_records.write_ids(job.data_dir, job.split, kept)
    return report


def _check_count(job: SplitToPrepare, chapters: list[Path], expected: int) -> None:
    """Raises DataError, before any audio is decoded, where the split has other utterances."""
    total = 0
    for chapter in chapters:
        transcripts, audio = _utterances(chapter, job.repair)
        total += len(transcripts.keys() | audio.keys())
    if total != expected:
        raise DataError(
            f"{job.tree / job.split} has {total} utterances; LibriSpeech has {expected}", job.repair
        )


def _utterances(chapter: Path, repair: str) -> tuple[dict[str, str], dict[str, Path]]:
    """Transcripts and audio files of a chapter, by id."""
    audio = {path.stem: path for path in preparation.visible(chapter, "*.flac")}
    return read_transcripts(chapter, repair), audio


def prepare_chapter(
    job: SplitToPrepare, tokenizer: sentencepiece.SentencePieceProcessor, chapter: Path
) -> list[tuple[str, str]]:
    """Write the utterances of one chapter that may be kept; (id, '' or why it is left out)."""
    transcripts, audio = _utterances(chapter, job.repair)
    return [
        (name, _prepare_utterance(job, tokenizer, transcripts.get(name), audio.get(name)))
        for name in sorted(transcripts.keys() | audio.keys())
    ]


def _prepare_utterance(
    job: SplitToPrepare,
    tokenizer: sentencepiece.SentencePieceProcessor,
    transcript: str | None,
    audio: Path | None,
) -> str:
    """Write an utterance, or say why it is left out."""
    reason = job.judge_text(transcript, audio)
    if reason or transcript is None or audio is None:
        return reason
    ids = speech_tokenizer.encode(tokenizer, transcript)
    # The length stands in the file's head, so audio that is too long is not decoded.
    length = frames(audio, job.repair)
    reason = job.judge_sizes(ids, length)
    if reason:
        return reason
    place = speech_records.audio_path(job.data_dir, job.split, audio.stem)
    if not _is_whole(place, length):
        files.write(place, _npy(read_audio(audio, length, job.repair)))
    place = speech_records.targets_path(job.data_dir, job.split, audio.stem)
    targets = _npy(np.array(ids, np.int32))
    if not place.exists() or place.read_bytes() != targets:
        files.write(place, targets)
    return ""


def _is_whole(path: Path, frames: int) -> bool:
    """Whether an audio file of that many samples is there, by its head and its size."""
    try:
        array = npy.read(path, is_mapped=True)
    except DataError:
        return False
    return array.shape == (frames,) and array.dtype.kind in "iu"


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
