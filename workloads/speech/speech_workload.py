"""Speech recognition as a workload: AlgoPerf's Conformer on LibriSpeech, and small ones.

`librispeech_conformer` and its gelu, layernorm and attention_temperature forms: sizes and splits by
algoperf/workloads/librispeech_conformer/{workload.py,input_pipeline.py,librispeech_jax/workload.py}.
32,321,792 parameters; batch 256; 76,000 steps; AlgoPerf's targets are a word error rate of 0.085884
on dev-clean + dev-other and 0.052981 on test-clean. float32 is AlgoPerf's precision;
compute_dtype='bfloat16' keeps front end, statistics and loss in float32.

`spoken_digits_conformer`: the same model class, front end, loader, loss and metric, small, on
speech by espeak-ng, which a bare machine can train. The strided convolutions are the largest part
of a step on a CPU, so they have 8 channels here. Batch norm's averages move by a tenth per step:
with AlgoPerf's 0.999 they would keep two thirds of their initial values after 400 steps. Measured
on one CPU core, batch 16, one seed: 2 layers of 64 (139,733 parameters, learning rate 5e-3) reach a
word error rate of 4.3 % on test in 400 steps, 36 ms each. In batches of 32 they take 90 ms a step
and are at 4.8 % after 300.
"""

import dataclasses
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads.base import sources, spec
from workloads.base.options import Options
from workloads.base.workload import BaseWorkload, Sizes, unchanged
from workloads.base.workload_spec import WorkloadSpec
from workloads.speech import conformer, ctc, spectrogram
from workloads.speech.conformer_layers import SpecAugMasks
from workloads.speech.corpora import (
    librispeech,
    speech_corpus,
    speech_records,
    speech_tokenizer,
)


@dataclasses.dataclass(frozen=True)
class Speech:
    """What a data set fixes.

    splits: role (train, validation, test) to the splits it is made of. max_audio in samples,
    max_targets in ids: what batches are padded to. cache keeps the utterances in memory. repair:
    returns the commands that make the data in a directory.
    """

    sizes: Sizes
    splits: dict[str, tuple[str, ...]]
    max_audio: int
    max_targets: int
    vocab_size: int
    repair: Callable[[str], str]
    cache: bool = False


