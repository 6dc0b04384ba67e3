"""Fabricated data in the layouts that AlgoPerf reads: for trying the plugin, not for results.

`python -m tests.algoperf.tiny_data DIR --workload=NAME` writes it; `tests.algoperf.tiny_run` runs
AlgoPerf on it. Images are flat colours by class, audio is tones by word. Layouts:
algoperf/workloads/{imagenet_resnet/imagenet_jax/workload.py, imagenet_resnet/imagenet_v2.py,
librispeech_conformer/input_pipeline.py, finewebedu_lm/input_pipeline.py}.
"""

import argparse
import itertools
from pathlib import Path

import cv2
import numpy as np

from tests.workloads import small_speech
from workloads.images import imagenet
from workloads.speech.corpora import librispeech
from workloads.storage import preparation

DESCRIPTION = "Fabricated by `tests.algoperf.tiny_data`: to try the plugin, not to measure"
# A batch may be larger: AlgoPerf repeats the training split. Its evaluations are slow on CPU cores.
SIZES = {"train": 16, "validation": 4, "test": 4}
# AlgoPerf's language model has no test split, and wants a token beside each sequence's 1024.
LM_SIZES = {"train": 16, "validation": 4, "test": 0}
_LM_TOKENS, _LM_PERIOD = 1024 + 1, 50
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_RATE = 16_000


def sizes(workload):
    """Returns the number of examples by split; `workload` is AlgoPerf's name, or a variant's."""
    return LM_SIZES if workload.startswith("finewebedu_lm") else SIZES


def prepare(directory, workload):
    """Writes tiny data for `workload` below `directory`; returns that as a path.

    `imagenet_vit` (with ImageNet-v2), `librispeech_conformer` (with its SentencePiece model),
    `finewebedu_lm` (which takes TensorFlow); their variants read the same. A directory may hold the
    data of several. The same examples every time.

    Raises DataError where the directory holds other data.
    """
    path = Path(directory)
    preparation.claim(path, DESCRIPTION)
    _WRITERS[workload](path)
    return path


def _write_imagenet(path):
    examples = {split: _images(split) for split in SIZES}
    imagenet.write(path, examples, num_classes=imagenet.NUM_CLASSES, description=DESCRIPTION)


def _images(split):
    """JPEG images of 256 × 256, a noisy colour for each of the first ten classes."""
    draws = np.random.RandomState(list(SIZES).index(split))
    colours = np.random.RandomState(99).randint(40, 216, (10, 3))
    examples = []
    for number in range(SIZES[split]):
        noise = draws.randint(-40, 40, (256, 256, 3))
        pixels = (colours[number % 10] + noise).astype(np.uint8)
        encoded = cv2.imencode(".jpg", pixels)[1].tobytes()
        name = f"{split}_{number}.JPEG"
        examples.append({"image": encoded, "label": number % 10, "file_name": name})
    return examples


def _write_librispeech(path):
    words, written = np.array(_words(20)), {}
    for seed, (role, splits) in enumerate(librispeech.SPLITS.items()):
        draws = np.random.RandomState(seed)
        parts = np.array_split(np.arange(SIZES[role]), len(splits))
        for split, numbers in zip(splits, parts, strict=True):
            written[split] = []
            for number in numbers:
                text = " ".join(words[draws.randint(len(words), size=5)]).upper()
                written[split].append((f"0-0-{number:04d}", _tones(text), text))
    texts = [word.upper() for word in _words(8000)]
    small_speech.write_splits(path, written, texts, librispeech.VOCAB_SIZE)


def _tones(text):
    """int16 samples, 0.1 s a letter: a tone by its place in the alphabet, silence for a space."""
    times = np.arange(_RATE // 10) / _RATE
    pitches = [0 if letter == " " else 200 + 40 * (ord(letter) - 64) for letter in text]
    return np.concatenate([8000 * np.sin(2 * np.pi * f * times) for f in pitches]).astype(np.int16)


def _words(count):
    """Different words of three syllables, always the same ones."""
    order = np.random.RandomState(0).permutation(len(_SYLLABLES) ** 3)[:count]
    all_words = ["".join(parts) for parts in itertools.product(_SYLLABLES, repeat=3)]
    return [all_words[number] for number in order]


def _write_finewebedu(path):
    """Documents that count around a circle of 50 tokens, from a start of their own.

    In the format that its input_pipeline.py loads, which only TensorFlow writes.
    """
    import tensorflow as tf

    for folder, split in (("train", "train"), ("val", "validation")):
        starts = np.random.RandomState(len(split)).randint(_LM_PERIOD, size=LM_SIZES[split])
        tokens = (starts[:, None] + np.arange(_LM_TOKENS)) % _LM_PERIOD
        rows = tf.data.Dataset.from_tensor_slices({"input_ids": tokens.astype(np.int64)})
        rows.save(str(path / folder))


_WRITERS = {
    "imagenet_vit": _write_imagenet,
    "librispeech_conformer": _write_librispeech,
    "finewebedu_lm": _write_finewebedu,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.algoperf.tiny_data")
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--workload", required=True, choices=tuple(_WRITERS))
    options = parser.parse_args()
    print(f"{prepare(options.directory, options.workload)}: {sizes(options.workload)} examples")
