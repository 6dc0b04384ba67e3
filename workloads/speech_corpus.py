"""Embedded speech: texts spoken by espeak-ng, written as LibriSpeech's tree, then as AlgoPerf's.

Below `data_dir`: `LibriSpeech/<split>/<speaker>/<chapter>/…` with `SPEAKERS.TXT`, and what
`librispeech_prepare` makes of it, with the splits' names of LibriSpeech; `reference.json`, written
last, says that all of it is there. Noise and every choice come from RandomState, whose streams are
frozen (NEP 19), in integer arithmetic; only espeak-ng itself may round differently elsewhere.
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads import (
    espeak,
    librispeech_prepare,
    speech_records,
    speech_tokenizer,
    speech_voices,
    spoken_tree,
)
from workloads.errors import DataError

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
    content_sha256: of audio and targets made by `espeak_version` on the machine of the author.
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


def prepare(corpus: Corpus, data_dir: str | os.PathLike[str]) -> Path:
    """Write the corpus below `data_dir` unless it is there and whole; returns `data_dir`.

    It is made aside and moved into place when it is whole. Two preparations at once wait for each
    other. Raises DataError where the directory holds other speech.
    """
    data_dir = Path(data_dir)
    if _is_whole(corpus, data_dir):
        return data_dir
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir / ".prepare.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_whole(corpus, data_dir):  # another process may have written it meanwhile
            _refuse_to_replace_others(corpus, data_dir)
            _make(corpus, data_dir)
            lines = check(corpus, data_dir)
            logging.getLogger(__name__).info("\n".join(lines))
    return data_dir


def check(corpus: Corpus, data_dir: str | os.PathLike[str]) -> list[str]:
    """Read everything; one line per split and two about hashes; DataError at what is amiss."""
    speech_tokenizer.load(data_dir, corpus.vocab_size, repair(corpus, data_dir))
    sources = {role: open_split(corpus, data_dir, role) for role in SPLITS}
    for role, source in sources.items():
        if len(source) != corpus.sizes[role]:
            raise DataError(
                f"{source} has {len(source)} utterances; {corpus.sizes[role]} are expected",
                repair(corpus, data_dir),
            )
    digest, reference = content_sha256(sources), read_reference(corpus, data_dir)
    if digest != reference.get("sha256"):
        raise DataError(
            f"{data_dir}: audio and targets have SHA-256 {digest}, but {REFERENCE_FILE} says "
            f"{reference.get('sha256')}",
            repair(corpus, data_dir),
        )
    lines = [f"{role}: {source}, {len(source)} utterances" for role, source in sources.items()]
    return [
        *lines,
        f"SHA-256 of all audio and targets: {digest}",
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


def content_sha256(sources: dict[str, speech_records.SpeechSplit]) -> str:
    """SHA-256 over the splits: name, then every utterance's id, samples and target ids."""
    digest = hashlib.sha256()
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
            "floating point differs here, so results may differ slightly from the published ones"
        )
    return f"made by espeak-ng {version}, the same audio as the author's"


def _is_whole(corpus: Corpus, data_dir: Path) -> bool:
    try:
        check(corpus, data_dir)
    except DataError:
        return False
    return True


def _names() -> list[str]:
    """What stands below the directory, in the order in which it is moved there."""
    splits = [split for parts in SPLITS.values() for split in parts]
    lists = [f"{split}{end}.csv" for split in splits for end in ("", "_left_out")]
    return [TREE, speech_tokenizer.FILE_NAME, *splits, *lists, REFERENCE_FILE]


def _refuse_to_replace_others(corpus: Corpus, data_dir: Path) -> None:
    """DataError unless the directory has no speech, or this corpus as it was prepared before."""
    found = [name for name in _names() if (data_dir / name).exists()]
    try:
        mine = (data_dir / TREE / spoken_tree.SPEAKERS).read_text().startswith(f"; {corpus.note}\n")
    except (OSError, ValueError):
        mine = False
    if found and not mine:
        raise DataError(
            f"{data_dir} holds {found[0]} that is not of {corpus.workload}; it is not replaced",
            f"choose another folder: python -m workloads prepare {corpus.workload} --data_dir "
            f"FOLDER; or, if nothing of it is needed, remove {', '.join(found)} there",
        )


def _make(corpus: Corpus, data_dir: Path) -> None:
    """Makes everything in a folder beside, then moves it: the reference last."""
    for left in data_dir.glob(".making-*"):  # of a preparation that was killed
        shutil.rmtree(left)
    aside = data_dir / f".making-{uuid.uuid4().hex}"
    aside.mkdir()
    try:
        _write(corpus, aside)
        # The tree, which says whose data this is, goes last and comes first.
        for name in reversed(_names()):
            _remove(data_dir / name)
        for name in _names():
            os.replace(aside / name, data_dir / name)
    finally:
        shutil.rmtree(aside)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write(corpus: Corpus, folder: Path) -> None:
    texts = {role: corpus.texts(role) for role in SPLITS}
    _write_tree(corpus, folder / TREE, texts)
    model = speech_tokenizer.train(texts["train"], corpus.vocab_size)
    (folder / speech_tokenizer.FILE_NAME).write_bytes(model)
    limits = librispeech_prepare.Limits(corpus.max_audio, max_targets=corpus.max_targets)
    for role, (split,) in SPLITS.items():
        job = librispeech_prepare.Job(
            folder / TREE, folder, split, limits, corpus.vocab_size, repair(corpus, folder)
        )
        report = librispeech_prepare.prepare_split(job)
        if len(report.kept) != corpus.sizes[role]:
            raise DataError(
                f"{report}. All are expected to be kept; this is espeak-ng {espeak.version()}, the "
                f"corpus was laid out with {corpus.espeak_version}",
                "pip install 'espeakng-loader==0.2.4'",
            )
    sources = {role: open_split(corpus, folder, role) for role in SPLITS}
    reference = {
        "note": corpus.note,
        "rows": reference_rows(texts),
        "sha256": content_sha256(sources),
        "espeak_ng": espeak.version(),
    }
    (folder / REFERENCE_FILE).write_text(json.dumps(reference, indent=2) + "\n")


def _write_tree(corpus: Corpus, tree: Path, texts: dict[str, list[str]]) -> None:
    lines = [
        line
        for number, (role, (split,)) in enumerate(SPLITS.items())
        for line in spoken_tree.lines(
            split,
            texts[role],
            speech_voices.voices(role),
            corpus.rates,
            # A stream of its own for every role: one role's size does not change another's speech.
            np.random.RandomState([corpus.seed, number]),
        )
    ]
    spoken_tree.write(tree, lines, corpus.note, np.random.RandomState(corpus.seed))


def reference_rows(texts: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Word error rates of two answers that need no ear: nothing, and train's commonest text."""
    import jiwer

    counts = Counter(texts["train"])
    commonest = max(sorted(counts), key=counts.__getitem__)
    answers = {"empty transcript": "", f"always {commonest.lower()!r}": commonest}
    return [
        {"name": name}
        | {f"{role}/wer": jiwer.wer(said, [answer] * len(said)) for role, said in texts.items()}
        for name, answer in answers.items()
    ]
