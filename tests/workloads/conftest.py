"""Corpora that the tests of text workloads are prepared from, and processes that a test starts."""

import multiprocessing.process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from workloads.storage import tfds_directory, tfrecord, tokenizer

_SYLLABLES = (
    "at",
    "ten",
    "ti",
    "on",
    "is",
    "all",
    "you",
    "need",
    "the",
    "cat",
    "sat",
    "mat",
    "val",
)
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


@pytest.fixture
def write_text_dataset() -> Callable[..., Path]:
    return _write_text_dataset


def _write_text_dataset(
    tree: Path, dataset: str, splits: Mapping[str, Sequence[Sequence[str]]]
) -> Path:
    """Writes `dataset` (`name/config:version`) into a TFDS tree; splits hold shards of texts."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import dataset_info, file_adapters

    directory = tfds_directory.directory_of(tree, dataset)
    directory.mkdir(parents=True)
    full_name, version = dataset.split(":")
    name, config = full_name.split("/")
    texts = tfds.features.FeaturesDict({"text": tfds.features.Text(), "url": tfds.features.Text()})
    info = tfds.core.DatasetInfo(
        builder=dataset_info.DatasetIdentity(
            name=name,
            version=tfds.core.Version(version),
            data_dir=str(directory),
            module_name="",
            config_name=config,
        ),
        features=texts,
    )
    info.set_file_format(file_adapters.FileFormat.TFRECORD)
    info.set_splits(
        tfds.core.splits.SplitDict(
            [_write_split(directory, name, split, shards) for split, shards in splits.items()]
        )
    )
    info.write_to_directory(directory)
    return directory


def _write_split(directory: Path, name: str, split: str, shards: Sequence[Sequence[str]]) -> object:
    import tensorflow_datasets as tfds

    template = tfds.core.ShardedFileTemplate(
        data_dir=directory, dataset_name=name, split=split, filetype_suffix="tfrecord"
    )
    size = 0
    for number, texts in enumerate(shards):
        records = [text_example(text) for text in texts]
        path = template.sharded_filepath(shard_index=number, num_shards=len(shards))
        tfrecord.write_tfrecord(path, records)
        size += sum(map(len, records))
    return tfds.core.SplitInfo(
        name=split,
        shard_lengths=[len(texts) for texts in shards],
        num_bytes=size,
        filename_template=template,
    )


def text_example(text: str | bytes) -> bytes:
    """A serialized `tf.train.Example` as TFDS writes a text."""
    from tensorflow_datasets.proto import tf_example_pb2

    example = tf_example_pb2.Example()
    content = text.encode() if isinstance(text, str) else text
    example.features.feature["text"].bytes_list.value.append(content)
    example.features.feature["url"].bytes_list.value.append(b"http://example.org")
    return example.SerializeToString(deterministic=True)


@pytest.fixture(scope="session")
def make_sentences() -> Callable[[int, int], list[str]]:
    return sentences
