"""An embedded corpus of synthesised speech: what it consists of, its check, and how it is made.

Below `data_dir`: the tokenizer and, in `speech_records`' layout, the splits train, validation and
test; `reference.json`, written last, says that all of it is there. Noise and every choice come from
RandomState, whose streams are frozen (NEP 19), in integer arithmetic; only espeak-ng and the filter
behind it may round differently on another machine.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import sentencepiece

from attention import files
from workloads.base.errors import repair_commands
from workloads.speech.corpora import espeak, speakers, speech_records, speech_tokenizer
from workloads.storage import preparation

SPLITS: dict[str, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation",),
    "test": ("test",),
}


@dataclass(frozen=True)
class Corpus:
    """An embedded corpus.

    workload: whose data it is; texts(role): one text per utterance, upper case;
    rates: words a minute, from and to; max_audio: samples, and max_targets: ids, at most;
    content_sha256: as `check` computes it, made by `espeak_version` on the author's machine.
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

    def prepare(self, data_dir: str | os.PathLike[str]) -> Path:
        """Write the corpus below `data_dir` unless it is there and whole; returns `data_dir`.

        Two preparations at once wait for each other. Raises DataError where the directory holds
        other speech.
        """
        return preparation.prepare_once(data_dir, self.check, self._write)

    def open_split(self, data_dir: str | os.PathLike[str], role: str) -> speech_records.SpeechSplit:
        """The utterances of a role (train, validation, test)."""
        return speech_records.SpeechSplit(
            data_dir, SPLITS[role], self.max_audio, self.max_targets, self.repair(data_dir)
        )

    def check(self, data_dir: str | os.PathLike[str]) -> list[str]:
        """Read everything; one line per split and two about hashes; DataError at what is amiss.

        A hash other than `reference.json`'s is damage. A line says whether it is `content_sha256`.
        """
        repair = self.repair(data_dir)
        tokenizer = speech_tokenizer.load(data_dir, self.vocab_size, repair)
        sources = {role: self.open_split(data_dir, role) for role in SPLITS}
        digest = content_sha256(sources, tokenizer)
        reference = self.read_reference(data_dir)
        stored, version = reference.get("sha256"), reference.get("espeak_ng")
        preparation.check_digest(data_dir, "audio, targets and pieces", digest, stored, repair)
        comparison = (
            f"note: made by espeak-ng {version}; figures of this repository are from "
            f"{self.espeak_version}, which gave {self.content_sha256} on the author's machine. "
            "Results may differ slightly from the published ones"
        )
        if (version, digest) == (self.espeak_version, self.content_sha256):
            comparison = f"made by espeak-ng {version}, the same audio as the author's"
        return [
            *(f"{role}: {source}, {len(source)} utterances" for role, source in sources.items()),
            f"SHA-256 of audio, targets and pieces: {digest}",
            comparison,
        ]

    def read_reference(self, data_dir: str | os.PathLike[str]) -> dict[str, Any]:
        """`reference.json`: `note`, `rows` with `<role>/wer`, `sha256`, `espeak_ng`."""
        return preparation.read_reference(data_dir, self.repair(data_dir))

    def repair(self, data_dir: str | os.PathLike[str]) -> str:
        """The commands that make the corpus and check it."""
        return repair_commands(self.workload, data_dir)

    def _write(self, data_dir: Path) -> None:
        """Writes everything, the reference last.

        Raises DataError for an utterance that is longer than `max_audio`.
        """
        names = [speech_tokenizer.FILE_NAME, preparation.REFERENCE_FILE]
        lists = [f"{split}.csv" for split in SPLITS]
        preparation.claim(data_dir, self.note, [*names, *SPLITS, *lists])
        (data_dir / preparation.REFERENCE_FILE).unlink(missing_ok=True)
        texts = {role: self.texts(role) for role in SPLITS}
        model = speech_tokenizer.train(texts["train"], self.vocab_size)
        files.write(data_dir / speech_tokenizer.FILE_NAME, model)
        tokenizer = speech_tokenizer.load(data_dir, self.vocab_size, "")
        lines = self._lines(texts)
        version, speech = espeak.speak([line.utterance for line in lines])
        random = np.random.RandomState(self.seed)
        for line, samples in zip(lines, speech, strict=True):
            audio = speakers.with_noise(samples, random)
            ids = speech_tokenizer.encode(tokenizer, line.utterance.text.upper())
            speech_records.write(data_dir, line.split, line.name, audio, ids)
        for role in SPLITS:
            names = [line.name for line in lines if line.split == role]
            speech_records.write_ids(data_dir, role, names)
        sources = {role: self.open_split(data_dir, role) for role in SPLITS}
        reference = {
            "note": self.note,
            "rows": reference_rows(texts),
            "sha256": content_sha256(sources, tokenizer),
            "espeak_ng": version,
        }
        files.write(data_dir / preparation.REFERENCE_FILE, json.dumps(reference, indent=2) + "\n")

    def _lines(self, texts: dict[str, list[str]]) -> list[speakers.Line]:
        return [
            line
            for number, role in enumerate(SPLITS)
            for line in speakers.lines(
                role,
                texts[role],
                speakers.voices(role),
                self.rates,
                # A stream of its own for every role: one role's size changes no other's speech.
                np.random.RandomState([self.seed, number]),
            )
        ]


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


def reference_rows(texts: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Word error rates of two answers that need no ear: nothing, and train's commonest text."""
    counts = Counter(texts["train"])
    commonest = max(sorted(counts), key=counts.__getitem__)
    answers = {"empty transcript": "", f"always {commonest.lower()!r}": commonest}
    return [
        {"name": name, "constant": True}
        | {
            f"{role}/wer": jiwer.wer(spoken, [answer] * len(spoken))
            for role, spoken in texts.items()
        }
        for name, answer in answers.items()
    ]
