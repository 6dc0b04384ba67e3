"""Fabricated data in the layouts that AlgoPerf reads: for trying the plugin, not for results.

Images are flat colours by class, audio is tones by word, translation maps made-up words to made-up
words. Layouts: algoperf/workloads/{imagenet_resnet/imagenet_jax/workload.py, imagenet_resnet/
imagenet_v2.py, librispeech_conformer/input_pipeline.py, wmt/input_pipeline.py,
finewebedu_lm/input_pipeline.py}.
"""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from attention import files
from workloads.algoperf import tiny_sizes
from workloads.algoperf.tiny_sizes import MARKER
from workloads.base.errors import DataError
from workloads.images import imagenet
from workloads.speech.corpora import librispeech, speech_records, speech_tokenizer
from workloads.storage import preparation, tfds_directory, tokenizer

DESCRIPTION = "Fabricated by `python -m workloads algoperf_data`: to try the plugin, not to measure"
# A batch may be larger: AlgoPerf repeats the training split. Its evaluations are slow on CPU cores.
SIZES = {"train": 16, "validation": 4, "test": 4}
# AlgoPerf's language model has no test split, and wants a token beside each sequence's 1024.
LM_SIZES = {"train": 16, "validation": 4, "test": 0}
_LM_TOKENS, _LM_PERIOD = 1024 + 1, 50
WMT_VOCABULARY = 32_000
WMT_TOKENIZER = "wmt_sentencepiece_model"
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_RATE = 16_000


def prepare(directory: str | os.PathLike[str], workload: str) -> Path:
    """Writes tiny data for `workload` below `directory`; returns that as a path.

    `imagenet_vit` (with ImageNet-v2), `librispeech_conformer` (with its SentencePiece model),
    `wmt` (with its own), `finewebedu_lm` (which takes TensorFlow); their variants read the same. A
    file `attnperf_tiny_data.json` names the workloads whose data in the directory is fabricated,
    and the sizes of their splits. The same examples every time.

    Raises ValueError for another workload, DataError where the directory holds other data.
    """
    if workload not in _WRITERS:
        raise ValueError(
            f"no tiny data for {workload!r}; there is some for {', '.join(_WRITERS)} (variants of "
            "a workload read the data of the first)"
        )
    path = Path(directory)
    preparation.claim(path, DESCRIPTION)
    with preparation.locked(path):  # two commands at once would lose an entry
        _write_marker(path, workload)
    _WRITERS[workload](path)
    return path


def _write_marker(path: Path, workload: str) -> None:
    new = LM_SIZES if workload == "finewebedu_lm" else SIZES
    sizes = {**tiny_sizes.read(path), workload: new}
    content = {"fabricated": True, "note": DESCRIPTION, "sizes": sizes}
    files.write(path / MARKER, json.dumps(content, indent=2) + "\n")


def _write_imagenet(path: Path) -> None:
    examples = {split: _images(split) for split in SIZES}
    imagenet.write(path, examples, num_classes=imagenet.NUM_CLASSES, description=DESCRIPTION)


def _images(split: str) -> list[dict[str, object]]:
    """JPEG images of 256 × 256, a noisy colour for each of the first ten classes."""
    draws = np.random.RandomState(list(SIZES).index(split))
    colours = np.random.RandomState(99).randint(40, 216, (10, 3))
    examples: list[dict[str, object]] = []
    for number in range(SIZES[split]):
        noise = draws.randint(-40, 40, (256, 256, 3))
        pixels = (colours[number % 10] + noise).astype(np.uint8)
        encoded = cv2.imencode(".jpg", pixels)[1].tobytes()
        name = f"{split}_{number}.JPEG"
        examples.append({"image": encoded, "label": number % 10, "file_name": name})
    return examples


