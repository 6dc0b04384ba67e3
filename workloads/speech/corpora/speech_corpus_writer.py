"""Makes an embedded corpus: texts spoken by espeak-ng, LibriSpeech's tree, AlgoPerf's layout.

Noise and every choice come from RandomState, whose streams are frozen (NEP 19), in integer
arithmetic; only espeak-ng itself may round differently on another machine.
"""

import fcntl
import json
import logging
import os
import shutil
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import jiwer
import numpy as np

from workloads.base.errors import DataError
from workloads.speech.corpora import (
    espeak,
    librispeech_prepare,
    librispeech_tree,
    speech_corpus,
    speech_tokenizer,
    speech_voices,
    spoken_tree,
)
from workloads.speech.corpora.speech_corpus import REFERENCE_FILE, SPLITS, TREE, Corpus


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
            lines = speech_corpus.check(corpus, data_dir)
            logging.getLogger(__name__).info("\n".join(lines))
    return data_dir


def _is_whole(corpus: Corpus, data_dir: Path) -> bool:
    try:
        speech_corpus.check(corpus, data_dir)
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
    (aside / "old").mkdir(parents=True)
    try:
        _write(corpus, aside)
        # The tree, which says whose data this is, goes last and comes first.
        for name in reversed(_names()):
            if (data_dir / name).exists():
                os.replace(data_dir / name, aside / "old" / name)
        for name in _names():
            os.replace(aside / name, data_dir / name)
    finally:
        shutil.rmtree(aside)


def _write(corpus: Corpus, folder: Path) -> None:
    texts = {role: corpus.texts(role) for role in SPLITS}
    version = espeak.version()
    _write_tree(corpus, folder / TREE, texts)
    model = speech_tokenizer.train(texts["train"], corpus.vocab_size)
    (folder / speech_tokenizer.FILE_NAME).write_bytes(model)
    for role in SPLITS:
        _write_role(corpus, folder, role, version)
    tokenizer = speech_tokenizer.load(folder, corpus.vocab_size, "")
    sources = {role: speech_corpus.open_split(corpus, folder, role) for role in SPLITS}
    reference = {
        "note": corpus.note,
        "rows": reference_rows(texts),
        "sha256": speech_corpus.content_sha256(sources, tokenizer),
        "espeak_ng": version,
    }
    (folder / REFERENCE_FILE).write_text(json.dumps(reference, indent=2) + "\n")


def _write_tree(corpus: Corpus, tree: Path, texts: dict[str, list[str]]) -> None:
    lines = [
        line
        for number, role in enumerate(SPLITS)
        for line in spoken_tree.lines(
            SPLITS[role][0],
            texts[role],
            speech_voices.voices(role),
            corpus.rates,
            # A stream of its own for every role: one role's size does not change another's speech.
            np.random.RandomState([corpus.seed, number]),
        )
    ]
    spoken_tree.write(tree, lines, corpus.note, np.random.RandomState(corpus.seed))


def _write_role(corpus: Corpus, folder: Path, role: str, version: str) -> None:
    """From the tree to AlgoPerf's layout. Raises DataError if not every utterance is kept."""
    limits = librispeech_tree.Limits(corpus.max_audio, max_targets=corpus.max_targets)
    repair = speech_corpus.repair(corpus, folder.parent)
    (split,) = SPLITS[role]
    job = librispeech_prepare.Job(folder / TREE, folder, split, limits, corpus.vocab_size, repair)
    report = librispeech_prepare.prepare_split(job)
    if len(report.kept) != corpus.sizes[role]:
        raise DataError(
            f"{report}; {corpus.sizes[role]} are expected, all kept. This is espeak-ng {version}, "
            f"the corpus was laid out with {corpus.espeak_version}",
            "pip install 'espeakng-loader==0.2.4'",
        )


def reference_rows(texts: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Word error rates of two answers that need no ear: nothing, and train's commonest text."""
    counts = Counter(texts["train"])
    commonest = max(sorted(counts), key=counts.__getitem__)
    answers = {"empty transcript": "", f"always {commonest.lower()!r}": commonest}
    return [
        {"name": name}
        | {f"{role}/wer": jiwer.wer(said, [answer] * len(said)) for role, said in texts.items()}
        for name, answer in answers.items()
    ]
