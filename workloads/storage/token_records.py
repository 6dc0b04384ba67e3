"""Token records on disk: `tokens.json`, the tokenizer, and shards of fixed-length sequences.

Documents stand in records one after another, a separator after each. Records are cut from that
stream without regard to where documents end; what is left at the end and fills no record is
counted. Language model and BERT share this form: full sequences without padding, no pairs of
sentences and no next-sentence prediction (RoBERTa, Liu et al. 2019, section 4.2, FULL-SENTENCES
across documents).

A directory holds `<split>-00000-of-0000N.npy` (NumPy arrays uint16 `[records, length]`, written as
streams), `spm.model`, and `tokens.json`, which is written last and says what there is: its presence
means that the directory is whole.

Why not array_record: rows of one size need no index. Measured at random places, array_record gave
0.5 million tokens a second, these files 39. Damage is found by size at opening, by SHA-256 in a
full check.
"""

import bisect
import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from attention.common import files
from workloads.base.errors import DataError
from workloads.storage import npy, tfrecord, tokenizer

DTYPE = np.dtype("<u2")
# Characters that are tokenised at a time: what lies in memory, beside one document.
_BATCH_CHARACTERS = 2**20
EMPTY = np.zeros(0, DTYPE)


def file_name(split: str, shard: int, shards: int) -> str:
    """`<split>-00000-of-00001.npy`."""
    return f"{split}-{shard:05d}-of-{shards:05d}.npy"


def write_header(file: BinaryIO, records: int, length: int) -> None:
    """Writes a shard's header at the file's start; NumPy leaves room in it for any number."""
    file.seek(0)
    header = {"descr": DTYPE.str, "fortran_order": False, "shape": (records, length)}
    np.lib.format.write_array_header_1_0(file, header)


def check_file(path: Path, records: int, length: int, repair: str) -> int:
    """Returns where the rows begin, in bytes. Raises DataError for a file that is no array uint16
    `[records, length]` or is cut short."""
    rows: Any = npy.read(path, repair, is_mapped=True)
    is_expected = (rows.shape, rows.dtype) == ((records, length), DTYPE)
    if not is_expected or not rows.flags.c_contiguous:
        expected = f"{DTYPE} [{records}, {length}], row after row,"
        raise DataError(
            f"{path} holds {rows.dtype} {list(rows.shape)}; {expected} is expected", repair
        )
    return rows.offset


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


