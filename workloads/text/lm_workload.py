"""Next-token prediction: the decoder-only language model as a workload."""

import math

import jax
import numpy as np

from workloads.base import spec
from workloads.text.text_workload import TextWorkload

Array = jax.Array
# The separator of documents stands before the first token of a record
# (workloads/storage/token_records.py).
END_OF_DOCUMENT = 1


class LMWorkload(TextWorkload):
    """A decoder-only Transformer. Metrics: loss (nats per token) and perplexity, its exponential.

    Batches: inputs int32 [B, L], the targets shifted right behind a document's end; targets int32
    [B, L]; in evaluations weights float32 [B], 0 for records that fill up a batch.
    """

    is_causal = True

    def _train_batch(self, tokens: np.ndarray, key: Array, step: int) -> spec.Batch:
        del key, step
        batch: spec.Batch = self.layout.shard({"inputs": shifted(tokens), "targets": tokens})
        return batch

    def _eval_batch(self, tokens: np.ndarray, weights: np.ndarray, first: int) -> spec.Batch:
        del first
        batch: spec.Batch = self.layout.shard(
            {"inputs": shifted(tokens), "targets": tokens, "weights": weights}
        )
        return batch

    def _metrics(self, sums: dict[str, float]) -> dict[str, float]:
        loss = sums["loss"] / sums["tokens"]
        return {"loss": loss, "perplexity": _exponential(loss)}

    def example_batch(self, batch_size: int) -> spec.Batch:
        return self._train_batch(self._random_tokens(batch_size), jax.random.key(0), 0)


def shifted(tokens: np.ndarray) -> np.ndarray:
    """Returns tokens [B, L] one place to the right, behind the end of a document."""
    inputs = np.empty_like(tokens)
    inputs[:, 0] = END_OF_DOCUMENT
    inputs[:, 1:] = tokens[:, :-1]
    return inputs


def _exponential(loss: float) -> float:
    """Returns e^loss, infinite where a diverged trial's is beyond a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
