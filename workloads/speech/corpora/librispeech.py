"""LibriSpeech as AlgoPerf prepares it: its splits and their check.

`data_dir` is what AlgoPerf's `--data_dir` is for this workload, `$DATA/librispeech`; AlgoPerf's
`datasets/dataset_setup.py --librispeech` writes it, 387 GB. Utterances of more than 256 characters
or 320,000 samples (20 s) are left out: 17,401 of LibriSpeech's 281,241 for training, 219 of 5567 in
both dev splits, 148 of 2620 in test-clean.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from attention.common import files
from workloads.base.errors import DataError, check_layout
from workloads.speech.corpora import speech_records, speech_tokenizer

MAX_AUDIO, MAX_TARGETS, VOCAB_SIZE = 320_000, 256, 1024
SPLITS: dict[str, tuple[str, ...]] = {
    "train": ("train-clean-100", "train-clean-360", "train-other-500"),
    "validation": ("dev-clean", "dev-other"),
    "test": ("test-clean",),
}
# Of AlgoPerf's workload. Its README counts 543,323 files, four fewer than these sizes give, so a
# training set that differs by less than a thousandth is reported, not refused.
SIZES = {"train": 263_840, "validation": 5348, "test": 2472}
_TOLERANCE = {"train": 263, "validation": 0, "test": 0}
_SAMPLE = 32


def check(data_dir: str | os.PathLike[str], full: bool = False) -> list[str]:
    """Returns a line per split. Raises DataError at the first thing that is not as expected.

    Reads the lists, looks for every file, and decodes a sample of 32 utterances per split, which
    takes seconds. With `full`, reads every utterance.
    """
    data_dir = Path(data_dir)
    check_layout(data_dir, "LibriSpeech", speech_tokenizer.FILE_NAME, below="librispeech")
    tokenizer = speech_tokenizer.load(data_dir, VOCAB_SIZE, _repair(data_dir))
    lines = [f"tokenizer: {VOCAB_SIZE} pieces"]
    for role, splits in SPLITS.items():
        sources = [
            speech_records.SpeechSplit(
                data_dir, (split,), MAX_AUDIO, MAX_TARGETS, _repair(data_dir), VOCAB_SIZE
            )
            for split in splits
        ]
        lines += [_check_split(source, tokenizer, full) for source in sources]
        lines.append(_check_size(data_dir, role, sum(map(len, sources))))
    return lines


def describe(data_dir: str | os.PathLike[str]) -> list[str]:
    """Returns what tells the data of a directory from others: the SHA-256 of the tokenizer and of
    each split's list of utterances."""
    lists = (f"{split}.csv" for splits in SPLITS.values() for split in splits)
    return [files.sha256(Path(data_dir, name)) for name in (speech_tokenizer.FILE_NAME, *lists)]


def _check_split(
    source: speech_records.SpeechSplit,
    tokenizer: sentencepiece.SentencePieceProcessor,
    full: bool,
) -> str:
    """Every file is there; the sample, or all, can be read, with targets of this tokenizer."""
    _check_files(source)
    count = min(_SAMPLE, len(source))
    sample = np.random.RandomState(0).choice(len(source), count, replace=False).tolist()
    agree = [_agrees(source, number, tokenizer) for number in sample]
    if 2 * sum(agree) < count:  # SentencePiece's versions may differ in a tie, not in most
        raise DataError(
            f"{source}: {count - sum(agree)} of {count} targets are not what the tokenizer "
            f"{speech_tokenizer.FILE_NAME} gives for their text; it is not the one that made them",
            source.repair,
        )
    if full:
        for number in range(len(source)):
            source[number]
    extent = "every utterance read" if full else f"{count} decoded"
    return f"{source.splits[0]}: {len(source)} utterances, {extent}"


def _check_files(source: speech_records.SpeechSplit) -> None:
    folder = source.data_dir / source.splits[0]
    names = {path.name for path in folder.glob("*.npy")}
    for split, name in source.ids:
        for kind in ("audio", "targets"):
            path = speech_records.path_of(source.data_dir, split, name, kind)
            if path.name not in names:
                raise DataError(f"{path} is missing; {split}.csv lists it", source.repair)


def _agrees(
    source: speech_records.SpeechSplit,
    number: int,
    tokenizer: sentencepiece.SentencePieceProcessor,
) -> bool:
    record = source[number]
    ids = record["targets"][: record["targets_length"]].tolist()
    if ids[-1] != tokenizer.eos_id():
        path = speech_records.path_of(source.data_dir, *source.ids[number], "targets")
        raise DataError(
            f"{path} ends with {ids[-1]}; ids that end with {tokenizer.eos_id()} are expected",
            source.repair,
        )
    text = speech_tokenizer.decode(tokenizer, ids)
    return bool(speech_tokenizer.encode(tokenizer, text) == ids)


def _check_size(data_dir: Path, role: str, count: int) -> str:
    if abs(count - SIZES[role]) > _TOLERANCE[role]:
        raise DataError(
            f"{data_dir}: {' and '.join(SPLITS[role])} list {count} utterances; "
            f"{SIZES[role]} are expected",
            _repair(data_dir),
        )
    note = "" if count == SIZES[role] else f" (AlgoPerf says {SIZES[role]})"
    return f"{role}: {count} utterances in all{note}"


def prepare(data_dir: str | os.PathLike[str], source: Any = None) -> None:
    """Raises DataError: AlgoPerf prepares these data."""
    raise DataError(
        f"{data_dir}: AlgoPerf prepares the data of librispeech_conformer", _repair(data_dir)
    )


def _repair(data_dir: str | os.PathLike[str]) -> str:
    return (
        "in AlgoPerf's checkout, run `python3 datasets/dataset_setup.py --librispeech "
        "--data_dir=$DATA --temp_dir=$DATA/tmp`, which downloads LibriSpeech and writes "
        "$DATA/librispeech, and give that folder as data_dir; then run "
        f"python -m workloads check librispeech_conformer --data_dir={files.quoted(data_dir)}"
    )
