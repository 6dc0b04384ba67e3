"""Next-token prediction and masked-token prediction: Transformers on token records as workloads.

BERT's masking (arXiv:1810.04805, section 3.1) is drawn on the device: 15 % of a sequence's ordinary
tokens are to be predicted; of those 80 % become the mask id, 10 % a random ordinary token, and 10 %
stay. What is drawn is a function of the sequence's key alone. There is no sentence task.
Axes: B batch, L length, V vocabulary, K positions to predict; N is L, or K of BERT.

The workloads: the paper's on C4 and Wikipedia, and small ones.

`c4_lm` (301 M parameters), `c4_lm_234m`, `_435m`, `_1b`, `_2b`, `_8b`: the paper's decoder-only
models. Sequences of 1024 tokens, 1024 a batch, 160,000 steps: 167.8 billion tokens. AlgoPerf's
released tree has no language model; this workload is ours. Selection is by the last shard of C4's
train split, which no model trains on; the test set is C4's validation split
(workloads/text/corpora/large_corpora.py). Evaluations take the first sequences of each.

`c4_lm_32k`: `c4_lm` on sequences of 32,768 tokens, 32 a batch: as many tokens. Not of the paper.

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

import dataclasses
import math
import pkgutil
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from workloads.base import sources, spec
from workloads.base.errors import DataError
from workloads.base.options import Options
from workloads.base.workload import BaseWorkload, Sizes, unchanged
from workloads.base.workload_spec import WorkloadSpec
from workloads.storage import token_records, tokenizer
from workloads.text import chunked_loss, transformer
from workloads.text.text_specs import TransformerSize

CHOSEN = 0.15
_MASKED, _RANDOM = 0.8, 0.1
# Purpose of the draws, folded into the seed's key before the step; training has 1 and 3, mixup 2.
_MASKING = 4
# A larger loss has no exponential in float64.
_LARGEST_LOSS = 709.78
# The step of evaluations: no training gets so far.
_EVALUATION = 2**31 - 1


class TextWorkload(BaseWorkload):
    """A Transformer with its loss and data. Losses are nats per token (per predicted token).

    Sizes of evaluations are numbers of sequences. `parameter_rules` divide the parameters over
    options.mesh.
    """

    loss_type = spec.LossType.SOFTMAX_CROSS_ENTROPY
    train_transform = eval_transform = staticmethod(unchanged)
    parameter_rules = transformer.PARAMETER_RULES
    is_causal: bool
    _is_pinned = True
    # Whether evaluations count the tokens that are predicted right.
    _counts_correct = False
    # Of example batches: the tokens of a record beyond the context, and the lowest token.
    _more_tokens = 0
    _lowest_token = tokenizer.FIRST_ORDINARY

    def __init__(
        self,
        row: WorkloadSpec,
        variant: Any,
        options: Options,
        size: TransformerSize,
        sizes: Sizes,
    ) -> None:
        model = transformer.Transformer(size, variant, self.is_causal, options)
        super().__init__(row, model, variant, options, sizes)
        self.size = size
        self.eval_example_bytes = 12 * size.context
        self.id_limits = {"tokens": size.vocabulary}

    def is_output_params(self, param_key: str) -> bool:
        """The embedding is the output layer too, as in AlgoPerf's WMT workload."""
        return param_key == "embedding"

    def _embedding(self, params: spec.Parameters) -> jax.Array:
        """Returns the embedding [V, W], of which logits are made."""
        return params["embedding"]

    def _initial_variables(self, key: jax.Array) -> dict[str, Any]:
        """Returns parameters in options.param_dtype."""
        return dict(self._model.init({"params": key}, jnp.zeros((1, self.size.context), jnp.int32)))

    def _called_model(self) -> nn.Module:
        # Pinned to the mesh here and not in __init__: a workload can be built anywhere.
        return self._placed_model().clone(devices=self.devices if self._is_pinned else None)

    def _model_settings(self, batch: spec.Batch) -> dict[str, Any]:
        """Logits are [B, L, V], or [B, K, V] at the batch's 'positions' [B, K]."""
        return {"at": batch.get("positions")}

    def _hidden(
        self, params: spec.Parameters, batch: spec.Batch, rng: jax.Array | None, dropout_rate: Any
    ) -> jax.Array:
        """Returns [B, N, W] of which the embedding makes logits; trains where there is a key."""
        return self._called_model().apply(
            {"params": params},
            batch["inputs"],
            **self._model_settings(batch),
            train=rng is not None,
            dropout_rate=dropout_rate,
            to_logits=False,
            rngs=None if rng is None else {"dropout": rng},
        )

    def train_loss(
        self,
        params: spec.Parameters,
        batch: spec.Batch,
        model_state: spec.ModelState,
        rng: jax.Array,
        dropout_rate: Any,
        label_smoothing: Any,
    ) -> tuple[dict[str, jax.Array], spec.ModelState]:
        """With options.loss_chunk_tokens the logits of one chunk exist at a time."""
        most, labels = self.options.loss_chunk_tokens, batch["targets"]
        if not most:
            return super().train_loss(
                params, batch, model_state, rng, dropout_rate, label_smoothing
            )
        hidden = self._hidden(params, batch, rng, dropout_rate)
        weights = token_weights(labels.shape, batch.get("weights"))
        summed = chunked_loss.summed(
            self.devices.mesh,
            most,
            hidden,
            self._embedding(params),
            labels,
            weights,
            label_smoothing,
        )
        return {"summed": summed, "n_valid_examples": weights.sum()}, model_state

    def log_probabilities(
        self, params: spec.Parameters, batch: spec.Batch, most: int = 256
    ) -> tuple[jax.Array, jax.Array]:
        """Returns log-probabilities of targets, float32, and the most probable tokens, int32.

        Both are [B, N] and stand as the batch's 'places' do, which with 'counts' say where they are
        asked: `chunked_loss.at_places`, of which `most` is, too. For use inside jit.
        """
        return chunked_loss.at_places(
            self.devices.mesh,
            most,
            self._hidden(params, batch, None, 0.0),
            self._embedding(params),
            batch["targets"],
            batch["places"],
            batch["counts"],
        )

    def observable(self) -> Self:
        """Its layers are neither in a loop nor computed twice, its activations pinned nowhere.

        So a batch need not divide over the devices.
        """
        workload = super().observable()
        workload.options = dataclasses.replace(self.options, scan_layers=False, remat=False)
        workload._model = workload._model.clone(options=workload.options)
        workload._is_pinned = False
        return workload

    def observable_parameters(self, params: spec.Parameters) -> spec.Parameters:
        return transformer.unstacked(params) if self.options.scan_layers else params

    def loss_fn(
        self,
        label_batch: jax.Array,
        logits_batch: jax.Array,
        mask_batch: jax.Array | None = None,
        label_smoothing: Any = 0.0,
    ) -> dict[str, jax.Array]:
        """Cross-entropy in nats, float32; labels [B, N], mask [B] or [B, N]; counts are of tokens.

        The target distribution is (1 − s)·onehot + s/V, as in optax.
        """
        normaliser = jax.nn.logsumexp(logits_batch, axis=-1)
        expected = (1.0 - label_smoothing) * _at(logits_batch, label_batch)
        expected = expected + label_smoothing * jnp.mean(logits_batch, axis=-1)
        weights = token_weights(label_batch.shape, mask_batch)
        losses = (normaliser - expected) * weights
        return {
            "summed": losses.sum(),
            "n_valid_examples": weights.sum(),
            "per_example": losses.sum(axis=-1),
        }

    def _open(self, split: str, data_dir: str) -> sources.Source:
        """Raises DataError, too, for records of another model's vocabulary or context."""
        repair = self._row.repair(data_dir)
        records = token_records.open_split(data_dir, split, repair)
        expected = (self.size.vocabulary, self.size.context + self._more_tokens)
        if (records.vocabulary, records.length) != expected:
            raise DataError(
                f"{records} has a vocabulary of {records.vocabulary} in records of "
                f"{records.length} tokens; the model takes {expected[0]} and {expected[1]}",
                repair,
            )
        return records

    def _eval_train(self, source: sources.Source) -> sources.Source:
        return sources.evenly_spaced(source, self.num_eval_train_examples)

    def _num_evaluated(self, split: str, source: sources.Source) -> int:
        return {
            "eval_train": self.num_eval_train_examples,
            "validation": self.num_validation_examples,
            "test": self.num_test_examples,
        }[split]

    def _evaluated(
        self, params: spec.Parameters, model_state: spec.ModelState, batch: spec.Batch
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        most, labels = self.options.loss_chunk_tokens, batch["targets"]
        weights = token_weights(labels.shape, batch["weights"])
        if not most:
            logits = self._eval_logits(params, model_state, batch)
            losses = self.loss_fn(labels, logits, batch["weights"])
            sums, values = {"loss": losses["summed"]}, losses["per_example"]
            if self._counts_correct:
                right = correct(labels, logits, batch["weights"])
                sums["correct"], values = right.sum(), right.sum(axis=-1)
            items = {"values": values, "weights": weights.sum(axis=-1)}
            return {**sums, "tokens": losses["n_valid_examples"]}, items
        sums, values = chunked_loss.sums(
            self.devices.mesh,
            most,
            self._counts_correct,
            self._hidden(params, batch, None, 0.0),
            self._embedding(params),
            labels,
            weights,
        )
        items = {"values": values, "weights": weights.sum(axis=-1)}
        return {**sums, "tokens": weights.sum()}, items

    def example_batch(self, batch_size: int) -> spec.Batch:
        """Returns a training batch of random ordinary tokens."""
        generator = np.random.default_rng(0)
        shape = (batch_size, self.size.context + self._more_tokens)
        tokens = generator.integers(self._lowest_token, self.size.vocabulary, shape, dtype=np.int32)
        batch = self.devices.shard({"tokens": tokens[self.devices.rows(batch_size)]})
        return self._finished(batch, jax.random.key(0), 0)


def correct(labels: jax.Array, logits: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Returns the weights, float32 [B, N], of labels that have the highest logit, 0 for others."""
    # The argmax of NaN is its place.
    right = (jnp.argmax(logits, axis=-1) == labels) & ~jnp.isnan(logits).any(axis=-1)
    return right * token_weights(labels.shape, mask)


def token_weights(shape: tuple[int, ...], mask: jax.Array | None) -> jax.Array:
    """Returns float32 weights [B, N] for a mask [B], [B, N] or None (all 1)."""
    if mask is None:
        return jnp.ones(shape, jnp.float32)
    mask = mask[:, None] if mask.ndim == 1 else mask
    return jnp.broadcast_to(mask, shape).astype(jnp.float32)


def _at(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns logits[..., label]; as a sum, which needs no gather where V is divided."""
    entries = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return jnp.sum(jnp.where(entries == labels[..., None], logits, 0.0), axis=-1)


class LMWorkload(TextWorkload):
    """A decoder-only Transformer. Metrics: loss (nats per token) and perplexity, its exponential.

    Batches: inputs int32 [B, L], the targets shifted right behind a document's end; targets int32
    [B, L]; in evaluations weights float32 [B], 0 for records that fill up a batch.
    """

    is_causal = True
    item_metric = "loss"
    # What evaluations call the loss's exponential.
    _perplexity = "perplexity"

    def _finish(self, batch: spec.Batch, key: jax.Array | None, step: Any) -> spec.Batch:
        tokens = batch.pop("tokens")
        return {"inputs": shifted(tokens), "targets": tokens, **batch}

    def _metrics(
        self, sums: dict[str, float], values: np.ndarray, weights: np.ndarray
    ) -> dict[str, float]:
        loss = sums["loss"] / sums["tokens"]
        # A diverged trial's is beyond a float.
        perplexity = math.inf if loss > _LARGEST_LOSS else math.exp(loss)
        return {"loss": loss, self._perplexity: perplexity}


def shifted(tokens: jax.Array) -> jax.Array:
    """Returns tokens [B, L] one position to the right, behind the end of a document."""
    return jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=tokenizer.EOS)


class BertWorkload(TextWorkload):
    """A bidirectional Transformer. Metrics over masked positions: accuracy (fraction), loss (nats).

    Batches as `masked` makes them. Training masks are a function of (seed, step) and the
    place in the batch, evaluation masks of the record's number: the same at every evaluation, for
    every seed and variant. Records are full, so no attention mask is needed.
    """

    is_causal = False
    _counts_correct = True

    def _finish(self, batch: spec.Batch, key: jax.Array | None, step: Any) -> spec.Batch:
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
        self, sums: dict[str, float], values: np.ndarray, weights: np.ndarray
    ) -> dict[str, float]:
        return {
            "accuracy": sums["correct"] / sums["tokens"],
            "loss": sums["loss"] / sums["tokens"],
        }


