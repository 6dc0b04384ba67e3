"""Token records: sequences of one length in Arrow files, their vocabulary, and `tokens.json`.

Documents stand in records one after another, a separator after each. Records are cut from that
stream without regard to where documents end; what is left at the end of a shard and fills no record
is counted. Language model and BERT share this form: full sequences without padding, no pairs of
sentences and no next-sentence prediction (RoBERTa, Liu et al. 2019, section 4.2, FULL-SENTENCES
across documents).

A directory holds a folder for each split in the form of `arrow_tokens`, where a document is a
record; `spm.model`; and `tokens.json`, which is written last: its presence means that the directory
is whole.
"""

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from attention.common import files
from workloads.base.errors import DataError
from workloads.storage import arrow_tokens, json_records, tokenizer

DTYPE = np.dtype("<u2")
EMPTY = np.zeros(0, DTYPE)
INFO_FILE, TOKENIZER_FILE = "tokens.json", "spm.model"
# Characters that become a record batch: what lies in memory, beside one document.
_BATCH_CHARACTERS = 2**23


class Shard(msgspec.Struct, frozen=True):
    """A finished shard: its file below the directory, what it holds, and the SHA-256 of its ids.

    tokens = records · length + dropped_tokens, separators included.
    """

    file: str
    sha256: str
    records: int
    documents: int
    empty_documents: int
    tokens: int
    dropped_tokens: int
    unknown_tokens: int


class TokensInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens.json`. Version 1 had NumPy files; source says what the text was."""

    version: Literal[2] = 2
    length: int
    vocab_size: int
    tokenizer_sha256: str
    source: dict[str, str]
    splits: dict[str, list[Shard]]

    def total(self, split: str, count: str) -> int:
        """Returns the sum of one of the counts of `Shard` over a split."""
        return sum(getattr(shard, count) for shard in self.splits[split])


def file_name(split: str, shard: int, shards: int) -> str:
    """Returns a shard's file below the directory, `<split>/data-00000-of-00001.arrow`."""
    return f"{split}/data-{shard:05d}-of-{shards:05d}.arrow"


def packed(
    tail: np.ndarray, documents: Iterable[Sequence[int]], length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows uint16 `[n, length]` that `tail` and the documents fill, a separator after each
    document, and the tail that does not fill a row yet."""
    ids = itertools.chain.from_iterable((*document, tokenizer.EOS) for document in documents)
    stream = np.concatenate([tail, np.fromiter(ids, DTYPE)])
    end = len(stream) - len(stream) % length
    return stream[:end].reshape(-1, length), stream[end:]


def write_shard(
    data_dir: Path,
    file: str,
    texts: Iterable[str],
    processor: Any,
    length: int,
    max_records: int | None = None,
) -> Shard:
    """Tokenises and packs `texts` into one shard, whose file appears when it is whole.

    `max_records` cuts the shard; what is beyond counts as dropped. Memory is bounded by the
    longest document.
    """
    tail, digest = EMPTY, hashlib.sha256()
    records = documents = empty_documents = tokens = unknown_tokens = 0
    with arrow_tokens.writing(data_dir / file) as append:
        for batch in _batches(texts):
            encoded = processor.encode(batch, num_threads=1)
            rows, tail = packed(tail, encoded, length)
            if max_records is not None:
                rows = rows[: max_records - records]
            if len(rows):
                append(rows)
            digest.update(rows.data)
            records += len(rows)
            documents += len(encoded)
            empty_documents += sum(not document for document in encoded)
            tokens += sum(map(len, encoded)) + len(encoded)
            unknown_tokens += sum(document.count(tokenizer.UNK) for document in encoded)
    return Shard(
        file=file,
        sha256=digest.hexdigest(),
        records=records,
        documents=documents,
        empty_documents=empty_documents,
        tokens=tokens,
        dropped_tokens=tokens - records * length,
        unknown_tokens=unknown_tokens,
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


def write_info(
    data_dir: Path,
    *,
    length: int,
    vocab_size: int,
    splits: Mapping[str, Sequence[Shard]],
    source: Mapping[str, str],
) -> None:
    """Writes the list of each split's files, then `tokens.json`."""
    for split, shards in splits.items():
        arrow_tokens.write_state(data_dir / split, [Path(shard.file).name for shard in shards])
    info = TokensInfo(
        length=length,
        vocab_size=vocab_size,
        tokenizer_sha256=files.sha256(data_dir / TOKENIZER_FILE),
        source=dict(source),
        splits={split: list(shards) for split, shards in splits.items()},
    )
    json_records.write(data_dir / INFO_FILE, info, indent=1)


def read_info(data_dir: str | os.PathLike[str], repair: str) -> TokensInfo:
    """Returns `tokens.json`. Raises DataError if it is missing, damaged, or of another version."""
    path = Path(data_dir) / INFO_FILE
    if not path.is_file():
        raise DataError(f"{path} does not exist: there is no whole set of token records", repair)
    return json_records.read(path, TokensInfo, f"remove {files.quoted(path)}; then {repair}")


def open_split(
    data_dir: str | os.PathLike[str], split: str, repair: str
) -> arrow_tokens.ArrowTokens:
    """Returns the records of a split.

    Raises DataError if the directory is absent or not whole, or has no such split.
    """
    info = read_info(data_dir, repair)
    if split not in info.splits:
        raise DataError(
            f"{data_dir}: {INFO_FILE} has no split {split!r}; it has {', '.join(info.splits)}",
            repair,
        )
    tokens = arrow_tokens.ArrowTokens(Path(data_dir) / split, info.length, info.vocab_size, repair)
    if len(tokens) != info.total(split, "records"):
        raise DataError(
            f"{tokens} holds {len(tokens)} records; {INFO_FILE} says "
            f"{info.total(split, 'records')}",
            repair,
        )
    return tokens


def check(data_dir: str | os.PathLike[str], repair: str, full: bool = False) -> list[str]:
    """Returns a line about the tokenizer and one per split.

    Compares numbers of records; with `full`, all ids with their SHA-256. Raises DataError at the
    first thing amiss.
    """
    info = read_info(data_dir, repair)
    path = Path(data_dir, TOKENIZER_FILE)
    tokenizer.load(path, repair)
    digest = files.sha256(path)
    if digest != info.tokenizer_sha256:
        raise DataError(
            f"{path} has SHA-256 {digest}; the records were made with {info.tokenizer_sha256}",
            repair,
        )
    lines = [f"tokenizer: {info.vocab_size} pieces, SHA-256 {digest}"]
    for split, shards in info.splits.items():
        records = open_split(data_dir, split, repair)
        if full:
            _check_ids(records, shards)
        extent = "every record read" if full else "sizes compared"
        lines.append(
            f"{split}: {len(records)} records of {info.length} tokens, "
            f"{info.total(split, 'documents')} documents "
            f"({info.total(split, 'empty_documents')} empty), "
            f"{info.total(split, 'unknown_tokens')} unknown tokens, "
            f"{info.total(split, 'dropped_tokens')} dropped at the end; {extent}"
        )
    return lines


def _check_ids(records: arrow_tokens.ArrowTokens, shards: Sequence[Shard]) -> None:
    numbers = iter(range(len(records)))
    for shard in shards:
        digest = hashlib.sha256()
        for number in itertools.islice(numbers, shard.records):
            digest.update(records[number]["tokens"].astype(DTYPE).data)
        if digest.hexdigest() != shard.sha256:
            raise DataError(
                f"{shard.file} of {records.folder.parent} is damaged: its ids' SHA-256 is "
                f"{digest.hexdigest()}, not {shard.sha256}",
                records.repair,
            )
