"""From LibriSpeech's own tree to AlgoPerf's layout (`speech_records`).

The tree is `<split>/<speaker>/<chapter>/<speaker>-<chapter>-<number>.flac` beside
`<speaker>-<chapter>.trans.txt`, whose lines are an id, a space and the transcript. Audio is stored
as int16, a quarter of AlgoPerf's int64. A run that was interrupted is repeated: audio that is
there and whole is kept, targets are made anew and written where they differ, and `<split>.csv`,
written last, says that a split is whole. `<split>_left_out.csv` holds what is left out, and why.
"""

import concurrent.futures
import csv
import dataclasses
import io
import multiprocessing
import os
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import sentencepiece
import soundfile

from workloads import speech_records, speech_tokenizer
from workloads.errors import DataError

ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ' ")
_ID = re.compile(r"\d+-\d+-\d+")


@dataclasses.dataclass(frozen=True)
class Limits:
    """What an utterance may have at most; AlgoPerf's values (datasets/librispeech_preprocess.py).

    max_audio: samples at 16 kHz; max_characters: of the transcript; max_targets: ids with the end.
    """

    max_audio: int = 320_000
    max_characters: int = 256
    max_targets: int = 256


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of the utterances of a split: ids kept in order, and (id, reason) left out."""

    split: str
    kept: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        reasons = Counter(reason for _, reason in self.left_out)
        counts = "; ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        return f"{self.split}: {len(self.kept)} utterances, {len(self.left_out)} left out" + (
            f" ({counts})" if counts else ""
        )


@dataclasses.dataclass(frozen=True)
class Job:
    """What a process needs to prepare chapters of one split."""

    tree: Path
    data_dir: Path
    split: str
    limits: Limits
    vocab_size: int
    repair: str


def prepare_split(job: Job, num_workers: int = 0, expected: int | None = None) -> Report:
    """Write one split with the tokenizer in `data_dir`; returns what was kept and left out.

    `num_workers` processes share the chapters; 0 does them here. Raises DataError for a tree that
    lacks the split, for a file that cannot be read or is not 16 kHz mono, for a split in which
    nothing is left, and, where `expected` is given, for any other number of utterances.
    """
    chapters = chapters_of(job.tree, job.split, job.repair)
    (job.data_dir / job.split).mkdir(parents=True, exist_ok=True)
    parts = list(_in_order(job, chapters, num_workers))
    kept, left_out = (
        tuple(entry for part in parts for entry in getattr(part, name))
        for name in ("kept", "left_out")
    )
    report = Report(job.split, kept, left_out)
    _check_report(job, report, expected)
    write_lists(job.data_dir, report)
    return report


def chapters_of(tree: Path, split: str, repair: str) -> list[Path]:
    """The `<speaker>/<chapter>` folders of a split, sorted; DataError if there are none."""
    chapters = sorted(path for path in (tree / split).glob("*/*") if path.is_dir())
    if not chapters:
        raise DataError(
            f"{tree / split} holds no <speaker>/<chapter> folders of LibriSpeech", repair
        )
    return chapters


def read_transcripts(chapter: Path, repair: str) -> dict[str, str]:
    """Transcript by id, in the file's order; nothing where the chapter has no transcript file."""
    path = chapter / f"{chapter.parent.name}-{chapter.name}.trans.txt"
    if not path.exists():
        return {}
    transcripts: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} cannot be read: {problem}", repair) from problem
    for number, line in enumerate(lines, 1):
        name, _, text = line.strip().partition(" ")
        if not _ID.fullmatch(name) or name in transcripts:
            kind = "an id that stands there twice" if name in transcripts else "no id"
            raise DataError(f"{path}, line {number}: {name!r} is {kind}", repair)
        transcripts[name] = text.strip()
    return transcripts


def _in_order(job: Job, chapters: list[Path], num_workers: int) -> Iterator[Report]:
    if not num_workers:
        tokenizer = _tokenizer(job)
        yield from (prepare_chapter(job, tokenizer, chapter) for chapter in chapters)
        return
    # Spawned, not forked: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(num_workers, context, _start, (job,)) as pool:
        yield from pool.map(_prepare_in_worker, chapters, chunksize=4)


_WORKER: list[tuple[Job, sentencepiece.SentencePieceProcessor]] = []


def _start(job: Job) -> None:
    _WORKER[:] = [(job, _tokenizer(job))]


def _prepare_in_worker(chapter: Path) -> Report:
    ((job, tokenizer),) = _WORKER
    return prepare_chapter(job, tokenizer, chapter)