def packed(
    tail: np.ndarray, documents: Iterable[Sequence[int]], length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows uint16 `[n, length]` that `tail` and the documents fill, a separator after each, and the
    tail that does not fill one yet."""
    ids = itertools.chain.from_iterable((*document, tokenizer.EOS) for document in documents)
    stream = np.concatenate([tail, np.fromiter(ids, DTYPE)])
    end = len(stream) - len(stream) % length
    return stream[:end].reshape(-1, length), stream[end:]


def write_shard(
    path: Path, texts: Iterable[str], processor: Any, length: int, max_records: int | None = None
) -> Counts:
    """Tokenise and pack `texts` into one shard file, which appears when it is whole.

    `max_records` cuts the shard; what is beyond counts as dropped. Memory is bounded by the
    longest document.
    """
    tail, counts, records = EMPTY, Counts(), 0
    with files.replacing(path) as new, new.open("wb") as file:
        write_header(file, records, length)
        for batch in _batches(texts):
            documents = processor.encode(batch, num_threads=1)
            rows, tail = packed(tail, documents, length)
            if max_records is not None:
                rows = rows[: max_records - records]
            file.write(rows.data)
            records += len(rows)
            counts += Counts(
                documents=len(documents),
                empty_documents=sum(not document for document in documents),
                tokens=sum(map(len, documents)) + len(documents),
                unknown_tokens=sum(document.count(tokenizer.UNK) for document in documents),
            )
        write_header(file, records, length)
    dropped = counts.tokens - records * length
    return dataclasses.replace(counts, records=records, dropped_tokens=dropped)


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


INFO_FILE, TOKENIZER_FILE = "tokens.json", "spm.model"
FORMAT, VERSION = "attnperf token records", 1
DEFAULT_REPAIR = "prepare the directory again with `python -m workloads prepare NAME`"


@dataclasses.dataclass(frozen=True)
class WrittenShard:
    """A finished shard: its file below the directory, what it holds, the file's SHA-256."""

    file: str
    counts: Counts
    sha256: str


def write_info(
    data_dir: Path,
    *,
    length: int,
    vocab_size: int,
    splits: Mapping[str, Sequence[WrittenShard]],
    source: Mapping[str, Any],
) -> None:
    """Write `tokens.json`; `source` says what the text was, in JSON types."""
    info = {
        "format": FORMAT,
        "version": VERSION,
        "length": length,
        "vocab_size": vocab_size,
        "special_ids": tokenizer.SPECIAL_IDS,
        "tokenizer": {
            "file": TOKENIZER_FILE,
            "sha256": tokenizer.sha256(tokenizer.read(data_dir / TOKENIZER_FILE)),
        },
        "source": dict(source),
        "splits": {name: _described(shards) for name, shards in splits.items()},
    }
    files.write(data_dir / INFO_FILE, json.dumps(info, indent=1) + "\n")


def _described(shards: Sequence[WrittenShard]) -> dict[str, Any]:
    total = sum((shard.counts for shard in shards), Counts())
    files = [
        {"file": shard.file, "records": shard.counts.records, "sha256": shard.sha256}
        for shard in shards
    ]
    return {**dataclasses.asdict(total), "shards": files}


def read_info(data_dir: str | os.PathLike[str], repair: str = DEFAULT_REPAIR) -> dict[str, Any]:
    """`tokens.json`; DataError where it is missing, damaged, or of another format."""
    path = Path(data_dir) / INFO_FILE
    if not path.is_file():
        raise DataError(
            f"{path} does not exist, so there is no whole set of token records: "
            f"{INFO_FILE}, spm.model and <split>-*.npy of train, validation and test",
            repair,
        )
    try:
        info = json.loads(path.read_bytes())
        if (info["format"], info["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format is {info['format']!r} version {info['version']!r}")
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise DataError(
            f"{path} cannot be used ({type(problem).__name__}: {problem}); remove it first", repair
        ) from problem
    return info


class TokenSplit:
    """Records of one split: `split[i]` is `{"tokens": uint16 [length]}`.

    Opening checks that every shard is there with the dtype, shape and size that `tokens.json`
    says. Picklable, safe in threads, cheap to send to worker processes. Shards are opened on
    demand, as many at a time as `tfrecord.opened` keeps: c4 has 1024, and the usual limit of a
    process is 1024 files.

    Raises DataError where the directory is absent, not whole, or has no such split.
    """

    def __init__(
        self, data_dir: str | os.PathLike[str], split: str, repair: str = DEFAULT_REPAIR
    ) -> None:
        self.data_dir, self.split, self.repair = Path(data_dir), split, repair
        info = read_info(data_dir, repair)
        self.length: int = info["length"]
        self.vocab_size: int = info["vocab_size"]
        if split not in info["splits"]:
            raise self.error(f"{INFO_FILE} has no such split; it has {', '.join(info['splits'])}")
        shards = info["splits"][split]["shards"]
        self._paths = [str(self.data_dir / shard["file"]) for shard in shards]
        self._offsets = [
            check_file(Path(path), shard["records"], self.length, repair)
            for path, shard in zip(self._paths, shards, strict=True)
        ]
        self._identities = [tfrecord.identity(path) for path in self._paths]
        self._starts = list(itertools.accumulate((s["records"] for s in shards), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        """The record's tokens, a copy; IndexError beyond the end."""
        if not 0 <= number < len(self):
            raise IndexError(f"{self}: record {number} asked, there are {len(self)}")
        shard = bisect.bisect_right(self._starts, number) - 1
        size = self.length * DTYPE.itemsize
        start = self._offsets[shard] + (number - self._starts[shard]) * size
        file = tfrecord.opened(self._paths[shard], self._identities[shard])
        return {"tokens": np.frombuffer(file.read(start, start + size), DTYPE).copy()}

    def error(self, problem: str) -> DataError:
        """A DataError that names this split and how to repair it."""
        return DataError(f"{self}: {problem}", self.repair)

    def __str__(self) -> str:
        return f"{self.data_dir}, split {self.split!r}"


def check(
    data_dir: str | os.PathLike[str], repair: str = DEFAULT_REPAIR, full: bool = False
) -> list[str]:
    """One line about the tokenizer and one per split; DataError at the first thing amiss.

    Compares the sizes of all shards; with `full`, their SHA-256.
    """
    info = read_info(data_dir, repair)
    path = Path(data_dir, info["tokenizer"]["file"])
    tokenizer.load(path, repair)
    digest, expected = tokenizer.sha256(tokenizer.read(path, repair)), info["tokenizer"]["sha256"]
    if digest != expected:
        raise DataError(
            f"{path} has SHA-256 {digest}; the records were made with {expected}", repair
        )
    lines = [f"tokenizer: {info['vocab_size']} pieces, SHA-256 {digest}"]
    for name, split in info["splits"].items():
        source = TokenSplit(data_dir, name, repair)
        for shard in split["shards"] if full else []:
            path = Path(data_dir, shard["file"])
            if files.sha256(path) != shard["sha256"]:
                raise DataError(f"{path} is damaged: its SHA-256 is not {shard['sha256']}", repair)
            largest = int(npy.read(path, repair, is_mapped=True).max(initial=0))
            if largest >= source.vocab_size:
                raise source.error(
                    f"{path.name} has the token id {largest}, the vocabulary {source.vocab_size}"
                )
        extent = "every shard read" if full else "sizes compared"
        lines.append(
            f"{name}: {len(source)} records of {source.length} tokens, {split['documents']} "
            f"documents ({split['empty_documents']} empty), {split['unknown_tokens']} unknown "
            f"tokens, {split['dropped_tokens']} dropped at the end; {extent}"
        )
    return lines
