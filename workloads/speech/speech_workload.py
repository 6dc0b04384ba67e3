"""Speech recognition as a workload: what full and embedded Conformer share."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads.base import sources, spec
from workloads.base.options import Options
from workloads.base.workload import BaseWorkload, Sizes, unchanged
from workloads.base.workload_spec import WorkloadSpec
from workloads.speech import conformer, ctc, spectrogram
from workloads.speech.corpora import speech_records, speech_tokenizer

Array = jax.Array


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


class SpeechWorkload(BaseWorkload):
    """A Conformer on audio, trained by CTC.

    Metrics: `wer` (errors per word over the split), `ctc_loss` and `loss`, which are the same sum
    of losses per valid target id, in nats: AlgoPerf's name, and the one all workloads have.
    Batches lie on the devices as stored (16-bit audio), and are made what `finished` says.
    """

    loss_type = spec.LossType.CTC_LOSS
    train_transform = eval_transform = staticmethod(unchanged)

    def __init__(
        self,
        row: WorkloadSpec,
        data: Speech,
        config: conformer.Config,
        variant: Any,
        options: Options,
    ) -> None:
        config = dataclasses.replace(config, dtype=jnp.dtype(options.compute_dtype))
        model = conformer.Conformer(config, variant)
        super().__init__(row, model, variant, options, data.sizes, cache=data.cache)
        self._data = data
        self.eval_example_bytes = 2 * data.max_audio
        self._finish = jax.jit(finished)
        self._tokenizers: dict[str, Any] = {}

    def is_output_params(self, param_key: str) -> bool:
        return param_key == "Dense_0"

    def _initial_variables(self, key: Array) -> dict[str, Any]:
        """Returns float32 parameters and `batch_stats`."""
        # No parameter's shape depends on the audio's length.
        audio = jnp.zeros((1, 4 * spectrogram.FRAME_SIZE))
        return dict(self._model.init({"params": key}, audio, jnp.zeros_like(audio)))

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
        outputs, new_state = self._called_model().apply(
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
        rows = self.devices.rows(batch_size)
        return self._ready(self.devices.shard({name: leaf[rows] for name, leaf in whole.items()}))

    def _open(self, split: str, data_dir: str) -> sources.Source:
        data = self._data
        return speech_records.SpeechSplit(
            data_dir,
            data.splits[split],
            data.max_audio,
            data.max_targets,
            self._row.repair(data_dir),
        )

    def _train_batch(self, batch: dict[str, np.ndarray], key: Array, step: int) -> spec.Batch:
        del key, step
        on_devices: spec.Batch = self.devices.shard(batch)
        return on_devices

    def _eval_batch(self, batch: dict[str, np.ndarray], first: int) -> spec.Batch:
        del first
        on_devices: spec.Batch = self.devices.shard(batch)
        return on_devices

    def _ready(self, batch: spec.Batch) -> spec.Batch:
        ready: spec.Batch = self._finish(batch)
        return ready

    def _evaluated(
        self, params: spec.Parameters, model_state: spec.ModelState, batch: spec.Batch
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Decodes on the devices; the host counts words."""
        ready = finished(batch)
        logits, paddings = self._eval_logits(params, model_state, ready)
        losses = self.loss_fn(ready["targets"], (logits, paddings), ready["weights"])
        symbols, lengths = ctc.greedy_decode(logits, paddings)
        sums = {
            "loss": losses["summed"],
            "targets": jnp.sum(batch["targets_length"] * batch["weights"]),
        }
        spoken = {name: batch[name] for name in ("targets", "targets_length", "weights")}
        return sums, {"symbols": symbols, "lengths": lengths, **spoken}

    def _metrics(
        self, sums: dict[str, float], num_examples: int, predictions: list[Any], data_dir: str
    ) -> dict[str, float]:
        del num_examples
        references: list[str] = []
        hypotheses: list[str] = []
        for one in predictions:
            there = one["weights"] > 0
            hypotheses += self._texts(data_dir, one["symbols"], one["lengths"], there)
            references += self._texts(data_dir, one["targets"], one["targets_length"], there)
        loss = sums["loss"] / max(sums["targets"], 1.0)
        return {"wer": ctc.word_error_rate(references, hypotheses), "ctc_loss": loss, "loss": loss}

    def _texts(self, data_dir: str, ids: Any, lengths: Any, there: np.ndarray) -> list[str]:
        """Returns the text of each row of ids [B, N] where `there` [B] is True."""
        if data_dir not in self._tokenizers:
            tokenizer = speech_tokenizer.load(
                data_dir, self._data.vocab_size, self._row.repair(data_dir)
            )
            self._tokenizers[data_dir] = tokenizer
        ids, lengths = np.asarray(ids), np.asarray(lengths)
        rows = [ids[row, : lengths[row]] for row in np.flatnonzero(there)]
        return [speech_tokenizer.decode(self._tokenizers[data_dir], row) for row in rows]


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
