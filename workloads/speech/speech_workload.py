"""Speech recognition as a workload: the part that full and embedded Conformer share."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from workloads.base import devices, spec
from workloads.base.base_workload import TableWorkload
from workloads.base.options import Options
from workloads.speech import conformer, ctc, spectrogram, speech_batches, word_errors
from workloads.speech.speech_batches import Speech

Array = jax.Array


class SpeechWorkload(TableWorkload):
    """A Conformer on audio, trained by CTC.

    Metrics: `wer` (errors per word over the split), `ctc_loss` and `loss`, which are the same sum
    of losses per valid target id, in nats: AlgoPerf's name, and the one all workloads have.
    """

    def __init__(
        self, name: str, data: Speech, config: conformer.Config, variant: Any, options: Options
    ) -> None:
        super().__init__(name, variant, options, data.sizes)
        self._data = data
        dtype = jnp.dtype(options.compute_dtype)
        self._model = conformer.Conformer(dataclasses.replace(config, dtype=dtype))
        self._batches = speech_batches.SpeechBatches(name, data, self.layout)
        self._finish = jax.jit(speech_batches.finished)
        self._eval_step = jax.jit(self._decoded_and_losses)
        self._init = jax.jit(self._initial_variables, out_shardings=self.layout.replicated())

    @property
    def loss_type(self) -> spec.LossType:
        return spec.LossType.CTC_LOSS

    def is_output_params(self, param_key: str) -> bool:
        return param_key == "Dense_0"

    def init_model_fn(self, rng: Array) -> tuple[spec.Parameters, spec.ModelState]:
        """Returns float32 parameters and {'batch_stats': …}, replicated over the devices.

        The key is split as AlgoPerf does, so that equal keys give AlgoPerf's initial values.
        """
        params_rng, _ = jax.random.split(rng)
        model_state = dict(self._init(params_rng))
        params = model_state.pop("params")
        self._param_shapes = jax.tree.map(lambda leaf: spec.ShapeTuple(leaf.shape), params)
        return params, model_state

    def _initial_variables(self, key: Array) -> Any:
        # No parameter's shape depends on the audio's length.
        audio = jnp.zeros((1, 4 * spectrogram.FRAME_SIZE))
        with self._injected():
            return self._model.init({"params": key}, audio, jnp.zeros_like(audio))

    # Logits and targets come with their paddings, as in AlgoPerf.
    def model_fn(  # type: ignore[override]
        self,
        params: spec.Parameters,
        augmented_and_preprocessed_input_batch: spec.Batch,
        model_state: spec.ModelState,
        mode: spec.ForwardPassMode,
        rng: Array,
        update_batch_norm: bool,
        use_running_average_bn: bool | None = None,
        dropout_rate: Any = 0.0,
    ) -> tuple[tuple[Array, Array], spec.ModelState]:
        """Returns (logits float32 [B, T, V], paddings [B, T]) and the new model state.

        TRAIN turns on SpecAugment and dropout. Batch norm uses the batch's own statistics in
        training and where the running ones are to be updated, unless told otherwise.
        """
        train = mode == spec.ForwardPassMode.TRAIN
        if use_running_average_bn is None:
            use_running_average_bn = not (train or update_batch_norm)
        with self._injected():
            outputs, new_state = self._model.apply(
                {"params": params, **model_state},
                *augmented_and_preprocessed_input_batch["inputs"],
                rngs={"dropout": rng},
                mutable=["batch_stats"],
                train=train,
                dropout_rate=dropout_rate,
                update_batch_norm=update_batch_norm,
                use_running_average=use_running_average_bn,
            )
        return outputs, new_state

    def loss_fn(  # type: ignore[override]
        self,
        label_batch: tuple[Array, Array],
        logits_batch: tuple[Array, Array],
        mask_batch: Array | None = None,
        label_smoothing: Any = 0.0,
    ) -> dict[str, Array]:
        """CTC loss in nats. `n_valid_examples` counts valid target ids, at least 1.

        label_batch: ids and paddings [B, U]; logits_batch: [B, T, V] and paddings [B, T];
        mask_batch [B]. CTC has no label smoothing: AlgoPerf ignores `label_smoothing`, and so
        does this.
        """
        del label_smoothing
        targets, target_paddings = label_batch
        per_example = ctc.losses(*logits_batch, targets, target_paddings)
        valid = 1.0 - target_paddings
        if mask_batch is not None:
            per_example = jnp.where(mask_batch > 0, per_example * mask_batch, 0.0)
            valid = valid * mask_batch[:, None]
        return {
            "summed": per_example.sum(),
            "n_valid_examples": jnp.maximum(valid.sum(), 1.0),
            "per_example": per_example,
        }

    def example_batch(self, batch_size: int) -> spec.Batch:
        batch: spec.Batch = self._finish(self._batches.example(batch_size))
        return batch

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
        """Batches as `speech_batches.finished` makes them, divided over the devices."""
        del cache, repeat_final_dataset, num_batches
        if split == "train":
            seed, _ = devices.seed_and_key(data_rng)
            workers = self.loader_workers
            stored = self._batches.train(seed, data_dir, global_batch_size, start_step, workers)
        else:
            stored = self._batches.evaluation(split, data_dir, global_batch_size)
        return map(self._finish, stored)

    def _decoded_and_losses(
        self, params: spec.Parameters, model_state: spec.ModelState, batch: spec.Batch
    ) -> dict[str, Array]:
        ready = speech_batches.finished(batch)
        (logits, paddings), _ = self.model_fn(
            params, ready, model_state, spec.ForwardPassMode.EVAL, jax.random.key(0), False
        )
        losses = self.loss_fn(ready["targets"], (logits, paddings), ready["weights"])
        symbols, lengths = ctc.greedy_decode(logits, paddings)
        return {
            "loss": losses["summed"],
            "targets": jnp.sum(batch["targets_length"] * batch["weights"]),
            "symbols": symbols,
            "lengths": lengths,
        }

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
        """Decodes on the devices and counts words on the host; losses are added in float64."""
        del num_examples, rng, global_step
        summed, targets = 0.0, 0.0
        references: list[str] = []
        hypotheses: list[str] = []
        for batch in self._batches.evaluation(split, data_dir, global_batch_size):
            result = self.layout.on_host(self._eval_step(params, model_state, batch))
            summed, targets = summed + float(result["loss"]), targets + float(result["targets"])
            names = ("targets", "targets_length", "weights")
            spoken = self.layout.on_host({name: batch[name] for name in names})
            there = spoken["weights"] > 0
            decoded = (result["symbols"], result["lengths"])
            hypotheses += self._batches.texts(data_dir, *decoded, there)
            said = (spoken["targets"], spoken["targets_length"])
            references += self._batches.texts(data_dir, *said, there)
        loss = summed / max(targets, 1.0)
        wer = word_errors.rate(references, hypotheses)
        return {"wer": wer, "ctc_loss": loss, "loss": loss}
