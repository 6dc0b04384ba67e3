"""Token records on disk: `tokens.json`, the tokenizer, and shards of fixed-length sequences.

A directory holds `<split>-00000-of-0000N.npy` (uint16 `[records, length]`, written by
`workloads.storage.token_shards`), `spm.model`, and `tokens.json`, which is written last and says
what there is: its presence means that the directory is whole.
"""

import bisect
import dataclasses
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attention.files import replacing
from workloads.base.errors import DataError
from workloads.storage import packing, token_shards, tokenizer

INFO_FILE, TOKENIZER_FILE = "tokens.json", "spm.model"
FORMAT, VERSION = "attnperf token records", 1
DEFAULT_REPAIR = "prepare the directory again with `python -m workloads prepare NAME`"
_SAMPLE = 256


@dataclasses.dataclass(frozen=True)
class WrittenShard:
    """A finished shard: its file below the directory, what it holds, the file's SHA-256."""

    file: str
    counts: packing.Counts
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
    write_text(data_dir / INFO_FILE, json.dumps(info, indent=1) + "\n")


def _described(shards: Sequence[WrittenShard]) -> dict[str, Any]:
    total = sum((shard.counts for shard in shards), packing.Counts())
    files = [
        {"file": shard.file, "records": shard.counts.records, "sha256": shard.sha256}
        for shard in shards
    ]
    return {**dataclasses.asdict(total), "shards": files}


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with replacing(path) as new:
        new.write_bytes(content)


def read_info(data_dir: str | os.PathLike[str], repair: str = DEFAULT_REPAIR) -> dict[str, Any]:
    """`tokens.json`, identity and arithmetic checked; DataError where it is not as it should."""
    path = Path(data_dir) / INFO_FILE
    if not path.is_file():
        what = f"has no {INFO_FILE}, so" if Path(data_dir).is_dir() else "does not exist:"
        raise DataError(
            f"{data_dir} {what} there is no whole set of token records: "
            f"{INFO_FILE}, spm.model and <split>-*.npy of train, validation and test",
            repair,
        )
    try:
        info = json.loads(path.read_text())
        _check_info(info)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise DataError(
            f"{path} cannot be used: {type(problem).__name__}: {problem}", repair
        ) from problem
    return info


def _check_info(info: dict[str, Any]) -> None:
    if (info["format"], info["version"]) != (FORMAT, VERSION):
        raise ValueError(f"format is {info['format']!r} version {info['version']!r}")
    if info["special_ids"] != tokenizer.SPECIAL_IDS:
        raise ValueError(f"special ids are {info['special_ids']}, not {tokenizer.SPECIAL_IDS}")
    if not 0 < info["vocab_size"] <= token_shards.MAX_VOCAB_SIZE or info["length"] < 1:
        raise ValueError(f"vocab_size is {info['vocab_size']}, length {info['length']}")
    for name, split in info["splits"].items():
        records = sum(shard["records"] for shard in split["shards"])
        tokens = records * info["length"] + split["dropped_tokens"]
        if (records, tokens) != (split["records"], split["tokens"]):
            raise ValueError(
                f"split {name!r} has {records} records and {tokens} tokens in its shards, "
                f"{split['records']} and {split['tokens']} in all"
            )


def require(
    info: Mapping[str, Any],
    data_dir: str | os.PathLike[str],
    length: int,
    vocab_size: int,
    least: Mapping[str, int],
    repair: str,
) -> None:
    """DataError unless `tokens.json` tells of these splits, record length and vocabulary.

    least: of each split, the fewest records a workload can use.
    """
    splits = list(least)
    found = (info["length"], info["vocab_size"], sorted(info["splits"]))
    if found != (length, vocab_size, sorted(splits)):
        raise DataError(
            f"{data_dir}: records of {found[0]} tokens out of {found[1]} in the splits "
            f"{', '.join(found[2])}; {length} tokens out of {vocab_size} in {', '.join(splits)} "
            "are expected",
            repair,
        )
    for split, fewest in least.items():
        have = info["splits"][split]["records"]
        if have < fewest:
            raise DataError(
                f"{data_dir}: split {split!r} has {have} records, at least {fewest} are needed",
                repair,
            )