def _tokenizer(job: Job) -> sentencepiece.SentencePieceProcessor:
    return speech_tokenizer.load(job.data_dir, job.vocab_size, job.repair)


def prepare_chapter(
    job: Job, tokenizer: sentencepiece.SentencePieceProcessor, chapter: Path
) -> Report:
    """Write the utterances of one chapter that may be kept."""
    transcripts = read_transcripts(chapter, job.repair)
    audio = {path.stem: path for path in chapter.glob("*.flac")}
    kept, left_out = [], []
    for name in sorted(transcripts.keys() | audio.keys()):
        ids: list[int] = []
        reason = _reason(job.limits, transcripts.get(name), audio.get(name))
        if not reason:
            ids = speech_tokenizer.encode(tokenizer, transcripts[name])
            reason = _targets_reason(job.limits, ids)
        # The length stands in the file's head, so audio that is too long is not decoded.
        frames = 0 if reason else _frames(audio[name], job.repair)
        reason = reason or _audio_reason(job.limits, frames)
        if reason:
            left_out.append((name, reason))
            continue
        _write_utterance(job, audio[name], frames, np.array(ids, np.int32))
        kept.append(name)
    return Report(job.split, tuple(kept), tuple(left_out))


def _reason(limits: Limits, transcript: str | None, audio: Path | None) -> str:
    """Why an utterance is left out before its audio is opened; empty if it is not."""
    if transcript is None:
        return "without transcript"
    if audio is None:
        return "without audio"
    if not transcript:
        return "with an empty transcript"
    if not ALPHABET.issuperset(transcript):
        return "with characters other than A-Z, apostrophe and space"
    if len(transcript) > limits.max_characters:
        return f"of more than {limits.max_characters} characters"
    return ""


def _targets_reason(limits: Limits, ids: list[int]) -> str:
    if speech_tokenizer.BLANK in ids:
        return "with characters that the tokenizer does not know"
    return f"of more than {limits.max_targets} targets" if len(ids) > limits.max_targets else ""


def _audio_reason(limits: Limits, frames: int) -> str:
    if not frames:
        return "with empty audio"
    return f"of more than {limits.max_audio} samples" if frames > limits.max_audio else ""


def _frames(path: Path, repair: str) -> int:
    """Length in samples; DataError for anything but mono at 16 kHz in 16 bits."""
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
    return int(info.frames)


def _write_utterance(job: Job, flac: Path, frames: int, targets: np.ndarray) -> None:
    place = speech_records.audio_path(job.data_dir, job.split, flac.stem)
    if not _is_whole(place, frames):
        try:
            audio, _ = soundfile.read(str(flac), dtype="int16")
        except (OSError, soundfile.SoundFileError) as problem:
            raise DataError(f"{flac} cannot be decoded: {problem}", job.repair) from problem
        if audio.shape != (frames,):
            raise DataError(f"{flac}: {len(audio)} of {frames} samples can be decoded", job.repair)
        write_bytes(place, _npy(audio))
    place = speech_records.targets_path(job.data_dir, job.split, flac.stem)
    content = _npy(targets)
    if not place.exists() or place.read_bytes() != content:
        write_bytes(place, content)


def _is_whole(path: Path, frames: int) -> bool:
    """Whether an audio file of that many samples is there, by its head and its size."""
    try:
        array = np.load(path, mmap_mode="r")  # raises where the file is shorter than it says
    except (OSError, ValueError, EOFError):
        return False
    return array.shape == (frames,) and array.dtype.kind in "iu"


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def write_lists(data_dir: Path, report: Report) -> None:
    """`<split>_left_out.csv`, then `<split>.csv`."""
    left_out = _csv([["id", "reason"], *report.left_out])
    write_bytes(data_dir / f"{report.split}_left_out.csv", left_out)
    rows = [[number, name] for number, name in enumerate(report.kept)]
    write_bytes(data_dir / f"{report.split}.csv", _csv([speech_records.CSV_HEADER, *rows]))


def _csv(rows: Iterable[Iterable[object]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode()


def _check_report(job: Job, report: Report, expected: int | None) -> None:
    total = len(report.kept) + len(report.left_out)
    if expected not in (None, total):
        raise DataError(
            f"{job.tree / job.split} has {total} utterances; LibriSpeech has {expected}", job.repair
        )
    if not report.kept:
        raise DataError(f"{job.tree / job.split}: no utterance can be kept. {report}", job.repair)
