"""Transformers on token records: what language model and masked language model share.

Axes: B batch, L length, N tokens to predict, V vocabulary.
"""

import dataclasses
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

Array = jax.Array


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

    def _embedding(self, params: spec.Parameters) -> Array:
        """Returns the embedding [V, W], of which logits are made."""
        return params["embedding"]

    def _initial_variables(self, key: Array) -> dict[str, Any]:
        """Returns parameters in options.param_dtype."""
        tokens = jnp.zeros((1, self.size.context), jnp.int32)
        return dict(self._model.init({"params": key}, tokens))

    def _called_model(self) -> nn.Module:
        # Pinned to the mesh here and not in __init__: a workload can be built anywhere.
        return self._placed_model().clone(devices=self.devices if self._is_pinned else None)

    def _model_settings(self, batch: spec.Batch) -> dict[str, Any]:
        """Logits are [B, L, V], or [B, K, V] at the batch's 'positions' [B, K]."""
        return {"at": batch.get("positions")}

    def _hidden(
        self, params: spec.Parameters, batch: spec.Batch, rng: Array | None, dropout_rate: Any
    ) -> Array:
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
        rng: Array,
        dropout_rate: Any,
        label_smoothing: Any,
    ) -> tuple[dict[str, Array], spec.ModelState]:
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
    ) -> tuple[Array, Array]:
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
        one = super().observable()
        one.options = dataclasses.replace(self.options, scan_layers=False, remat=False)
        one._model = one._model.clone(options=one.options)
        one._is_pinned = False
        return one

    def observable_parameters(self, params: spec.Parameters) -> spec.Parameters:
        return transformer.unstacked(params) if self.options.scan_layers else params

    def loss_fn(
        self,
        label_batch: Array,
        logits_batch: Array,
        mask_batch: Array | None = None,
        label_smoothing: Any = 0.0,
    ) -> dict[str, Array]:
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
    ) -> tuple[dict[str, Array], None]:
        most, labels = self.options.loss_chunk_tokens, batch["targets"]
        if not most:
            logits = self._eval_logits(params, model_state, batch)
            losses = self.loss_fn(labels, logits, batch["weights"])
            whole = {"loss": losses["summed"], "tokens": losses["n_valid_examples"]}
            if self._counts_correct:
                whole["correct"] = correct(labels, logits, batch["weights"])
            return whole, None
        weights = token_weights(labels.shape, batch["weights"])
        sums = chunked_loss.sums(
            self.devices.mesh,
            most,
            self._counts_correct,
            self._hidden(params, batch, None, 0.0),
            self._embedding(params),
            labels,
            weights,
        )
        return {**sums, "tokens": weights.sum()}, None

    def example_batch(self, batch_size: int) -> spec.Batch:
        """Returns a training batch of random ordinary tokens."""
        generator = np.random.default_rng(0)
        shape = (batch_size, self.size.context + self._more_tokens)
        tokens = generator.integers(self._lowest_token, self.size.vocabulary, shape, dtype=np.int32)
        rows = self.devices.rows(batch_size)
        batch = self.devices.shard({"tokens": tokens[rows]})
        return self._finished(batch, jax.random.key(0), 0)


def correct(labels: Array, logits: Array, mask: Array | None = None) -> Array:
    """Returns how many labels have the highest logit, weighted, float32."""
    # The argmax of NaN is its place.
    right = (jnp.argmax(logits, axis=-1) == labels) & ~jnp.isnan(logits).any(axis=-1)
    return jnp.sum(right * token_weights(labels.shape, mask))


def token_weights(shape: tuple[int, ...], mask: Array | None) -> Array:
    """Returns float32 weights [B, N] for a mask [B], [B, N] or None (all 1)."""
    if mask is None:
        return jnp.ones(shape, jnp.float32)
    mask = mask[:, None] if mask.ndim == 1 else mask
    return jnp.broadcast_to(mask, shape).astype(jnp.float32)


def _at(logits: Array, labels: Array) -> Array:
    """Returns logits[..., label]; as a sum, which needs no gather where V is divided."""
    entries = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return jnp.sum(jnp.where(entries == labels[..., None], logits, 0.0), axis=-1)
