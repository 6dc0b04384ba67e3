"""A small corpus of speech: what it consists of, how it is written and checked.

Below `data_dir`: the tokenizer and, in `speech_records`' layout, the splits train, validation and
test; `reference.json`, written last, says that all of it is there.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jiwer
import numpy as np
import sentencepiece

from attention.common import files
from workloads.speech.corpora import speech_records, speech_tokenizer
from workloads.storage import small_data

SPLITS: dict[str, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation",),
    "test": ("test",),
}


class Utterance(NamedTuple):
    """What is said in a role: samples int16 at 16 kHz, and the text that the tokenizer gets."""

    role: str
    name: str
    audio: np.ndarray
    text: str


@dataclass(frozen=True, kw_only=True)
class SpeechCorpus(small_data.SmallData):
    """A small corpus.

    max_audio: samples, and max_targets: ids, at most. content_sha256: of the content that `made_by`
    gave on the author's machine.
    """

    sizes: dict[str, int]
    max_audio: int
    max_targets: int
    vocab_size: int
    made_by: str
    content_sha256: str

    @property
    def names(self) -> list[str]:
        return [speech_tokenizer.FILE_NAME, *SPLITS, *(f"{split}.csv" for split in SPLITS)]

    def open_split(self, data_dir: str | os.PathLike[str], role: str) -> speech_records.SpeechSplit:
        """Returns the utterances of a role (train, validation, test)."""
        return speech_records.SpeechSplit(
            data_dir,
            SPLITS[role],
            self.max_audio,
            self.max_targets,
            self.repair(data_dir),
            self.vocab_size,
        )

    def _examine(self, data_dir: Path) -> tuple[list[str], str]:
        tokenizer = speech_tokenizer.load(data_dir, self.vocab_size, self.repair(data_dir))
        sources = {role: self.open_split(data_dir, role) for role in SPLITS}
        lines = [f"{role}: {source}, {len(source)} utterances" for role, source in sources.items()]
        return lines, content_sha256(sources, tokenizer)

    def _comparison(self, reference: small_data.Reference) -> list[str]:
        if (reference.made_by, reference.sha256) == (self.made_by, self.content_sha256):
            return [f"made by {reference.made_by}, the same audio as the author's"]
        return [
            f"note: made by {reference.made_by}; figures of this repository are from "
            f"{self.made_by}, which gave {self.content_sha256} on the author's machine. "
            "Results may differ slightly from the published ones"
        ]

    def write(
        self, data_dir: Path, utterances: Sequence[Utterance], made_by: str, **settings: Any
    ) -> dict[str, Any]:
        """Writes all utterances; settings: of SentencePiece. Returns rows and `made_by`.

        Raises DataError for an utterance that is longer than `max_audio`.
        """
        texts = {
            role: [utterance.text for utterance in utterances if utterance.role == role]
            for role in SPLITS
        }
        model = speech_tokenizer.train(texts["train"], self.vocab_size, **settings)
        files.write(data_dir / speech_tokenizer.FILE_NAME, model)
        tokenizer = speech_tokenizer.load(data_dir, self.vocab_size, "")
        for utterance in utterances:
            ids = speech_tokenizer.encode(tokenizer, utterance.text)
            speech_records.write(data_dir, utterance.role, utterance.name, utterance.audio, ids)
        for role in SPLITS:
            names = [utterance.name for utterance in utterances if utterance.role == role]
            speech_records.write_ids(data_dir, role, names)
        return {"rows": reference_rows(texts), "made_by": made_by}


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
