"""Masked-token prediction: the bidirectional language model (BERT without its sentence task)."""

from typing import Any

import jax
import numpy as np

from workloads.base import spec
from workloads.base.base_workload import Sizes
from workloads.base.options import Options
from workloads.text import masking, token_loss
from workloads.text.text_workload import TextWorkload
from workloads.text.transformer_sizes import TransformerSize

Array = jax.Array
# Purpose of the draws, folded into the seed's key before the step; training has 1 and 3, mixup 2.
_MASKING = 4
# Stands in for the step in evaluations: no training gets there.
_EVALUATION = 2**31 - 1


class BertWorkload(TextWorkload):
    """A bidirectional Transformer. Metrics over masked places: accuracy (fraction), loss (nats).

    Batches as `masking.masked` makes them. Training masks are a function of (seed, step) and the
    place in the batch, evaluation masks of the record's number: the same at every evaluation, for
    every seed and variant. Records are full, so no attention mask is needed.
    """

    is_causal = False

    def __init__(
        self, name: str, variant: Any, options: Options, size: TransformerSize, sizes: Sizes
    ) -> None:
        super().__init__(name, variant, options, size, sizes)
        self._mask = jax.jit(self._masked)

    def _masked(self, tokens: Array, key: Array, step: Array, first: Array) -> spec.Batch:
        key = jax.random.fold_in(jax.random.fold_in(key, _MASKING), step)
        numbers = first + jax.numpy.arange(len(tokens))
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, numbers)
        return masking.masked(tokens, keys, self.size.vocabulary)

    def _train_batch(self, tokens: np.ndarray, key: Array, step: int) -> spec.Batch:
        batch: spec.Batch = self._mask(self.layout.shard(tokens), key, np.int32(step), np.int32(0))
        return batch

    def _eval_batch(self, tokens: np.ndarray, weights: np.ndarray, first: int) -> spec.Batch:
        tokens, weights = self.layout.shard((tokens, weights))
        key = jax.random.key(0)
        batch = self._mask(tokens, key, np.int32(_EVALUATION), np.int32(first))
        return {**batch, "weights": batch["weights"] * weights[:, None]}

    def _sums(self, targets: Array, logits: Array, weights: Array) -> dict[str, Array]:
        correct = token_loss.correct(targets, logits, weights)
        return {**super()._sums(targets, logits, weights), "correct": correct}

    def _metrics(self, sums: dict[str, float]) -> dict[str, float]:
        return {
            "accuracy": sums["correct"] / sums["tokens"],
            "loss": sums["loss"] / sums["tokens"],
        }

    def example_batch(self, batch_size: int) -> spec.Batch:
        return self._train_batch(self._random_tokens(batch_size), jax.random.key(0), 0)
