"""LibriSpeech in AlgoPerf's preprocessed layout: its splits, check, preparation.

`data_dir` is what AlgoPerf's `--data_dir` is for this workload, `$DATA/librispeech`. AlgoPerf
leaves out utterances of more than 256 characters or 320,000 samples (20 s): 17,401 of LibriSpeech's
281,241 for training, 219 of 5567 in both dev splits, 148 of 2620 in test-clean. So do we: the rule
applied to the published transcripts and lengths of test-clean gives exactly 148 (139 with more than
256 characters, 92 with more than 20 s, 83 with both), and 137 of dev-clean. LibriSpeech holds no
empty transcripts and no characters beyond the alphabet, so our other reasons take nothing away.
"""

import os
from pathlib import Path

import numpy as np
import sentencepiece

from attention.common import files, machine
from workloads.base.errors import DataError, check_layout, repair_commands
from workloads.speech.corpora import librispeech_prepare, speech_records, speech_tokenizer

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
# Of the archives, https://www.openslr.org/12.
NUM_UTTERANCES = {
    "train-clean-100": 28_539,
    "train-clean-360": 104_014,
    "train-other-500": 148_688,
    "dev-clean": 2703,
    "dev-other": 2864,
    "test-clean": 2620,
}
_TOKENIZER_SPLIT = "train-clean-100"
_SAMPLE = 32


def check(data_dir: str | os.PathLike[str], full: bool = False) -> list[str]:
    """One line per split that is good; DataError at the first thing that is not.

    Reads the lists, looks for every file, and decodes a sample of 32 utterances per split, which
    takes seconds. With `full`, reads every utterance (97 GB of int16, or AlgoPerf's 387 GB).
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
        for path_of in (speech_records.audio_path, speech_records.targets_path):
            path = path_of(source.data_dir, split, name)
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
        path = speech_records.targets_path(source.data_dir, *source.ids[number])
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


def prepare(
    data_dir: str | os.PathLike[str],
    manual_dir: str | os.PathLike[str] | None = None,
    num_workers: int | None = None,
) -> None:
    """Make all splits below `data_dir` from LibriSpeech's own tree, and print a line for each.

    `manual_dir` is the folder `LibriSpeech` of the unpacked archives, or the one it lies in (None:
    `data_dir` itself). The tokenizer is the one in `data_dir`, if any, and else trained on the
    transcripts of train-clean-100, as AlgoPerf does. 97 GB; `num_workers` processes (None: as many
    as CPUs). A run that was interrupted goes on. Raises DataError, before anything is written,
    where a split is missing from the tree.
    """
    data_dir = Path(data_dir)
    tree = _find_tree(data_dir, Path(manual_dir) if manual_dir else data_dir)
    repair = f"download and unpack the archive again into {tree.parent}; then {_repair(data_dir)}"
    splits = [split for parts in SPLITS.values() for split in parts]
    for split in splits:
        librispeech_prepare.chapters(tree, split, repair)
    data_dir.mkdir(parents=True, exist_ok=True)
    make_tokenizer(tree, data_dir, repair)
    workers = machine.cpu_count() if num_workers is None else num_workers
    for split in splits:
        job = librispeech_prepare.SplitToPrepare(
            tree,
            data_dir,
            split,
            VOCAB_SIZE,
            repair,
            max_audio=MAX_AUDIO,
            max_targets=MAX_TARGETS,
        )
        report = librispeech_prepare.prepare_split(job, workers, NUM_UTTERANCES[split])
        print(report, flush=True)


def _find_tree(data_dir: Path, folder: Path) -> Path:
    for tree in (folder / "LibriSpeech", folder):
        if (tree / _TOKENIZER_SPLIT).is_dir() and not (tree / f"{_TOKENIZER_SPLIT}.csv").exists():
            return tree
    raise DataError(
        f"{folder} holds no LibriSpeech tree: neither LibriSpeech/{_TOKENIZER_SPLIT} nor "
        f"{_TOKENIZER_SPLIT}",
        "download train-clean-100, train-clean-360, train-other-500, dev-clean, dev-other and "
        "test-clean from https://www.openslr.org/12 (58 GB), unpack them into one folder, and run: "
        f"{_repair(data_dir)}",
    )


def make_tokenizer(tree: Path, data_dir: Path, repair: str) -> None:
    """Train the tokenizer of `data_dir` on the transcripts of train-clean-100, if it has none."""
    path = data_dir / speech_tokenizer.FILE_NAME
    if path.exists():
        speech_tokenizer.load(data_dir, VOCAB_SIZE, repair)
        return
    texts = [
        text
        for chapter in librispeech_prepare.chapters(tree, _TOKENIZER_SPLIT, repair)
        for text in librispeech_prepare.read_transcripts(chapter, repair).values()
        if text and librispeech_prepare.ALPHABET.issuperset(text)
    ]
    files.write(path, speech_tokenizer.train(texts, VOCAB_SIZE))


def _repair(data_dir: str | os.PathLike[str]) -> str:
    return repair_commands(
        "librispeech_conformer", data_dir, "DIR", "the unpacked archives of LibriSpeech"
    )
