"""From LibriSpeech's own tree (`librispeech_tree`) to AlgoPerf's layout (`speech_records`).

Audio is stored as int16, a quarter of AlgoPerf's int64. A run that was interrupted is repeated:
audio that is there and whole is kept, targets are made anew and written where they differ, and
`<split>.csv`, written last, says that a split is whole. `<split>_left_out.csv` holds what is left
out, and why.
"""

import concurrent.futures
import csv
import dataclasses
import io
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import sentencepiece

from attention.files import replacing
from workloads.base.errors import DataError
from workloads.speech.corpora import librispeech_tree, speech_records, speech_tokenizer
from workloads.speech.corpora.librispeech_tree import Limits


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of the utterances of a split: ids kept in order, and (id, reason) left out."""

    split: str
    kept: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.split}: {len(self.kept)} utterances{summary(self.left_out)}"


def summary(left_out: Iterable[tuple[str, str]]) -> str:
    """Text on what was left out, as in `, 2 left out (2 without audio)`."""
    reasons = Counter(reason for _, reason in left_out)
    counts = "; ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return f", {reasons.total()} left out" + (f" ({counts})" if counts else "")


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
    chapters = librispeech_tree.chapters(job.tree, job.split, job.repair)
    (job.data_dir / job.split).mkdir(parents=True, exist_ok=True)
    parts = list(_in_order(job, chapters, num_workers))
    kept = tuple(name for part in parts for name in part.kept)
    left_out = tuple(entry for part in parts for entry in part.left_out)
    report = Report(job.split, kept, left_out)
    _check_report(job, report, expected)
    _write_lists(job.data_dir, report)
    return report


def _in_order(job: Job, chapters: list[Path], num_workers: int) -> Iterator[Report]:
    if not num_workers:
        tokenizer = _tokenizer(job)
        yield from (prepare_chapter(job, tokenizer, chapter) for chapter in chapters)
        return
    # Spawned, not forked: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    try:
        with concurrent.futures.ProcessPoolExecutor(num_workers, context, _start, (job,)) as pool:
            yield from pool.map(_prepare_in_worker, chapters, chunksize=4)
    except concurrent.futures.process.BrokenProcessPool as problem:
        raise OSError(
            f"a process that prepared {job.split} was killed, perhaps for lack of memory; run the "
            "same command again, what is whole is kept"
        ) from problem


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
    transcripts = librispeech_tree.read_transcripts(chapter, job.repair)
    audio = {path.stem: path for path in chapter.glob("*.flac")}
    kept, left_out = [], []
    for name in sorted(transcripts.keys() | audio.keys()):
        reason = _prepare_utterance(job, tokenizer, transcripts.get(name), audio.get(name))
        if reason:
            left_out.append((name, reason))
        else:
            kept.append(name)
    return Report(job.split, tuple(kept), tuple(left_out))


def _prepare_utterance(
    job: Job,
    tokenizer: sentencepiece.SentencePieceProcessor,
    transcript: str | None,
    audio: Path | None,
) -> str:
    """Write an utterance, or say why it is left out."""
    reason = job.limits.judge_text(transcript, audio)
    if reason or transcript is None or audio is None:
        return reason
    ids = speech_tokenizer.encode(tokenizer, transcript)
    # The length stands in the file's head, so audio that is too long is not decoded.
    frames = librispeech_tree.frames(audio, job.repair)
    reason = job.limits.judge_targets(ids) or job.limits.judge_audio(frames)
    if not reason:
        _write_audio(job, audio, frames)
        _write_targets(job, audio.stem, ids)
    return reason


def _write_audio(job: Job, flac: Path, frames: int) -> None:
    place = speech_records.audio_path(job.data_dir, job.split, flac.stem)
    if not _is_whole(place, frames):
        write_bytes(place, _npy(librispeech_tree.read_audio(flac, frames, job.repair)))


def _write_targets(job: Job, name: str, ids: list[int]) -> None:
    place = speech_records.targets_path(job.data_dir, job.split, name)
    content = _npy(np.array(ids, np.int32))
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
    with replacing(path) as new:
        new.write_bytes(content)


def left_out_path(data_dir: str | os.PathLike[str], split: str) -> Path:
    """Where the utterances of a split that were left out are listed, with the reason."""
    return Path(data_dir) / f"{split}_left_out.csv"


def _write_lists(data_dir: Path, report: Report) -> None:
    left_out = _csv([["id", "reason"], *report.left_out])
    write_bytes(left_out_path(data_dir, report.split), left_out)
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