def num_positions(length: int) -> int:
    """Returns K, the most positions to predict of one sequence: 15 % of it, rounded up."""
    return math.ceil(CHOSEN * length)


def masked(tokens: jax.Array, keys: jax.Array, vocabulary: int) -> dict[str, jax.Array]:
    """Returns what a masked language model trains on, from tokens [B, L] and one key each, [B].

    inputs int32 [B, L]; positions int32 [B, K], ascending; targets int32 [B, K], the tokens that
    stood there; weights float32 [B, K], 0 where a sequence has fewer than K positions to predict.
    Their number is 15 % of the ordinary tokens, rounded up or down so that it is 15 % on
    average.
    """
    return jax.vmap(_masked_sequence, in_axes=(0, 0, None))(
        tokens.astype(jnp.int32), keys, vocabulary
    )


def _masked_sequence(tokens: jax.Array, key: jax.Array, vocabulary: int) -> dict[str, jax.Array]:
    choose, rounding, change, replace = jax.random.split(key, 4)
    positions, weights = _choose(tokens, choose, rounding)
    targets = tokens[positions]
    draw = jax.random.uniform(change, positions.shape)
    random = jax.random.randint(replace, positions.shape, tokenizer.FIRST_ORDINARY, vocabulary)
    changed = jnp.where(draw < _MASKED + _RANDOM, random, targets)
    changed = jnp.where(draw < _MASKED, tokenizer.MASK, changed)
    changed = jnp.where(weights > 0, changed, targets)
    return {
        "inputs": tokens.at[positions].set(changed),
        "positions": positions,
        "targets": targets,
        "weights": weights,
    }


