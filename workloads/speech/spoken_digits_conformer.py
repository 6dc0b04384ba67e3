"""`spoken_digits_conformer` and `spoken_sentences_conformer`: a small Conformer on espeak-ng.

Stand-ins that a bare machine can train: the model class, front end, loader, loss and metric of
`librispeech_conformer`. The strided convolutions are the largest part of a step on a CPU, so they
have 8 channels here. Batch norm's averages move by a tenth per step: with AlgoPerf's 0.999 they
would keep two thirds of their initial values after 400 steps. Measured on one CPU core, batch 16,
one seed: digits (2 layers of 64, 139,733 parameters, learning rate 5e-3) reach a word error rate
of 4.3 % on test in 400 steps, 36 ms each; sentences (3 layers of 96, 3e-3) 14 % in 800, 160 ms
each. Digits in batches of 32 take 90 ms a step and are at 4.8 % after 300.
"""

import importlib
from typing import Any

from workloads.base.base_workload import Sizes
from workloads.base.options import Options
from workloads.speech import conformer, spec_augment, speech_batches, speech_workload
from workloads.speech.corpora import speech_corpus

_DATA = {
    "spoken_digits_conformer": "workloads.speech.corpora.spoken_digits",
    "spoken_sentences_conformer": "workloads.speech.corpora.spoken_sentences",
}
_SIZES: dict[str, dict[str, Any]] = {
    "spoken_digits_conformer": {"encoder_dim": 64, "num_heads": 4, "num_layers": 2},
    "spoken_sentences_conformer": {"encoder_dim": 96, "num_heads": 4, "num_layers": 3},
}
# Digits, 400 steps, one seed, test WER: 26 % with AlgoPerf's masks, 4.3 % with these, 3.3 % bare.
_MASKS = spec_augment.Masks(time_masks=2, time_ratio=0.05, frequency_masks=1, frequency_bins=10)


def make(name: str, variant: Any, options: Options) -> speech_workload.SpeechWorkload:
    """Returns the workload; use `workloads.registry.make`."""
    module = importlib.import_module(_DATA[name])
    sizes = module.SIZES
    data = speech_batches.Speech(
        sizes=Sizes(
            num_train=sizes["train"],
            num_eval_train=200,
            num_validation=sizes["validation"],
            num_test=sizes["test"],
            eval_batch_size=20,
        ),
        splits=speech_corpus.SPLITS,
        max_audio=module.MAX_AUDIO,
        max_targets=module.MAX_TARGETS,
        vocab_size=module.VOCAB_SIZE,
        cache=True,
    )
    config = conformer.Config(
        vocab_size=module.VOCAB_SIZE,
        feed_forward_factor=2,
        batch_norm_momentum=0.9,
        subsampling_channels=8,
        masks=_MASKS,
        **_SIZES[name],
    )
    return speech_workload.SpeechWorkload(name, data, config, variant, options)
