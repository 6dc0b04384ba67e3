"""Small directories of every kind that is read: pictures, tokens, speech."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import tensorflow_datasets as tfds

from tests.workloads.conftest import write_token_records
from workloads.speech.corpora import speech_records
from workloads.storage import arrow_tokens, tfds_directory

REPAIR = "run the repair command"

# --- pictures as TFDS stores them ---

PICTURES = "imagenet_v2/matched-frequency:3.0.0"
EXAMPLES = [
    {
        "image": cv2.imencode(".png", picture)[1].tobytes(),
        "label": number % 7,
        "file_name": f"{number}.png",
    }
    for number, picture in enumerate(
        np.random.default_rng(0).integers(0, 256, (20, 6, 5, 3), np.uint8)
    )
]


def write_pictures(folder: Path, train: list[dict[str, Any]] = EXAMPLES) -> Path:
    """Writes 20 examples to train and 5 to test, in three shards each; returns their directory."""
    directory = tfds_directory.directory_of(folder, PICTURES)
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(encoding_format="png"),
            "label": tfds.features.ClassLabel(num_classes=7),
            "file_name": tfds.features.Text(),
        }
    )
    tfds_directory.write_dataset(
        directory,
        dataset=PICTURES,
        splits={"train": train, "test": EXAMPLES[:5]},
        features=features,
        description="for the tests",
        shards={"train": 3, "test": 3},
    )
    return directory


def open_pictures(directory: Path, split: str = "train") -> tfds_directory.TfdsSplit:
    return tfds_directory.TfdsSplit(directory, split, dataset=PICTURES, repair=REPAIR)


# --- token records ---

ROWS = np.arange(4, 64, dtype=np.uint16).reshape(10, 6)
# Where a shard ends, a document ends.
ROWS[[3, 8, 9], 5] = 1
PARTS = {"train": (ROWS[:4], ROWS[:0], ROWS[4:9]), "test": (ROWS[9:],)}


def write_tokens(folder: Path, spm_model: bytes, **changes: Any) -> None:
    """Writes two splits in shards of 4, 0, 5 and 1 records of 6 tokens."""
    (folder / "spm.model").write_bytes(spm_model)
    write_token_records(folder, {**PARTS, **changes})


def write_arrow_tokens(folder: Path, ids: list[int]) -> None:
    """Writes ids as one document of one file, in the form of AlgoPerf."""
    name = "data-00000-of-00001.arrow"
    with arrow_tokens.writing(folder / name) as append:
        append(np.array([ids], np.uint16))
    arrow_tokens.write_state(folder, [name])


# --- speech ---


def write_speech(folder: Path) -> None:
    """Writes two splits of two utterances and one, in AlgoPerf's types."""
    ids = np.array([5, 7, 2], np.int32)
    speech_records.write(folder, "a", "1-1-0", np.array([1, -32768, 32767], np.int64), ids)
    speech_records.write(folder, "a", "1-1-1", np.array([4, 5], np.int64), ids[:2])
    speech_records.write(folder, "b", "2-1-0", np.array([6], np.int16), ids[2:])
    speech_records.write_ids(folder, "a", ["1-1-1", "1-1-0"])
    speech_records.write_ids(folder, "b", ["2-1-0"])


def open_speech(folder: Path) -> speech_records.SpeechSplit:
    return speech_records.SpeechSplit(folder, ("a", "b"), 4, 3, REPAIR, 5000)
