"""Speech in AlgoPerf's preprocessed layout, read at random.

`<data_dir>/<split>.csv` (header `,id`) lists the utterances of a split in order;
`<split>/<id>_audio.npy` holds the samples, raw 16-bit values at 16 kHz in any integer type
(AlgoPerf stores int64), `<split>/<id>_targets.npy` the SentencePiece ids with the end-of-sentence
id last.
"""

import csv
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from attention.common import files
from workloads.base.errors import DataError
from workloads.storage import npy

SAMPLE_RATE = 16_000
CSV_HEADER = ["", "id"]
_INT16 = np.iinfo(np.int16)


def path_of(data_dir: str | os.PathLike[str], split: str, utterance: str, kind: str) -> Path:
    """Returns the file of an utterance's samples ("audio") or target ids ("targets")."""
    return Path(data_dir) / split / f"{utterance}_{kind}.npy"


def write(
    data_dir: Path, split: str, utterance: str, audio: np.ndarray, targets: Iterable[int]
) -> None:
    """Writes the samples (int16) and the target ids of an utterance."""
    (data_dir / split).mkdir(parents=True, exist_ok=True)
    np.save(path_of(data_dir, split, utterance, "audio"), audio)
    np.save(path_of(data_dir, split, utterance, "targets"), np.array(list(targets), np.int32))


def write_ids(data_dir: Path, split: str, ids: Iterable[str]) -> None:
    """Writes `<split>.csv`, which appears whole or not at all."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([CSV_HEADER, *enumerate(ids)])
    files.write(data_dir / f"{split}.csv", text.getvalue())


def read_ids(data_dir: str | os.PathLike[str], split: str, repair: str) -> list[str]:
    """The utterances that `<split>.csv` lists; DataError if it is missing, malformed or empty."""
    path = Path(data_dir) / f"{split}.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file)) or [[]]
    except (OSError, ValueError, csv.Error) as problem:
        raise DataError(f"{path} cannot be read: {problem}", repair) from problem
    ids = {row[1] for row in rows if len(row) == 2 and row[1] and "/" not in row[1]}
    if header != CSV_HEADER or not ids or len(ids) != len(rows):
        raise DataError(
            f"{path} is no list of utterances: the header ',id', then on every line a number and "
            "an id that no other line has",
            repair,
        )
    return [row[1] for row in rows]


class SpeechSplit:
    """Utterances of one or several splits, one split after the other, each in its CSV's order."""

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        splits: tuple[str, ...],
        max_audio: int,
        max_targets: int,
        repair: str,
        vocabulary: int = _INT16.max + 1,
    ) -> None:
        """Reads the lists of utterances. `max_audio` is in samples, `max_targets` in ids;
        `vocabulary`: how many ids the model has.

        Raises DataError for a missing or malformed list; its text ends with `repair`.
        """
        self.data_dir, self.splits, self.repair = Path(data_dir), splits, repair
        self.max_audio, self.max_targets = max_audio, max_targets
        self.vocabulary = vocabulary
        self.ids = [(split, name) for split in splits for name in read_ids(data_dir, split, repair)]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """The utterance, padded with zeros.

        `audio` int16 `[max_audio]`, `audio_length` int32, `targets` int32 `[max_targets]`,
        `targets_length` int32. Raises DataError for a file that is missing, damaged, of the wrong
        type, empty or too long, and for a target that is no id from 1 (0 is the blank) or not in
        the vocabulary; IndexError beyond the end.
        """
        split, utterance = self.ids[number]
        audio = self._load(
            path_of(self.data_dir, split, utterance, "audio"),
            "samples",
            self.max_audio,
            range(_INT16.min, _INT16.max + 1),
        )
        targets = self._load(
            path_of(self.data_dir, split, utterance, "targets"),
            "target ids",
            self.max_targets,
            range(1, self.vocabulary),
        )
        return {
            "audio": np.pad(audio.astype(np.int16), (0, self.max_audio - len(audio))),
            "audio_length": np.int32(len(audio)),
            "targets": np.pad(targets.astype(np.int32), (0, self.max_targets - len(targets))),
            "targets_length": np.int32(len(targets)),
        }

    def __str__(self) -> str:
        return f"{self.data_dir}: {' + '.join(self.splits)}"

    def _load(self, path: Path, unit: str, most: int, allowed: range) -> np.ndarray:
        """Returns `[1 … most]` integers, each of them `allowed`."""
        array = npy.read(path, self.repair)
        is_list = array.ndim == 1 and array.dtype.kind in "iu" and 0 < len(array) <= most
        if not is_list or array.min() < allowed.start or array.max() >= allowed.stop:
            extent = f" from {array.min()} to {array.max()}" if is_list else ""
            raise DataError(
                f"{path} holds {array.dtype} {list(array.shape)}{extent}; 1 to {most} {unit} are "
                f"expected, integers from {allowed.start} to {allowed.stop - 1}",
                self.repair,
            )
        return array
