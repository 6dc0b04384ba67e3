"""Next-token prediction and masked-token prediction: the two language models as workloads.

BERT's masking (arXiv:1810.04805, section 3.1) is drawn on the device: 15 % of a sequence's ordinary
tokens are to be predicted; of those 80 % become the mask id, 10 % a random ordinary token, and 10 %
stay. What is drawn is a function of the sequence's key alone. There is no sentence task.
Axes: B batch, L length, K positions to predict.

The workloads: the paper's on C4 and Wikipedia, and small ones.

`c4_lm` (301 M parameters), `c4_lm_234m`, `_435m`, `_1b`, `_2b`, `_8b`: the paper's decoder-only
models. Sequences of 1024 tokens, 1024 a batch, 160,000 steps: 167.8 billion tokens. AlgoPerf's
released tree has no language model; this workload is ours. Selection is by the last shard of C4's
train split, which no model trains on; the test set is C4's validation split
(workloads/text/corpora/c4.py). Evaluations take the first sequences of each.

`wikipedia_bert`, `wikipedia_bert_2b`: masked language models in BERT's base size and the paper's
2.2 B. The encoder is the language models' network without the causal mask: pre-LN, no biases, no
learned positions, and one embedding for input and output, so base has 110 M parameters. There is no
next-sentence task and no segment embedding; the paper reports the MLM error alone, and so do we.
Sequences of 512 tokens, 1024 a batch.

`pydoc_lm`: the same network, loader, loss and metric on the documentation that ships with Python,
which a bare machine trains in under a minute. 2 layers of width 64, 164,160 parameters, sequences
of 64 tokens out of 1024. With NAdamW (rate 0.01, β2 0.99, decay 0.1, batch 8) one seed of standard
attention ends at 4.04 nats per token on validation after 2000 steps (45 s of one shared CPU core),
LASER at 4.02; 3000 steps give 3.95, and 0.005 is as good a rate. The smoothed bigram of the same
text has 4.37. A third of the time of a step is the vocabulary's matrix and its softmax, 5 % the
loader.

`pydoc_bert`: without the causal mask, 9 or 10 of 64 positions to predict. With NAdamW (rate 0.005,
β2 0.99, decay 0.1, batch 16) one seed of standard attention ends at an error of 0.731 on test (3.85
nats) after 4000 steps, in 130 s of one shared CPU core; it stays near 0.85, the error of knowing
the most frequent words, for the first 1000 steps. The left neighbour's most frequent successor is
wrong at 0.840 of all positions.
"""

import math
import pkgutil
from typing import Any

import jax
import jax.numpy as jnp

from workloads.base import spec
from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.base.workload_spec import WorkloadSpec
from workloads.storage import tokenizer
from workloads.text.corpora import token_preparation
from workloads.text.text_workload import TextWorkload

Array = jax.Array
CHOSEN = 0.15
_MASKED, _RANDOM = 0.8, 0.1
# Purpose of the draws, folded into the seed's key before the step; training has 1 and 3, mixup 2.
_MASKING = 4
# The step of evaluations: no training gets so far.
_EVALUATION = 2**31 - 1


class LMWorkload(TextWorkload):
    """A decoder-only Transformer. Metrics: loss (nats per token) and perplexity, its exponential.

    Batches: inputs int32 [B, L], the targets shifted right behind a document's end; targets int32
    [B, L]; in evaluations weights float32 [B], 0 for records that fill up a batch.
    """

    is_causal = True
    # What evaluations call the loss's exponential.
    _perplexity = "perplexity"

    def _finish(self, batch: spec.Batch, key: Array | None, step: Any) -> spec.Batch:
        tokens = batch.pop("tokens")
        return {"inputs": shifted(tokens), "targets": tokens, **batch}

    def _metrics(
        self, sums: dict[str, float], predictions: list[Any], data_dir: str
    ) -> dict[str, float]:
        loss = sums["loss"] / sums["tokens"]
        return {"loss": loss, self._perplexity: _exponential(loss)}


def shifted(tokens: Array) -> Array:
    """Returns tokens [B, L] one position to the right, behind the end of a document."""
    return jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=tokenizer.EOS)