def _write_librispeech(path: Path) -> None:
    model = speech_tokenizer.train((word.upper() for word in _words(8000)), librispeech.VOCAB_SIZE)
    (path / speech_tokenizer.FILE_NAME).write_bytes(model)
    processor = speech_tokenizer.load(path, librispeech.VOCAB_SIZE, "")
    for seed, (role, splits) in enumerate(librispeech.SPLITS.items()):
        draws = np.random.RandomState(seed)
        parts = np.array_split(np.arange(SIZES[role]), len(splits))
        for split, numbers in zip(splits, parts, strict=True):
            names = [f"0-0-{number:04d}" for number in numbers]
            for name in names:
                text = " ".join(_some_words(draws, 5)).upper()
                ids = speech_tokenizer.encode(processor, text)
                speech_records.write(path, split, name, _tones(text), ids)
            speech_records.write_ids(path, split, names)


def _tones(text: str) -> np.ndarray:
    """int16 samples, 0.1 s a letter: a tone by its place in the alphabet, silence for a space."""
    times = np.arange(_RATE // 10) / _RATE
    pitches = [0 if letter == " " else 200 + 40 * (ord(letter) - 64) for letter in text]
    return np.concatenate([8000 * np.sin(2 * np.pi * f * times) for f in pitches]).astype(np.int16)


def _write_wmt(path: Path) -> None:
    import tensorflow_datasets as tfds

    # A piece a word, for AlgoPerf's model of 32,000 outputs. Three pieces are the library's own:
    # unknown, beginning, end.
    words = _words(WMT_VOCABULARY - 3)
    (path / WMT_TOKENIZER).write_bytes(tokenizer.trained(words, WMT_VOCABULARY, model_type="word"))
    for dataset, splits in (("wmt17", ("train",)), ("wmt14", ("validation", "test"))):
        tfds_directory.write_dataset(
            path / f"{dataset}_translate/de-en/1.0.0",
            dataset=f"{dataset}_translate/de-en:1.0.0",
            splits={split: _sentences(split) for split in splits},
            features=tfds.features.Translation(languages=("de", "en")),
            supervised_keys=("de", "en"),
            description=DESCRIPTION,
        )


def _sentences(split: str) -> list[dict[str, str]]:
    """Pairs in which the translation of a word is the word spelled backwards by syllables."""
    draws = np.random.RandomState(list(SIZES).index(split))
    pairs = []
    for _ in range(SIZES[split]):
        words = _some_words(draws, 6)
        turned = [word[4:] + word[2:4] + word[:2] for word in words]
        pairs.append({"de": " ".join(words), "en": " ".join(turned)})
    return pairs


def _words(count: int) -> list[str]:
    """Different words of three syllables, always the same ones."""
    order = np.random.RandomState(0).permutation(len(_SYLLABLES) ** 3)[:count]
    all_words = ["".join(parts) for parts in itertools.product(_SYLLABLES, repeat=3)]
    return [all_words[number] for number in order]


def _some_words(draws: np.random.RandomState, count: int) -> list[str]:
    """Drawn from the twenty words that occur."""
    words = _words(20)
    return [words[number] for number in draws.randint(len(words), size=count)]


def _write_finewebedu(path: Path) -> None:
    """Documents that count around a circle of 50 tokens, from a start of their own.

    In the format that its input_pipeline.py loads, which only TensorFlow writes. Raises DataError
    without TensorFlow.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise DataError(
            f"finewebedu_lm's data is written by TensorFlow, which is missing ({error})",
            "use the environment in which AlgoPerf is installed",
        ) from error
    for folder, split in (("train", "train"), ("val", "validation")):
        starts = np.random.RandomState(len(split)).randint(_LM_PERIOD, size=LM_SIZES[split])
        tokens = (starts[:, None] + np.arange(_LM_TOKENS)) % _LM_PERIOD
        rows = tf.data.Dataset.from_tensor_slices({"input_ids": tokens.astype(np.int64)})
        rows.save(str(path / folder))


_WRITERS: dict[str, Callable[[Path], None]] = {
    "imagenet_vit": _write_imagenet,
    "librispeech_conformer": _write_librispeech,
    "wmt": _write_wmt,
    "finewebedu_lm": _write_finewebedu,
}
