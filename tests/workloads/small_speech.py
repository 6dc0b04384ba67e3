"""A speech workload of eight utterances of noise, its data in AlgoPerf's layout; a small corpus."""

import dataclasses

import numpy as np

from attention import registry as variants
from workloads import catalog
from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.speech import speech_workload
from workloads.speech.corpora import speech_records, speech_tokenizer, spoken

TEXTS = ["AB BA", "BA", "AB", "BAB A", "A B", "BB AA", "ABBA", "A"]
VOCABULARY = 8
COUNTS = {"train-clean-100": 8, "dev-clean": 3, "test-clean": 3}
SPLITS = {"train": ("train-clean-100",), "validation": ("dev-clean",), "test": ("test-clean",)}
# Of the spoken digits: 40 utterances to train, and six of each other role.
SPOKEN = dataclasses.replace(
    spoken.DIGITS,
    sizes={"train": 40, "validation": 6, "test": 6},
    vocab_size=24,
    max_targets=30,
)


def write(folder):
    """Writes 8 utterances to train, 3 to validate and 3 to test; returns the folder's name."""
    random = np.random.default_rng(0)
    splits = {
        split: [
            (f"u{number}", random.integers(-2000, 2000, 4800 - 160 * number), text)
            for number, text in enumerate(TEXTS[:count])
        ]
        for split, count in COUNTS.items()
    }
    write_splits(folder, splits, TEXTS, VOCABULARY)
    return str(folder)


def write_splits(folder, splits, texts, vocabulary):
    """Writes a tokenizer of `texts`, and of each split its (name, samples, text)."""
    model = speech_tokenizer.train(texts, vocabulary)
    (folder / speech_tokenizer.FILE_NAME).write_bytes(model)
    tokenizer = speech_tokenizer.load(folder, vocabulary, "")
    for split, utterances in splits.items():
        for name, audio, text in utterances:
            ids = speech_tokenizer.encode(tokenizer, text)
            speech_records.write(folder, split, name, audio, ids)
        speech_records.write_ids(folder, split, [name for name, _, _ in utterances])


def make(variant="standard", masks=None):
    data = speech_workload.Speech(
        sizes=Sizes(8, 4, 3, 3, eval_batch_size=2),
        splits=SPLITS, max_audio=4800, max_targets=10, vocab_size=VOCABULARY, repair=str,
    )  # fmt: skip
    settings = {
        "encoder_dim": 8, "num_heads": 2, "num_layers": 1, "feed_forward_factor": 2,
        "batch_norm_momentum": 0.9, "subsampling_channels": 2, "masks": masks,
    }  # fmt: skip
    return speech_workload.SpeechWorkload(
        catalog.get("spoken_digits_conformer"), data, settings, variants.get(variant), Options()
    )
