"""The speech workloads. Standard library only.

Targets and step hint: algoperf/workloads/librispeech_conformer/{workload.py,
librispeech_jax/workload.py}. AlgoPerf's Conformer scales its queries per dimension, so
`+per_dim_temp` would do it twice: the paper's WER table has six rows.
"""

import math
from typing import Any

from workloads.base.workload_spec import BOTH_WAYS, ModelSupport, WorkloadSpec

SCALED = ("per_dim_temp", "scales its queries per dimension itself")
_CONFORMER = ModelSupport(
    lacks=(BOTH_WAYS, SCALED),
    whole_batch="its BatchNorm takes its statistics over a batch, and would over a part of it",
    ignores=("label_smoothing",),
)


def _conformer_flops(
    samples: int, vocabulary: int, layers: int, width: int, widening: int, channels: int
) -> dict[str, Any]:
    """Returns a training step's model FLOP per utterance, forward and backward, padding included.

    6 per weight and encoded frame, and 12·layers·width·frames per frame for QKᵀ and A·V, as for
    Transformers on text (arXiv:2204.02311, appendix B). The two strided convolutions, of `channels`
    outputs, are used at 2 x 40 and at 20 places per frame (80 bands of the spectrogram). The
    spectrogram itself is left out: it has no weights and no backward pass, and its Fourier
    transform is a matrix product on TPUs alone.

    samples: of audio, what batches are padded to. widening: hidden units of a feed-forward module
    per unit of `width`.
    """
    # Spectrogram frames of 401 samples, 160 apart; the encoder has a quarter as many.
    frames = math.ceil(((samples - 401) // 160 + 1) / 4)
    front_end = 9 * channels * (2 * 40 + 20 * channels) + 20 * channels * width
    feed_forward, projections, gated_convolution = 4 * widening, 4, 3
    layer = (feed_forward + projections + gated_convolution) * width**2 + 5 * width
    attention = 12 * layers * width * frames**2
    weights = front_end + layers * layer + width * vocabulary
    return {
        "flops": 6 * weights * frames + attention,
        "attention_flops": attention,
        "positions": frames,
    }


def _librispeech(
    name: str,
    description: str,
    targets: tuple[float, float],
    parameters: int = 32_321_792,
    **model: Any,
) -> WorkloadSpec:
    return WorkloadSpec(
        name=name,
        factory="workloads.speech.speech_workload:make_librispeech",
        model=model,
        data="workloads.speech.corpora.librispeech",
        data_name="librispeech_conformer",
        description=description,
        metric="wer",
        mode="min",
        batch_size=256,
        step_hint=76_000,
        validation_target=targets[0],
        test_target=targets[1],
        parameters=parameters,
        head_size=64,
        train_examples=263_840,
        **_conformer_flops(
            samples=320_000, vocabulary=1024, layers=4, width=512, widening=4, channels=512
        ),
        support=_CONFORMER,
        # 58,015 s allowed for 76,000 steps (max_allowed_runtime_sec of the workload).
        step_seconds=0.7634,
        step_source="hours of 8 V100s: AlgoPerf's time budget of 0.763 s a step, an upper bound",
    )


def _small(
    name: str, samples: int, vocabulary: int, layers: int, width: int, **particulars: Any
) -> WorkloadSpec:
    return WorkloadSpec(
        name=name,
        factory="workloads.speech.speech_workload:make",
        model={"encoder_dim": width, "num_layers": layers},
        metric="wer",
        mode="min",
        target_source="ours",
        batch_size=16,
        stands_in_for="librispeech_conformer",
        support=_CONFORMER,
        step_source="hours of one CPU core, measured on a 2-core cloud machine",
        **_conformer_flops(samples, vocabulary, layers, width, widening=2, channels=8),
        **particulars,
    )


SPECS: tuple[WorkloadSpec, ...] = (
    _librispeech("librispeech_conformer", "Conformer on LibriSpeech", (0.085884, 0.052981)),
    _librispeech(
        "librispeech_conformer_gelu", "Conformer, gelu", (0.094114, 0.056629), activation="gelu"
    ),
    _librispeech(
        "librispeech_conformer_layernorm",
        "Conformer, no layer norm after blocks",
        (0.09731, 0.05996),
        32_317_696,
        use_post_layer_norm=False,
    ),
    _librispeech(
        "librispeech_conformer_attention_temperature",
        "Conformer, attention output x 1.6",
        (0.109977, 0.068065),
        attention_temperature=1.6,
    ),
    _small(
        "spoken_digits_conformer",
        data="workloads.speech.corpora.spoken:DIGITS",
        description="small Conformer on synthesised spoken digits",
        validation_target=0.20,
        test_target=0.20,
        embedded=True,
        samples=22_400,
        vocabulary=29,
        layers=2,
        width=64,
        step_hint=400,
        parameters=139_733,
        head_size=16,
        train_examples=1600,
        step_seconds=0.036,
    ),
    _small(
        "read_speech_conformer",
        data="workloads.speech.corpora.read_speech:RUSSIAN",
        description="small Conformer on read Russian, by phones",
        validation_target=0.22,
        test_target=0.22,
        samples=48_000,
        vocabulary=53,
        layers=2,
        width=64,
        step_hint=1600,
        parameters=141_293,
        head_size=16,
        train_examples=1856,
        step_seconds=0.061,
    ),
)