class TokenSplit:
    """Records of one split: `split[i]` is `{"tokens": uint16 [length]}`.

    Opening checks that every shard is there with the dtype, shape and size that `tokens.json`
    says. Ids are judged by `check`, not when they are read. Picklable, safe in threads, cheap to
    send to worker processes; shards are mapped into memory on demand.

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
        for path, shard in zip(self._paths, shards, strict=True):
            token_shards.check_file(Path(path), shard["records"], self.length, repair)
        self._identities = [token_shards.identity(path) for path in self._paths]
        self._starts = list(itertools.accumulate((s["records"] for s in shards), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        """The record's tokens, a copy; IndexError beyond the end."""
        if not 0 <= number < len(self):
            raise IndexError(f"{self}: record {number} asked, there are {len(self)}")
        shard = bisect.bisect_right(self._starts, number) - 1
        place = number - self._starts[shard]
        return {"tokens": token_shards.row(self._paths[shard], self._identities[shard], place)}

    def error(self, problem: str) -> DataError:
        """A DataError that names this split and how to repair it."""
        return DataError(f"{self}: {problem}", self.repair)

    def __str__(self) -> str:
        return f"{self.data_dir}, split {self.split!r}"


def check(
    data_dir: str | os.PathLike[str], repair: str = DEFAULT_REPAIR, full: bool = False
) -> list[str]:
    """One line about the tokenizer and one per split; DataError at the first thing amiss.

    Reads all sizes and 256 records of each split; with `full`, the SHA-256 and the ids of all.
    """
    info = read_info(data_dir, repair)
    lines = [_check_tokenizer(Path(data_dir), info, repair)]
    for name, split in info["splits"].items():
        source = TokenSplit(data_dir, name, repair)
        numbers = np.linspace(0, max(len(source) - 1, 0), min(_SAMPLE, len(source)), dtype=int)
        _check_ids(source, range(len(source)) if full else numbers.tolist())
        if full:
            _check_hashes(Path(data_dir), split["shards"], repair)
        extent = "every record read" if full else f"{len(numbers)} records read"
        lines.append(
            f"{name}: {len(source)} records of {source.length} tokens, {split['documents']} "
            f"documents ({split['empty_documents']} empty), {split['unknown_tokens']} unknown "
            f"tokens, {split['dropped_tokens']} dropped at the end; {extent}"
        )
    return lines


def _check_tokenizer(data_dir: Path, info: dict[str, Any], repair: str) -> str:
    path = data_dir / info["tokenizer"]["file"]
    digest = tokenizer.sha256(tokenizer.read(path, repair))
    if digest != info["tokenizer"]["sha256"]:
        raise DataError(
            f"{path} has SHA-256 {digest}; the records were made with "
            f"{info['tokenizer']['sha256']}",
            repair,
        )
    pieces = tokenizer.load(path, repair).vocab_size()
    if pieces != info["vocab_size"]:
        raise DataError(f"{path} has {pieces} pieces, {INFO_FILE} {info['vocab_size']}", repair)
    return f"tokenizer: {pieces} pieces, SHA-256 {digest}"


def _check_ids(source: TokenSplit, numbers: Sequence[int]) -> None:
    for number in numbers:
        largest = int(source[number]["tokens"].max())
        if largest >= source.vocab_size:
            raise source.error(
                f"record {number} has token id {largest}; 0 to {source.vocab_size - 1} are allowed"
            )


def _check_hashes(data_dir: Path, shards: Sequence[Mapping[str, Any]], repair: str) -> None:
    for shard in shards:
        path = data_dir / shard["file"]
        if token_shards.sha256(path) != shard["sha256"]:
            raise DataError(f"{path} is damaged: its SHA-256 is not {shard['sha256']}", repair)