def _exponential(loss: float) -> float:
    """Returns e^loss, infinite where a diverged trial's is beyond a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class BertWorkload(TextWorkload):
    """A bidirectional Transformer. Metrics over masked positions: accuracy (fraction), loss (nats).

    Batches as `masked` makes them. Training masks are a function of (seed, step) and the
    place in the batch, evaluation masks of the record's number: the same at every evaluation, for
    every seed and variant. Records are full, so no attention mask is needed.
    """

    is_causal = False
    _counts_correct = True

    def _finish(self, batch: spec.Batch, key: Array | None, step: Any) -> spec.Batch:
        tokens = batch["tokens"]
        numbers = jnp.arange(len(tokens))
        if key is None:
            numbers = step + numbers
            key, step = jax.random.key(0), _EVALUATION
        masking_key = jax.random.fold_in(jax.random.fold_in(key, _MASKING), step)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(masking_key, numbers)
        # Records that fill up a batch are zeros, without an ordinary token: their weights are 0.
        return masked(tokens, keys, self.size.vocabulary)

    def _metrics(
        self, sums: dict[str, float], predictions: list[Any], data_dir: str
    ) -> dict[str, float]:
        return {
            "accuracy": sums["correct"] / sums["tokens"],
            "loss": sums["loss"] / sums["tokens"],
        }


def num_positions(length: int) -> int:
    """Returns K, the most positions to predict of one sequence: 15 % of it, rounded up."""
    return math.ceil(CHOSEN * length)


def masked(tokens: Array, keys: Array, vocabulary: int) -> dict[str, Array]:
    """Returns what a masked language model trains on, from tokens [B, L] and one key each, [B].

    inputs int32 [B, L]; positions int32 [B, K], ascending; targets int32 [B, K], the tokens that
    stood there; weights float32 [B, K], 0 where a sequence has fewer than K positions to predict.
    Their number is 15 % of the ordinary tokens, rounded up or down so that it is 15 % on
    average.
    """
    return jax.vmap(_masked_sequence, in_axes=(0, 0, None))(
        tokens.astype(jnp.int32), keys, vocabulary
    )


def _masked_sequence(tokens: Array, key: Array, vocabulary: int) -> dict[str, Array]:
    choose, rounding, change, replace = jax.random.split(key, 4)
    positions, weights = _choose(tokens, choose, rounding)
    targets = tokens[positions]
    draw = jax.random.uniform(change, positions.shape)
    random = jax.random.randint(replace, positions.shape, tokenizer.FIRST_ORDINARY, vocabulary)
    changed = jnp.where(draw < _MASKED + _RANDOM, random, targets)
    changed = jnp.where(draw < _MASKED, tokenizer.MASK, changed)
    changed = jnp.where(weights > 0, changed, targets)
    inputs = tokens.at[positions].set(changed)
    return {"inputs": inputs, "positions": positions, "targets": targets, "weights": weights}


def _choose(tokens: Array, key: Array, rounding: Array) -> tuple[Array, Array]:
    """Returns K different positions in ascending order, and weight 1 for those to predict."""
    ordinary = tokens >= tokenizer.FIRST_ORDINARY
    score = jnp.where(ordinary, jax.random.uniform(key, tokens.shape), -1.0)
    _, positions = jax.lax.top_k(score, num_positions(len(tokens)))
    count = jnp.floor(CHOSEN * jnp.sum(ordinary) + jax.random.uniform(rounding))
    weights = (jnp.arange(len(positions)) < count) & ordinary[positions]
    order = jnp.argsort(positions)
    return positions[order], weights[order].astype(jnp.float32)


FULL_SIZE = Sizes(
    # What 160,000 steps see: 1.08 epochs of C4's 156 B tokens, many of Wikipedia's. What a
    # directory holds, `check` says.
    num_train=160_000 * 1024,
    num_eval_train=token_preparation.FEWEST["train"],
    num_validation=token_preparation.FEWEST["validation"],
    num_test=token_preparation.FEWEST["test"],
    eval_batch_size=256,
)
# By the metric of their rows.
_KINDS = {"loss": LMWorkload, "accuracy": BertWorkload}


def make(row: WorkloadSpec, variant: Any, options: Options) -> TextWorkload:
    """Returns a language model's workload on a large corpus; use `workloads.registry.make`."""
    return _KINDS[row.metric](row, variant, options, row.model, FULL_SIZE)


def make_small(row: WorkloadSpec, variant: Any, options: Options) -> TextWorkload:
    """Returns a language model's workload on the data that row.data names, which has `sizes`.

    Use `workloads.registry.make`. row.model: a TransformerSize.
    """
    data = pkgutil.resolve_name(row.data)
    sizes = Sizes(
        num_train=data.sizes["train"],
        num_eval_train=400,
        num_validation=data.sizes["validation"],
        num_test=data.sizes["test"],
        eval_batch_size=16,
    )
    return _KINDS[row.metric](row, variant, options, row.model, sizes)
