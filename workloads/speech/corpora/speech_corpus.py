"""An embedded corpus of synthesised speech: what it consists of, and its check.

Below `data_dir`: `LibriSpeech/<split>/<speaker>/<chapter>/…` with `SPEAKERS.TXT`, and what
`librispeech_prepare` makes of it, with the splits' names of LibriSpeech; `reference.json`, written
last, says that all of it is there. `speech_corpus_writer` makes it.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece

from workloads.base.errors import DataError
from workloads.speech.corpora import speech_records, speech_tokenizer

SPLITS: dict[str, tuple[str, ...]] = {
    "train": ("train-clean-100",),
    "validation": ("dev-clean",),
    "test": ("test-clean",),
}
TREE, REFERENCE_FILE = "LibriSpeech", "reference.json"


@dataclass(frozen=True)
class Corpus:
    """An embedded corpus.

    workload: whose data it is; texts(role): what is said, one text per utterance, upper case;
    rates: words a minute, from and to; max_audio in samples, max_targets in ids, both at most;
    content_sha256: as `check` reckons it, made by `espeak_version` on the author's machine.
    """

    workload: str
    note: str
    texts: Callable[[str], list[str]]
    sizes: dict[str, int]
    rates: tuple[int, int]
    max_audio: int
    max_targets: int
    vocab_size: int
    seed: int
    espeak_version: str
    content_sha256: str


def open_split(
    corpus: Corpus, data_dir: str | os.PathLike[str], role: str
) -> speech_records.SpeechSplit:
    """The utterances of a role (train, validation, test)."""
    return speech_records.SpeechSplit(
        data_dir, SPLITS[role], corpus.max_audio, corpus.max_targets, repair(corpus, data_dir)
    )


def check(corpus: Corpus, data_dir: str | os.PathLike[str]) -> list[str]:
    """Read everything; one line per split and two about hashes; DataError at what is amiss.

    A hash other than `reference.json`'s is damage; one other than `corpus.content_sha256` is told.
    """
    tokenizer = speech_tokenizer.load(data_dir, corpus.vocab_size, repair(corpus, data_dir))
    sources = {role: open_split(corpus, data_dir, role) for role in SPLITS}
    for role, source in sources.items():
        if len(source) != corpus.sizes[role]:
            raise DataError(
                f"{source} has {len(source)} utterances; {corpus.sizes[role]} are expected",
                repair(corpus, data_dir),
            )
    digest = content_sha256(sources, tokenizer)
    reference = read_reference(corpus, data_dir)
    if digest != reference.get("sha256"):
        raise DataError(
            f"{data_dir}: audio, targets and pieces have SHA-256 {digest}, but {REFERENCE_FILE} "
            f"says {reference.get('sha256')}",
            repair(corpus, data_dir),
        )
    lines = [f"{role}: {source}, {len(source)} utterances" for role, source in sources.items()]
    return [
        *lines,
        f"SHA-256 of audio, targets and pieces: {digest}",
        _comparison(corpus, digest, str(reference.get("espeak_ng"))),
    ]


def read_reference(corpus: Corpus, data_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """`reference.json`: `note`, `rows` of word error rates, `sha256`, `espeak_ng`."""
    path = Path(data_dir) / REFERENCE_FILE
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise ValueError("it holds no object")
        return content
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} cannot be read: {problem}", repair(corpus, data_dir)) from problem


def content_sha256(
    sources: dict[str, speech_records.SpeechSplit],
    tokenizer: sentencepiece.SentencePieceProcessor,
) -> str:
    """SHA-256 over the tokenizer's pieces and, by split, every id, its samples and targets."""
    pieces = [tokenizer.id_to_piece(number) for number in range(tokenizer.vocab_size())]
    digest = hashlib.sha256("\n".join(pieces).encode())
    for role in sorted(sources):
        digest.update(role.encode())
        for number, (_, utterance) in enumerate(sources[role].ids):
            record = sources[role][number]
            digest.update(utterance.encode())
            digest.update(record["audio"][: record["audio_length"]].astype("<i2").tobytes())
            digest.update(record["targets"][: record["targets_length"]].astype("<i4").tobytes())
    return digest.hexdigest()


def repair(corpus: Corpus, data_dir: str | os.PathLike[str]) -> str:
    """The command that mends the directory."""
    return f"python -m workloads prepare {corpus.workload} --data_dir {data_dir}"


def _comparison(corpus: Corpus, digest: str, version: str) -> str:
    if version != corpus.espeak_version:
        return (
            f"made by espeak-ng {version}; figures of this repository are from "
            f"{corpus.espeak_version}"
        )
    if digest != corpus.content_sha256:
        return (
            f"note: espeak-ng {version} gave {corpus.content_sha256} on the author's machine; its "
            "floating point, or SentencePiece, differs here, so results may differ slightly from "
            "the published ones"
        )
    return f"made by espeak-ng {version}, the same audio as the author's"
