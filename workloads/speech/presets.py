"""The speech workloads: the Conformer on LibriSpeech as AlgoPerf defines it, and stand-ins.

`librispeech_conformer` and its gelu, layernorm and attention_temperature forms: sizes and splits by
algoperf/workloads/librispeech_conformer/{workload.py,input_pipeline.py,librispeech_jax/workload.py}.
32,321,792 parameters; batch 256; 76,000 steps; AlgoPerf's targets are a word error rate of 0.085884
on dev-clean + dev-other and 0.052981 on test-clean. float32 is AlgoPerf's precision;
compute_dtype='bfloat16' keeps front end, statistics and loss in float32.

`spoken_digits_conformer` and `spoken_sentences_conformer`: the same model class, front end, loader,
loss and metric, small, on speech by espeak-ng, which a bare machine can train. The strided
convolutions are the largest part of a step on a CPU, so they have 8 channels here. Batch norm's
averages move by a tenth per step: with AlgoPerf's 0.999 they would keep two thirds of their initial
values after 400 steps. Measured on one CPU core, batch 16, one seed: digits (2 layers of 64,
139,733 parameters, learning rate 5e-3) reach a word error rate of 4.3 % on test in 400 steps, 36 ms
each; sentences (3 layers of 96, 3e-3) 14 % in 800, 160 ms each. Digits in batches of 32 take 90 ms
a step and are at 4.8 % after 300.
"""

from typing import Any

from workloads.base.options import Options
from workloads.base.workload import Sizes
from workloads.base.workload_spec import WorkloadSpec
from workloads.speech import conformer
from workloads.speech.conformer_layers import SpecAugMasks
from workloads.speech.corpora import librispeech, speech_corpus, spoken
from workloads.speech.speech_workload import Speech, SpeechWorkload

_EVAL_BATCH = 256
LIBRISPEECH = Speech(
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
)
# Digits, 400 steps, one seed, test WER: 26 % with AlgoPerf's masks, 4.3 % with these, 3.3 % bare.
_MASKS = SpecAugMasks(time_masks=2, time_ratio=0.05, frequency_masks=1, frequency_bins=10)
_SMALL: dict[str, Any] = {
    "num_heads": 4,
    "feed_forward_factor": 2,
    "batch_norm_momentum": 0.9,
    "subsampling_channels": 8,
    "masks": _MASKS,
}


def _spoken(corpus: speech_corpus.Corpus) -> Speech:
    """Returns what a synthesised corpus fixes."""
    return Speech(
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
        cache=True,
    )


DIGITS, SENTENCES = _spoken(spoken.DIGITS), _spoken(spoken.SENTENCES)
MODELS: dict[str, tuple[Speech, dict[str, Any]]] = {
    "librispeech_conformer": (LIBRISPEECH, {}),
    "librispeech_conformer_gelu": (LIBRISPEECH, {"activation": "gelu"}),
    "librispeech_conformer_layernorm": (LIBRISPEECH, {"use_post_layer_norm": False}),
    "librispeech_conformer_attention_temperature": (LIBRISPEECH, {"attention_temperature": 1.6}),
    "spoken_digits_conformer": (DIGITS, {**_SMALL, "encoder_dim": 64, "num_layers": 2}),
    "spoken_sentences_conformer": (SENTENCES, {**_SMALL, "encoder_dim": 96, "num_layers": 3}),
}


def make(row: WorkloadSpec, variant: Any, options: Options) -> SpeechWorkload:
    """Returns the workload; use `workloads.registry.make`."""
    data, choices = MODELS[row.name]
    config = conformer.Config(vocab_size=data.vocab_size, **choices)
    return SpeechWorkload(row, data, config, variant, options)
