"""Batches of speech: what a data set fixes, its sources, and what the model is given of them."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads import table
from workloads.base import devices, example_queue, spec
from workloads.base.base_workload import Sizes
from workloads.images import image_sources
from workloads.speech.corpora import speech_records, speech_tokenizer

Array = jax.Array
_CACHE_BYTES = 2**28


@dataclasses.dataclass(frozen=True)
class Speech:
    """What a data set fixes.

    splits: role (train, validation, test) to the splits it is made of. max_audio in samples,
    max_targets in ids: what batches are padded to. cache keeps the utterances in memory.
    """

    sizes: Sizes
    splits: dict[str, tuple[str, ...]]
    max_audio: int
    max_targets: int
    vocab_size: int
    cache: bool = False


class SpeechBatches:
    """A workload's utterances, as stored: 16-bit audio, target ids, and the lengths of both."""

    def __init__(self, name: str, data: Speech, layout: devices.Layout) -> None:
        self._name, self._data, self._layout = name, data, layout
        self._sources: dict[tuple[str, str], example_queue.Source] = {}
        self._kept: dict[tuple[str, str, int], list[spec.Batch]] = {}
        self._tokenizers: dict[str, Any] = {}

    def train(
        self, seed: int, data_dir: str, batch_size: int, start_step: int, num_workers: int
    ) -> Iterator[spec.Batch]:
        """Yields training batches on the devices, from `start_step` on, without end."""
        stream = example_queue.train_batches(
            self.source("train", data_dir),
            seed=seed,
            batch_size=batch_size,
            transform=_whole,
            start_step=start_step,
            rows=self._layout.rows(batch_size),
            num_workers=num_workers,
        )
        with stream:
            for batch in stream:
                yield self._layout.shard(batch)

    def evaluation(self, split: str, data_dir: str, batch_size: int) -> Iterator[spec.Batch]:
        """Yields the split's batches, with `weights`; small splits stay on the devices."""
        key = (split, data_dir, batch_size)
        if key in self._kept:
            yield from self._kept[key]
            return
        source = self.source(split, data_dir)
        small = len(source) * self._data.max_audio * 2 <= _CACHE_BYTES
        kept: list[spec.Batch] = []
        rows = self._layout.rows(batch_size)
        with example_queue.eval_batches(
            source, batch_size=batch_size, transform=_whole, rows=rows
        ) as stream:
            for batch in map(self._layout.shard, stream):
                if small:
                    kept.append(batch)
                yield batch
        if small:
            self._kept[key] = kept

    def source(self, split: str, data_dir: str) -> example_queue.Source:
        """Returns the split's utterances, opened once and, where small, read once.

        Raises DataError for a split that is missing, or malformed.
        """
        found = self._sources.get((split, data_dir))
        if found is not None:
            return found
        role = "train" if split == "eval_train" else split
        data = self._data
        source: example_queue.Source = speech_records.SpeechSplit(
            data_dir, data.splits[role], data.max_audio, data.max_targets, self._repair(data_dir)
        )
        if split == "eval_train":
            source = image_sources.fixed_subset(source, data.sizes.num_eval_train)
        if data.cache:
            source = speech_records.CachedSpeech(source)
        self._sources[split, data_dir] = source
        return source

    def texts(self, data_dir: str, ids: Any, lengths: Any, there: np.ndarray) -> list[str]:
        """Returns the text of each row of ids [B, N] where `there` [B] is True."""
        if data_dir not in self._tokenizers:
            repair = self._repair(data_dir)
            tokenizer = speech_tokenizer.load(data_dir, self._data.vocab_size, repair)
            self._tokenizers[data_dir] = tokenizer
        ids, lengths = np.asarray(ids), np.asarray(lengths)
        rows = [ids[row, : lengths[row]] for row in np.flatnonzero(there)]
        return [speech_tokenizer.decode(self._tokenizers[data_dir], row) for row in rows]

    def example(self, batch_size: int) -> spec.Batch:
        """Returns a batch of noise and random ids, both of full length."""
        data, generator = self._data, np.random.default_rng(0)
        audio = generator.normal(0.0, 1000.0, (batch_size, data.max_audio))
        targets = generator.integers(1, data.vocab_size, (batch_size, data.max_targets))
        whole: dict[str, np.ndarray] = {
            "audio": audio.astype(np.int16),
            "audio_length": np.full(batch_size, data.max_audio, np.int32),
            "targets": targets.astype(np.int32),
            "targets_length": np.full(batch_size, data.max_targets, np.int32),
        }
        rows = self._layout.rows(batch_size)
        batch: spec.Batch = self._layout.shard({name: leaf[rows] for name, leaf in whole.items()})
        return batch

    def _repair(self, data_dir: str) -> str:
        return table.repair(self._name, data_dir)


def finished(batch: spec.Batch) -> Any:
    """Returns a batch as AlgoPerf's models take it, from stored records.

    `inputs`: samples float32 [B, N] (16-bit values as numbers) and paddings float32 [B, N];
    `targets`: ids int32 [B, U] and paddings float32 [B, U]; `weights` float32 [B] in evaluations.
    """
    audio = batch["audio"].astype(jnp.float32)
    ready = {
        "inputs": (audio, _paddings(batch["audio_length"], audio.shape[1])),
        "targets": (
            batch["targets"],
            _paddings(batch["targets_length"], batch["targets"].shape[1]),
        ),
    }
    return {**ready, "weights": batch["weights"]} if "weights" in batch else ready


def _paddings(lengths: Array, size: int) -> Array:
    return (jnp.arange(size) >= lengths[:, None]).astype(jnp.float32)


def _whole(record: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    del generator
    return record