def _choose(tokens: jax.Array, key: jax.Array, rounding: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns K different positions in ascending order, and weight 1 for those to predict."""
    ordinary = tokens >= tokenizer.FIRST_ORDINARY
    score = jnp.where(ordinary, jax.random.uniform(key, tokens.shape), -1.0)
    _, positions = jax.lax.top_k(score, num_positions(len(tokens)))
    count = jnp.floor(CHOSEN * jnp.sum(ordinary) + jax.random.uniform(rounding))
    weights = (jnp.arange(len(positions)) < count) & ordinary[positions]
    order = jnp.argsort(positions)
    return positions[order], weights[order].astype(jnp.float32)


# By the metric of their rows.
_KINDS = {"loss": LMWorkload, "accuracy": BertWorkload}


def make(row: WorkloadSpec, variant: Any, options: Options) -> TextWorkload:
    """Returns a language model's workload on a large corpus; use `workloads.registry.make`."""
    fewest = pkgutil.resolve_name(row.data).fewest
    sizes = Sizes(
        # What all steps see: 1.08 epochs of C4's 156 B tokens, many of Wikipedia's. What a
        # directory holds, `check` says.
        num_train=row.step_hint * row.batch_size,
        num_eval_train=fewest["train"],
        num_validation=fewest["validation"],
        num_test=fewest["test"],
        eval_batch_size=row.batch_size // 4,
    )
    return _KINDS[row.metric](row, variant, options, row.model, sizes)


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
