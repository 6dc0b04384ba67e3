"""An embedded corpus of synthesised speech: what it consists of, its check, and how it is made.

Below `data_dir`: `LibriSpeech/<split>/<speaker>/<chapter>/…` with `SPEAKERS.TXT`, and what
`librispeech_prepare` makes of it, with the splits' names of LibriSpeech; `reference.json`, written
last, says that all of it is there. Noise and every choice come from RandomState, whose streams are
frozen (NEP 19), in integer arithmetic; only espeak-ng itself may round differently on another
machine.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import sentencepiece

from attention import files
from workloads.base.errors import DataError
from workloads.speech.corpora import (
    espeak,
    librispeech_prepare,
    speech_records,
    speech_tokenizer,
    spoken_tree,
)
from workloads.storage import preparation

SPLITS: dict[str, tuple[str, ...]] = {
    "train": ("train-clean-100",),
    "validation": ("dev-clean",),
    "test": ("test-clean",),
}
TREE = "LibriSpeech"


@dataclass(frozen=True)
class Corpus:
    """An embedded corpus.

    workload: whose data it is; texts(role): what is said, one text per utterance, upper case;
    rates: words a minute, from and to; max_audio in samples, max_targets in ids, both at most;
    content_sha256: as `check` reckons it, made by `espeak_version` on the author's machine.
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

    def prepare(self, data_dir: str | os.PathLike[str]) -> Path:
        """Write the corpus below `data_dir` unless it is there and whole; returns `data_dir`.

        It is made aside and moved into place when it is whole. Two preparations at once wait for
        each other. Raises DataError where the directory holds other speech.
        """
        return preparation.prepare_once(data_dir, self.check, self._make)

    def open_split(self, data_dir: str | os.PathLike[str], role: str) -> speech_records.SpeechSplit:
        """The utterances of a role (train, validation, test)."""
        return speech_records.SpeechSplit(
            data_dir, SPLITS[role], self.max_audio, self.max_targets, self.repair(data_dir)
        )

    def check(self, data_dir: str | os.PathLike[str]) -> list[str]:
        """Read everything; one line per split and two about hashes; DataError at what is amiss.

        A hash other than `reference.json`'s is damage; one other than `content_sha256` is told.
        """
        repair = self.repair(data_dir)
        tokenizer = speech_tokenizer.load(data_dir, self.vocab_size, repair)
        sources = {role: self.open_split(data_dir, role) for role in SPLITS}
        for role, source in sources.items():
            if len(source) != self.sizes[role]:
                raise DataError(
                    f"{source} has {len(source)} utterances; {self.sizes[role]} are expected",
                    repair,
                )
        digest = content_sha256(sources, tokenizer)
        reference = self.read_reference(data_dir)
        stored = reference.get("sha256")
        preparation.check_digest(data_dir, "audio, targets and pieces", digest, stored, repair)
        lines = [f"{role}: {source}, {len(source)} utterances" for role, source in sources.items()]
        return [
            *lines,
            f"SHA-256 of audio, targets and pieces: {digest}",
            self._comparison(digest, str(reference.get("espeak_ng"))),
        ]

    def _comparison(self, digest: str, version: str) -> str:
        if version != self.espeak_version:
            return (
                f"made by espeak-ng {version}; figures of this repository are from "
                f"{self.espeak_version}"
            )
        if digest != self.content_sha256:
            return (
                f"note: espeak-ng {version} gave {self.content_sha256} on the author's machine; "
                "its floating point, or SentencePiece, differs here, so results may differ "
                "slightly from the published ones"
            )
        return f"made by espeak-ng {version}, the same audio as the author's"

    def read_reference(self, data_dir: str | os.PathLike[str]) -> dict[str, Any]:
        """`reference.json`: `note`, `rows` with `<role>/wer`, `sha256`, `espeak_ng`."""
        return preparation.read_reference(data_dir, self.repair(data_dir))

    def repair(self, data_dir: str | os.PathLike[str]) -> str:
        """The command that mends the directory."""
        return f"python -m workloads prepare {self.workload} --data_dir {files.quoted(data_dir)}"

    def _make(self, data_dir: Path) -> None:
        """Makes everything in a folder beside, then moves it: the reference last."""
        self._refuse_to_replace_others(data_dir)
        for left in data_dir.glob(".making-*"):  # of a preparation that was killed
            shutil.rmtree(left)
        aside = data_dir / f".making-{uuid.uuid4().hex}"
        (aside / "old").mkdir(parents=True)
        try:
            self._write(aside)
            # The tree, which says whose data this is, goes last and comes first.
            for name in reversed(_names()):
                if (data_dir / name).exists():
                    os.replace(data_dir / name, aside / "old" / name)
            for name in _names():
                os.replace(aside / name, data_dir / name)
        finally:
            shutil.rmtree(aside)

    def _refuse_to_replace_others(self, data_dir: Path) -> None:
        """DataError unless the directory has no speech, or this corpus as prepared before."""
        found = [name for name in _names() if (data_dir / name).exists()]
        speakers = data_dir / TREE / spoken_tree.SPEAKERS
        try:
            mine = speakers.read_text("utf-8").startswith(f"; {self.note}\n")
        except (OSError, ValueError):
            mine = False
        if found and not mine:
            raise DataError(
                f"{data_dir} holds {found[0]} that is not of {self.workload}; it is not replaced",
                f"choose another folder: python -m workloads prepare {self.workload} --data_dir "
                f"FOLDER; or, if nothing of it is needed, remove {', '.join(found)} there",
            )

    def _write(self, folder: Path) -> None:
        texts = {role: self.texts(role) for role in SPLITS}
        version = espeak.version()
        self._write_tree(folder / TREE, texts)
        model = speech_tokenizer.train(texts["train"], self.vocab_size)
        (folder / speech_tokenizer.FILE_NAME).write_bytes(model)
        for role in SPLITS:
            self._write_role(folder, role, version)
        tokenizer = speech_tokenizer.load(folder, self.vocab_size, "")
        sources = {role: self.open_split(folder, role) for role in SPLITS}
        reference = {
            "note": self.note,
            "rows": reference_rows(texts),
            "sha256": content_sha256(sources, tokenizer),
            "espeak_ng": version,
        }
        (folder / preparation.REFERENCE_FILE).write_bytes(
            (json.dumps(reference, indent=2) + "\n").encode()
        )

    def _write_tree(self, tree: Path, texts: dict[str, list[str]]) -> None:
        lines = [
            line
            for number, role in enumerate(SPLITS)
            for line in spoken_tree.lines(
                SPLITS[role][0],
                texts[role],
                spoken_tree.voices(role),
                self.rates,
                # A stream of its own for every role: one role's size changes no other's speech.
                np.random.RandomState([self.seed, number]),
            )
        ]
        spoken_tree.write(tree, lines, self.note, np.random.RandomState(self.seed))

    def _write_role(self, folder: Path, role: str, version: str) -> None:
        """From the tree to AlgoPerf's layout. Raises DataError if not every utterance is kept."""
        job = librispeech_prepare.SplitToPrepare(
            tree=folder / TREE,
            data_dir=folder,
            split=SPLITS[role][0],
            max_audio=self.max_audio,
            max_targets=self.max_targets,
            vocab_size=self.vocab_size,
            repair=self.repair(folder.parent),
        )
        report = librispeech_prepare.prepare_split(job)
        if len(report.kept) != self.sizes[role]:
            raise DataError(
                f"{report}; {self.sizes[role]} are expected, all kept. This is espeak-ng "
                f"{version}, the corpus was laid out with {self.espeak_version}",
                "pip install 'espeakng-loader==0.2.4'",
            )


def _names() -> list[str]:
    """What stands below the directory, in the order in which it is moved there."""
    splits = [split for parts in SPLITS.values() for split in parts]
    lists = [f"{split}{end}.csv" for split in splits for end in ("", "_left_out")]
    return [TREE, speech_tokenizer.FILE_NAME, *splits, *lists, preparation.REFERENCE_FILE]


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
        | {f"{role}/wer": jiwer.wer(said, [answer] * len(said)) for role, said in texts.items()}
        for name, answer in answers.items()
    ]
