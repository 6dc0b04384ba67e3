"""Transformers on token records: the part that language model and masked language model share."""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from workloads import table
from workloads.base import devices, example_queue, partition, spec
from workloads.base.base_workload import Sizes, TableWorkload
from workloads.base.options import Options
from workloads.text import masking, text_sources, token_loss, transformer
from workloads.text.transformer_sizes import TransformerSize

Array = jax.Array
_CACHE_BYTES = 2**28


class TextWorkload(TableWorkload):
    """A Transformer with its loss and data. Losses are nats per token (per predicted token).

    Sizes of evaluations are numbers of sequences. `parameter_rules` divide the parameters over
    options.mesh. Raises ValueError where they cannot be divided.
    """

    parameter_rules = transformer.PARAMETER_RULES
    is_causal: bool
    _is_pinned = True

    def __init__(
        self, name: str, variant: Any, options: Options, size: TransformerSize, sizes: Sizes
    ) -> None:
        super().__init__(name, variant, options, sizes)
        size.check_mesh(options.mesh)
        self.size = size
        self._model = transformer.Transformer(size, variant, self.is_causal, options)
        self._sources: dict[tuple[str, str], example_queue.Source] = {}
        self._eval_batches: dict[tuple[str, str, int], list[spec.Batch]] = {}
        self._eval_step = jax.jit(self._summed_metrics)
        self._init: Any = None

    @property
    def loss_type(self) -> spec.LossType:
        return spec.LossType.SOFTMAX_CROSS_ENTROPY

    def is_output_params(self, param_key: str) -> bool:
        """The embedding is the output layer too, as in AlgoPerf's WMT workload."""
        return param_key == "embedding"

    def init_model_fn(self, rng: Array) -> tuple[spec.Parameters, None]:
        """Returns parameters in options.param_dtype, divided over the mesh, and None."""
        params_rng, _ = jax.random.split(rng)
        if self._init is None:
            shapes = jax.eval_shape(self._initial_parameters, params_rng)
            places = partition.shardings(shapes, self.parameter_rules, self.layout.mesh)
            self._init = jax.jit(self._initial_parameters, out_shardings=places)
        params = self._init(params_rng)
        self._param_shapes = jax.tree.map(lambda leaf: spec.ShapeTuple(leaf.shape), params)
        return params, None

    def _initial_parameters(self, key: Array) -> spec.Parameters:
        tokens = jnp.zeros((1, self.size.context), jnp.int32)
        return self._model.init({"params": key}, tokens)["params"]

    def model_fn(
        self,
        params: spec.Parameters,
        augmented_and_preprocessed_input_batch: spec.Batch,
        model_state: spec.ModelState,
        mode: spec.ForwardPassMode,
        rng: Array,
        update_batch_norm: bool,
        use_running_average_bn: bool | None = None,
        dropout_rate: Any = 0.0,
    ) -> tuple[Array, spec.ModelState]:
        """Logits float32 [B, L, V], or [B, K, V] at the batch's 'positions' [B, K]."""
        del model_state, update_batch_norm, use_running_average_bn
        batch = augmented_and_preprocessed_input_batch
        # Pinned to the mesh here and not in __init__: a workload can be built anywhere.
        model = self._model.clone(layout=self.layout if self._is_pinned else None)
        logits = model.apply(
            {"params": params},
            batch["inputs"],
            at=batch.get("positions"),
            train=mode == spec.ForwardPassMode.TRAIN,
            dropout_rate=dropout_rate,
            rngs={"dropout": rng},
        )
        return logits, None

    def observable(self) -> Self:
        """Its layers are neither in a loop nor computed twice, its activations pinned nowhere.

        So a batch need not divide over the devices.
        """
        one = super().observable()
        one.options = dataclasses.replace(self.options, scan_layers=False, remat=False)
        one._model = self._model.clone(variant=one.variant, options=one.options)
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
        """Cross-entropy in nats; labels [B, N], mask [B] or [B, N]; counts are of tokens."""
        return token_loss.cross_entropy(label_batch, logits_batch, mask_batch, label_smoothing)

    def _source(self, split: str, data_dir: str) -> example_queue.Source:
        """Returns the split's records, opened once."""
        if (split, data_dir) not in self._sources:
            repair = table.repair(self.name, data_dir)
            records = text_sources.records(data_dir, split, self.size, repair)
            if split == "eval_train":
                records = text_sources.evenly_spaced(records, self.num_eval_train_examples)
            self._sources[split, data_dir] = records
        return self._sources[split, data_dir]

    def _build_input_queue(
        self,
        data_rng: Any,
        split: str,
        data_dir: str,
        global_batch_size: int,
        cache: bool | None = None,
        repeat_final_dataset: bool | None = None,
        num_batches: int | None = None,
        start_step: int = 0,
    ) -> Iterator[spec.Batch]:
        """Batches as the class of the workload says, divided over the devices."""
        del cache, repeat_final_dataset, num_batches
        if split == "train":
            return self._train_queue(data_rng, data_dir, global_batch_size, start_step)
        return self._eval_queue(split, data_dir, global_batch_size)

    def _train_queue(
        self, data_rng: Any, data_dir: str, batch_size: int, start_step: int
    ) -> Iterator[spec.Batch]:
        seed, key = devices.seed_and_key(data_rng)
        stream = example_queue.train_batches(
            self._source("train", data_dir),
            seed=seed,
            batch_size=batch_size,
            transform=text_sources.tokens,
            start_step=start_step,
            rows=self.layout.rows(batch_size),
            num_workers=self.loader_workers,
        )
        with stream:
            for step, batch in enumerate(stream, start_step):
                yield self._train_batch(batch["tokens"], key, step)

    def _eval_queue(self, split: str, data_dir: str, batch_size: int) -> Iterator[spec.Batch]:
        stream = example_queue.eval_batches(
            self._source(split, data_dir),
            batch_size=batch_size,
            transform=text_sources.tokens,
            num_examples=self._number_of(split),
            rows=self.layout.rows(batch_size),
        )
        with stream:
            for number, batch in enumerate(stream):
                yield self._eval_batch(batch["tokens"], batch["weights"], number * batch_size)

    def _number_of(self, split: str) -> int:
        return {
            "eval_train": self.num_eval_train_examples,
            "validation": self.num_validation_examples,
            "test": self.num_test_examples,
        }[split]

    @abc.abstractmethod
    def _train_batch(self, tokens: np.ndarray, key: Array, step: int) -> spec.Batch:
        """Returns the training batch of a step from its records, int32 [B, L]."""

    @abc.abstractmethod
    def _eval_batch(self, tokens: np.ndarray, weights: np.ndarray, first: int) -> spec.Batch:
        """Returns an evaluation's batch; `first` is the number of its first record."""

    @abc.abstractmethod
    def _metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Returns metrics from a split's totals of `_sums`."""

    def _summed_metrics(self, params: spec.Parameters, batch: spec.Batch) -> dict[str, Array]:
        logits, _ = self.model_fn(
            params, batch, None, spec.ForwardPassMode.EVAL, jax.random.key(0), False
        )
        return self._sums(batch["targets"], logits, batch["weights"])

    def _sums(self, targets: Array, logits: Array, weights: Array) -> dict[str, Array]:
        """Returns the sums that `_metrics` divides: of losses and of tokens."""
        losses = self.loss_fn(targets, logits, weights)
        return {"loss": losses["summed"], "tokens": losses["n_valid_examples"]}

    def _eval_model_on_split(
        self,
        split: str,
        num_examples: int,
        global_batch_size: int,
        params: spec.Parameters,
        model_state: spec.ModelState,
        rng: Array,
        data_dir: str,
        global_step: int = 0,
    ) -> dict[str, float]:
        """Sums per batch come from the device in float32 and are added in float64."""
        del model_state, rng, global_step, num_examples
        sums = [
            self._eval_step(params, batch)
            for batch in self._batches_of(split, data_dir, global_batch_size)
        ]
        totals = jax.tree.map(lambda *parts: float(sum(float(part) for part in parts)), *sums)
        return self._metrics(totals)

    def _batches_of(self, split: str, data_dir: str, batch_size: int) -> Iterator[spec.Batch]:
        """Yields the split's batches; small splits stay on the devices between evaluations."""
        key = (split, data_dir, batch_size)
        if key in self._eval_batches:
            yield from self._eval_batches[key]
            return
        small = self._number_of(split) * self.size.context * 12 <= _CACHE_BYTES
        kept: list[spec.Batch] = []
        for batch in self._eval_queue(split, data_dir, batch_size):
            if small:
                kept.append(batch)
            yield batch
        if small:
            self._eval_batches[key] = kept

    def _random_tokens(self, batch_size: int) -> np.ndarray:
        """Returns int32 [B, L] of ordinary tokens, this process's rows, for `example_batch`."""
        generator = np.random.default_rng(0)
        shape = (batch_size, self.size.context)
        tokens = generator.integers(
            masking.FIRST_ORDINARY, self.size.vocabulary, shape, dtype=np.int32
        )
        return tokens[self.layout.rows(batch_size)]
