"""Corpora that the tests of text workloads are prepared from; programs and processes of tests."""

import json
import multiprocessing.process
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads.storage import tfds_directory, token_records, tokenizer
from workloads.text.corpora import pydoc_text

REPOSITORY = Path(__file__).resolve().parents[2]
# fmt: off
_SYLLABLES = (
    "at", "ten", "ti", "on", "is", "all", "you", "need", "the", "cat", "sat", "mat", "val",
)
# fmt: on
WORDS = [a + b for a in _SYLLABLES for b in _SYLLABLES]
VOCABULARY = 330


def sentences(count: int, seed: int) -> list[str]:
    """Sentences of 2 to 29 words."""
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(2, 30))) + "." for _ in range(count)]


@pytest.fixture(scope="session")
def spm_model() -> bytes:
    """A vocabulary of 330 pieces with byte fallback."""
    return tokenizer.train(sentences(300, 99), VOCABULARY, byte_fallback=True)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of the test's own, where indices of its files are kept."""
    monkeypatch.setenv("ATTNPERF_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def started_processes(monkeypatch) -> list[multiprocessing.process.BaseProcess]:
    """Every process that the test has started, also one that has ended.

    A worker that reads a short split may end before it can be counted among the living.
    """
    started = []
    start = multiprocessing.process.BaseProcess.start

    def start_and_note(process: multiprocessing.process.BaseProcess) -> None:
        start(process)
        started.append(process)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start_and_note)
    return started


def few_sources(patch: pytest.MonkeyPatch) -> None:
    """Has Python's documentation be of all help topics, but of every sixth file of the library."""
    sources = pydoc_text._sources
    patch.setattr(pydoc_text, "_sources", lambda library: sorted(sources(library))[::6])


def result_of(program: subprocess.Popen[str]) -> tuple[Any, str]:
    """Returns what the last line printed is as JSON, and the program's errors."""
    output, errors = program.communicate()
    assert program.returncode == 0, errors[-3000:]
    return json.loads(output.splitlines()[-1]), errors


def check_records(directory: Path, splits: Mapping[str, Sequence[Sequence[str]]]) -> None:
    """Asserts that records of 16 tokens are those of the texts, packed by hand shard by shard."""
    processor = tokenizer.load(directory / "spm.model")
    for split, shards in splits.items():
        rows = []
        for shard in shards:
            stream = [token for text in shard for token in [*processor.encode(text), 1]]
            rows.append(np.array(stream[: len(stream) // 16 * 16]).reshape(-1, 16))
        source = token_records.open_split(directory, split, "")
        records = [source[number]["tokens"] for number in range(len(source))]
        np.testing.assert_array_equal(records, np.concatenate(rows))


class Numbers:
    """A tokenizer of texts that are ids with blanks between."""

    def encode(self, texts: Sequence[str], num_threads: int) -> list[list[int]]:
        return [[int(word) for word in text.split()] for text in texts]


def write_token_records(directory: Path, splits: Mapping[str, Sequence[np.ndarray]]) -> None:
    """Writes shards of records, of one length, beside their vocabulary of 330 pieces.

    The last id of a shard's last record is the end of a document.
    """
    written = {}
    for split, shards in splits.items():
        names = [token_records.file_name(split, n, len(shards)) for n in range(len(shards))]
        texts = [" ".join(map(str, rows.ravel()[:-1])) for rows in shards]
        written[split] = [
            token_records.write_shard(
                directory, name, [text] * bool(text), Numbers(), rows.shape[1]
            )
            for name, text, rows in zip(names, texts, shards, strict=True)
        ]
    token_records.write_info(
        directory,
        length=shards[0].shape[1],
        vocab_size=VOCABULARY,
        splits=written,
        source={"dataset": "numbers"},
    )


def write_text_dataset(
    tree: Path, dataset: str, splits: Mapping[str, Sequence[Sequence[str]]]
) -> Path:
    """Writes `dataset` (`name/config:version`) into a TFDS tree; splits hold shards of texts, all
    of one length."""
    import tensorflow_datasets as tfds

    directory = tfds_directory.directory_of(tree, dataset)
    tfds_directory.write_dataset(
        directory,
        dataset=dataset,
        splits={
            split: [
                {"text": text, "url": "http://example.org"} for shard in shards for text in shard
            ]
            for split, shards in splits.items()
        },
        features=tfds.features.FeaturesDict(
            {"text": tfds.features.Text(), "url": tfds.features.Text()}
        ),
        description="Texts of a test.",
        shards={split: len(shards) for split, shards in splits.items()},
    )
    return directory
