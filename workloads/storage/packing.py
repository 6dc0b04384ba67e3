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

from attention import files
from workloads.storage import token_records, tokenizer

# Characters that are tokenised at a time: what lies in memory, beside one document.
_BATCH_CHARACTERS = 2**20
EMPTY = np.zeros(0, token_records.DTYPE)


def packed(
    tail: np.ndarray, documents: Iterable[Sequence[int]], length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows uint16 `[n, length]` that `tail` and the documents fill, a separator after each, and the
    tail that does not fill one yet."""
    ids = itertools.chain.from_iterable((*document, tokenizer.EOS) for document in documents)
    stream = np.concatenate([tail, np.fromiter(ids, token_records.DTYPE)])
    end = len(stream) - len(stream) % length
    return stream[:end].reshape(-1, length), stream[end:]


def write_shard(
    path: Path, texts: Iterable[str], processor: Any, length: int, max_records: int | None = None
) -> token_records.Counts:
    """Tokenise and pack `texts` into one shard file, which appears when it is whole.

    `max_records` cuts the shard; what is beyond counts as dropped. Memory is bounded by the
    longest document.
    """
    tail, counts, records = EMPTY, token_records.Counts(), 0
    with files.replacing(path) as new, new.open("wb") as file:
        token_records.write_header(file, records, length)
        for batch in _batches(texts):
            documents = processor.encode(batch, num_threads=1)
            rows, tail = packed(tail, documents, length)
            if max_records is not None:
                rows = rows[: max_records - records]
            file.write(rows.data)
            records += len(rows)
            counts += _counted(documents)
        token_records.write_header(file, records, length)
    dropped = counts.tokens - records * length
    return dataclasses.replace(counts, records=records, dropped_tokens=dropped)


def _counted(documents: Sequence[Sequence[int]]) -> token_records.Counts:
    return token_records.Counts(
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
