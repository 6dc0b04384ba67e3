"""Small real data in the places and formats that init2winit reads, made of what is installed.

`python -m tests.init2winit.tiny_data DIR --dataset=NAME` writes it.

`mnist`: scikit-learn's 1797 handwritten digits, 28 × 28, as a TFDS directory, of whose split train
init2winit validates on the last 400; `wikitext103`: Python's own documentation as three text files,
in words as WikiText's; `librispeech`: two digits each, spoken by espeak-ng, as a TFDS directory,
with a SentencePiece model of `PIECES`. They are small: what is learned from them says nothing
about MNIST, WikiText or LibriSpeech.
docs/init2winit.md has the hyperparameters that go with them.
"""

import argparse
import collections
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import cv2
import numpy as np

from attention import files
from workloads.images import digits
from workloads.speech.corpora import espeak, speakers, speech_records, speech_tokenizer, spoken
from workloads.storage import preparation, tfds_directory
from workloads.text.corpora import pydoc_text

# Beside the tokens that init2winit adds, <unk> and <eos>.
WORDS = 2000
_CHARACTERS = {"train": 400_000, "validation": 40_000, "test": 40_000}
_TEXT_FILES = {"train": "train.txt", "validation": "valid.txt", "test": "test.txt"}
_UTTERANCES = {"train": 160, "validation": 32, "test": 32}
# The hyperparameter tokenizer_vocab_path, below `--data_dir`.
TOKENIZER = "librispeech/spm.model"
PIECES = 28
_SPEECH_SPLITS = {"train": "train_clean100", "validation": "dev_clean", "test": "test_clean"}
NOTE = "Small data, made by `tests.init2winit.tiny_data`: not the data set of this name"


def prepare(directory: str | os.PathLike[str], dataset: str) -> Path:
    """Writes the data for `dataset` below `directory`; returns what `--data_dir` must say.

    dataset: `mnist`, `wikitext103` or `librispeech`. The same files every time. Raises DataError
    where data that this did not write are there.
    """
    path = Path(directory).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return _WRITERS[dataset](path)


def _write_mnist(path: Path) -> Path:
    import tensorflow_datasets as tfds

    parts = {
        role: [_example(grey, label) for grey, label, _ in scans]
        for role, scans in digits.scans().items()
    }
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(28, 28, 1), encoding_format="png"),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
    )
    tfds_directory.write_dataset(
        path / "mnist/3.0.1",
        dataset="mnist:3.0.1",
        splits={"train": parts["train"] + parts["validation"], "test": parts["test"]},
        features=features,
        supervised_keys=("image", "label"),
        description=NOTE,
    )
    return path


def _example(grey: np.ndarray, label: int) -> dict[str, object]:
    # LINEAR_EXACT is integer arithmetic: the same pixels on every machine.
    large = cv2.resize(grey, (28, 28), interpolation=cv2.INTER_LINEAR_EXACT)
    return {"image": cv2.imencode(".png", large)[1].tobytes(), "label": label}


def _write_wikitext(path: Path) -> Path:
    """Lines of words and marks with spaces between them; a word that is not among the `WORDS` most
    frequent of the training text is <unk>, as in WikiText itself."""
    target = path / "wikitext103"
    preparation.claim(target, NOTE)
    parts = {
        role: list(_lines((document.text for document in documents), _CHARACTERS[role]))
        for role, documents in pydoc_text.split_documents(pydoc_text.documents()).items()
    }
    counts = collections.Counter(word for line in parts["train"] for word in line)
    known = {word for word, _ in counts.most_common(WORDS)}
    for role, name in _TEXT_FILES.items():
        lines = (
            " ".join(word if word in known else "<unk>" for word in line) for line in parts[role]
        )
        files.write(target / name, "\n".join(lines) + "\n")
    return target


def _lines(texts: Iterable[str], characters: int) -> Iterable[list[str]]:
    for line in (line for text in texts for line in text.lower().splitlines()):
        if characters <= 0:
            return
        characters -= len(line)
        if words := re.findall(r"[a-z_]+|\d|[^\w\s]", line):
            yield words


def _write_librispeech(path: Path) -> Path:
    import tensorflow_datasets as tfds

    splits = {}
    for seed, (role, split) in enumerate(_SPEECH_SPLITS.items()):
        random, count = np.random.RandomState(seed), _UTTERANCES[role]
        pool = spoken.digit_strings(role, 2)
        texts = [pool[number % len(pool)] for number in range(count)]
        lines = speakers.lines(split, texts, speakers.voices(role), (160, 220), random)
        _, speech = espeak.speak([line.utterance for line in lines])
        splits[split] = [
            {
                "speech": samples,
                "text": line.utterance.text.upper(),
                "speaker_id": line.speaker,
                "chapter_id": 1,
                "id": line.name,
            }
            for line, samples in zip(lines, speech, strict=True)
        ]
    features = tfds.features.FeaturesDict(
        {
            "speech": tfds.features.Audio(sample_rate=speech_records.SAMPLE_RATE, dtype=np.int16),
            "text": tfds.features.Text(),
            "speaker_id": np.int64,
            "chapter_id": np.int64,
            "id": np.str_,
        }
    )
    tfds_directory.write_dataset(
        path / "librispeech/default/2.1.1",
        dataset="librispeech/default:2.1.1",
        splits=splits,
        features=features,
        supervised_keys=("speech", "text"),
        description=NOTE,
    )
    spoken_texts = (str(example["text"]) for example in splits[_SPEECH_SPLITS["train"]])
    (path / TOKENIZER).write_bytes(speech_tokenizer.train(spoken_texts, PIECES))
    return path


_WRITERS: dict[str, Callable[[Path], Path]] = {
    "mnist": _write_mnist,
    "wikitext103": _write_wikitext,
    "librispeech": _write_librispeech,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.init2winit.tiny_data")
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--dataset", default="mnist", choices=tuple(_WRITERS))
    options = parser.parse_args()
    print(f"give init2winit --data_dir={prepare(options.directory, options.dataset)}")
