"""Documents to fixed-length records: tokens one after another, a separator after each document.

Records are cut from that stream without regard to where documents end; what is left at the end and
fills no record is counted. Language model and BERT share this form: full sequences without
padding, no pairs of sentences and no next-sentence prediction (RoBERTa, Liu et al. 2019, section
4.2, FULL-SENTENCES across documents).
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workloads.storage import token_shards, tokenizer

# Characters that are tokenised at a time: what lies in memory, beside one document.
_BATCH_CHARACTERS = 2**20


@dataclasses.dataclass(frozen=True)
class Counts:
    """What was written: tokens = records · length + dropped_tokens, separators included."""

    records: int = 0
    documents: int = 0
    empty_documents: int = 0
    tokens: int = 0
    dropped_tokens: int = 0
    unknown_tokens: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Counts(*(mine + theirs for mine, theirs in pairs))


class Packer:
    """Cuts a stream of documents into rows; `tail` is what does not fill one yet."""

    def __init__(self, length: int, vocab_size: int) -> None:
        if length < 1 or not 0 < vocab_size <= token_shards.MAX_VOCAB_SIZE:
            raise ValueError(
                f"length is {length}, vocab_size {vocab_size}; 1 or more, and 1 to "
                f"{token_shards.MAX_VOCAB_SIZE} are allowed"
            )
        self._length, self._vocab_size = length, vocab_size
        self.tail = np.zeros(0, token_shards.DTYPE)

    def add(self, documents: Iterable[Sequence[int]]) -> np.ndarray:
        """Rows uint16 `[n, length]` that these documents fill, separator after each.

        Raises ValueError for an id outside the vocabulary.
        """
        ids = itertools.chain.from_iterable((*document, tokenizer.EOS) for document in documents)
        new = np.fromiter(ids, np.int64)
        wrong = new[(new < 0) | (new >= self._vocab_size)]
        if wrong.size:
            raise ValueError(f"token id {wrong[0]}; 0 to {self._vocab_size - 1} are allowed")
        stream = np.concatenate([self.tail, new.astype(token_shards.DTYPE)])
        end = len(stream) - len(stream) % self._length
        self.tail = stream[end:].copy()
        return stream[:end].reshape(-1, self._length)


def write_shard(
    path: Path, texts: Iterable[str], processor: Any, length: int, max_records: int | None = None
) -> Counts:
    """Tokenise and pack `texts` into one shard file, which appears when it is whole.

    `max_records` cuts the shard; what is beyond counts as dropped. Memory is bounded by the
    longest document.
    """
    packer = Packer(length, processor.vocab_size())
    counts = Counts()
    with token_shards.writing(path, length) as writer:
        for batch in _batches(texts):
            documents = processor.encode(batch, num_threads=1)
            rows = packer.add(documents)
            writer.write(rows if max_records is None else rows[: max_records - writer.records])
            counts += _counted(documents)
        records = writer.records
    dropped = counts.tokens - records * length
    return dataclasses.replace(counts, records=records, dropped_tokens=dropped)


def _counted(documents: Sequence[Sequence[int]]) -> Counts:
    return Counts(
        documents=len(documents),
        empty_documents=sum(not document for document in documents),
        tokens=sum(map(len, documents)) + len(documents),
        unknown_tokens=sum(document.count(tokenizer.UNK) for document in documents),
    )


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