class SpeechWorkload(BaseWorkload):
    """A Conformer on audio, trained by CTC.

    Metrics: `wer` (errors per word over the split), `ctc_loss` and `loss`, which are the same sum
    of losses per valid target id, in nats: AlgoPerf's name, and the one all workloads have.
    Batches are kept on the devices as they are stored, as 16-bit audio.
    """

    loss_type = spec.LossType.CTC_LOSS
    item_metric = "wer"
    train_transform = eval_transform = staticmethod(unchanged)

    def __init__(
        self,
        row: WorkloadSpec,
        data: Speech,
        settings: Mapping[str, Any],
        variant: Any,
        options: Options,
    ) -> None:
        """settings: keyword arguments of `conformer.Config`."""
        dtype = jnp.dtype(options.compute_dtype)
        config = conformer.Config(vocab_size=data.vocab_size, dtype=dtype, **settings)
        model = conformer.Conformer(config, variant)
        super().__init__(row, model, variant, options, data.sizes, cache=data.cache)
        self._data = data
        self.eval_example_bytes = 8 * data.max_audio  # samples and paddings, float32
        self.id_limits = {"targets": data.vocab_size}
        self._tokenizers: dict[str, Any] = {}

    def is_output_params(self, param_key: str) -> bool:
        return param_key == "Dense_0"

    def _initial_variables(self, key: jax.Array) -> dict[str, Any]:
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
        rng: jax.Array,
        update_batch_norm: bool,
        use_running_average_bn: bool | None = None,
        dropout_rate: Any = 0.0,
    ) -> tuple[tuple[jax.Array, jax.Array], spec.ModelState]:
        """Returns (logits float32 [B, T, V], paddings [B, T]) and the new model state.

        TRAIN turns on SpecAugment and dropout. Batch norm uses the batch's own statistics in
        training and where the running ones are to be updated; `use_running_average_bn` overrides
        that.
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
        label_batch: tuple[jax.Array, jax.Array],
        logits_batch: tuple[jax.Array, jax.Array],
        mask_batch: jax.Array | None = None,
        label_smoothing: Any = 0.0,
    ) -> dict[str, jax.Array]:
        """CTC loss in nats. `n_valid_examples` counts valid target ids, at least 1.

        label_batch: ids and paddings [B, U]; logits_batch: [B, T, V] and paddings [B, T];
        mask_batch [B]. CTC has no label smoothing: AlgoPerf ignores `label_smoothing`, and so
        does this.
        """
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
        batch = self.devices.shard({name: leaf[rows] for name, leaf in whole.items()})
        return self._finished(batch, jax.random.key(0), 0)

    def _open(self, split: str, data_dir: str) -> sources.Source:
        data = self._data
        return speech_records.SpeechSplit(
            data_dir,
            data.splits[split],
            data.max_audio,
            data.max_targets,
            data.repair(data_dir),
            data.vocab_size,
        )

    def _finish(self, batch: spec.Batch, key: jax.Array | None, step: Any) -> Any:
        """Returns a batch as AlgoPerf's models take it.

        `inputs`: samples float32 [B, N] (16-bit values as numbers) and paddings float32 [B, N];
        `targets`: ids int32 [B, U] and paddings float32 [B, U]; `weights` float32 [B] in
        evaluations.
        """
        audio, ids = batch["audio"].astype(jnp.float32), batch["targets"]
        finished = {
            "inputs": (audio, _paddings(batch["audio_length"], audio.shape[1])),
            "targets": (ids, _paddings(batch["targets_length"], ids.shape[1])),
        }
        return {**finished, "weights": batch["weights"]} if "weights" in batch else finished

    def _evaluated(
        self, params: spec.Parameters, model_state: spec.ModelState, batch: spec.Batch
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Decodes on the devices; the host counts words."""
        weights = batch["weights"]
        targets, target_paddings = batch["targets"]
        logits, paddings = self._eval_logits(params, model_state, batch)
        losses = self.loss_fn((targets, target_paddings), (logits, paddings), weights)
        symbols, lengths = ctc.greedy_decode(logits, paddings)
        targets_length = jnp.sum(1 - target_paddings, axis=1).astype(jnp.int32)
        sums = {"loss": losses["summed"], "targets": jnp.sum(targets_length * weights)}
        predictions = {
            "symbols": symbols,
            "lengths": lengths,
            "targets": targets,
            "targets_length": targets_length,
            "weights": weights,
        }
        return sums, predictions

    def _items(self, predictions: list[Any], data_dir: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the word errors and words of each utterance."""
        references: list[str] = []
        hypotheses: list[str] = []
        for batch in predictions:
            valid = batch["weights"] > 0
            hypotheses += self._texts(data_dir, batch["symbols"], batch["lengths"], valid)
            references += self._texts(data_dir, batch["targets"], batch["targets_length"], valid)
        return ctc.word_errors(references, hypotheses)

    def _metrics(
        self, sums: dict[str, float], values: np.ndarray, weights: np.ndarray
    ) -> dict[str, float]:
        loss = sums["loss"] / max(sums["targets"], 1.0)
        return {"wer": ctc.word_error_rate(values, weights), "ctc_loss": loss, "loss": loss}

    def _texts(self, data_dir: str, ids: Any, lengths: Any, valid: np.ndarray) -> list[str]:
        """Returns the text of each row of ids [B, N] where `valid` [B] is True."""
        if data_dir not in self._tokenizers:
            self._tokenizers[data_dir] = speech_tokenizer.load(
                data_dir, self._data.vocab_size, self._data.repair(data_dir)
            )
        ids, lengths = np.asarray(ids), np.asarray(lengths)
        rows = [ids[row, : lengths[row]] for row in np.flatnonzero(valid)]
        return [speech_tokenizer.decode(self._tokenizers[data_dir], row) for row in rows]


def _paddings(lengths: jax.Array, size: int) -> jax.Array:
    return (jnp.arange(size) >= lengths[:, None]).astype(jnp.float32)


_EVAL_BATCH = 256
_SMALL: dict[str, Any] = {
    "num_heads": 4,
    "feed_forward_factor": 2,
    "batch_norm_momentum": 0.9,
    "subsampling_channels": 8,
    # Digits, 400 steps, one seed, test WER: 26 % with AlgoPerf's masks, 4.3 % with these, 3.3 %
    # without.
    "masks": SpecAugMasks(time_masks=2, time_ratio=0.05, frequency_masks=1, frequency_bins=10),
}


def make_librispeech(row: WorkloadSpec, variant: Any, options: Options) -> SpeechWorkload:
    """Returns a workload on LibriSpeech; use `workloads.registry.make`."""
    data = Speech(
        sizes=Sizes(
            num_train=librispeech.SIZES["train"],
            # 5348 validation examples rounded up to whole evaluation batches, as AlgoPerf does.
            num_eval_train=21 * _EVAL_BATCH,
            num_validation=librispeech.SIZES["validation"],
            num_test=librispeech.SIZES["test"],
            eval_batch_size=_EVAL_BATCH,
        ),
        splits=librispeech.SPLITS,
        max_audio=librispeech.MAX_AUDIO,
        max_targets=librispeech.MAX_TARGETS,
        vocab_size=librispeech.VOCAB_SIZE,
        repair=row.repair,
    )
    return SpeechWorkload(row, data, row.model, variant, options)


def make(row: WorkloadSpec, variant: Any, options: Options) -> SpeechWorkload:
    """Returns a workload on the small `Corpus` that row.data names; use `workloads.registry.make`.

    row.model: keyword arguments of `conformer.Config` beside those of every small Conformer.
    """
    corpus: speech_corpus.SpeechCorpus = pkgutil.resolve_name(row.data)
    data = Speech(
        sizes=Sizes(
            num_train=corpus.sizes["train"],
            num_eval_train=200,
            num_validation=corpus.sizes["validation"],
            num_test=corpus.sizes["test"],
            eval_batch_size=20,
        ),
        splits=speech_corpus.SPLITS,
        max_audio=corpus.max_audio,
        max_targets=corpus.max_targets,
        vocab_size=corpus.vocab_size,
        repair=corpus.repair,
        cache=True,
    )
    return SpeechWorkload(row, data, {**_SMALL, **row.model}, variant, options)
