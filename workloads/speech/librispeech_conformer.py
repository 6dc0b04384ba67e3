"""`librispeech_conformer`: the Conformer on LibriSpeech as AlgoPerf defines it, and its kin.

Sizes and splits: algoperf/workloads/librispeech_conformer/{workload.py,input_pipeline.py,
librispeech_jax/workload.py}. 32,321,792 parameters; batch 256; 76,000 steps; AlgoPerf's targets
are a word error rate of 0.085884 on dev-clean + dev-other and 0.052981 on test-clean. float32 is
AlgoPerf's precision; compute_dtype='bfloat16' keeps front end, statistics and loss in float32.
"""

from typing import Any

from workloads.base.base_workload import Sizes
from workloads.base.options import Options
from workloads.speech import conformer, speech_batches, speech_workload
from workloads.speech.corpora import librispeech

_CHOICES: dict[str, dict[str, Any]] = {
    "librispeech_conformer": {},
    "librispeech_conformer_gelu": {"activation": "gelu"},
    "librispeech_conformer_layernorm": {"use_post_layer_norm": False},
    "librispeech_conformer_attention_temperature": {"attention_temperature": 1.6},
}

_EVAL_BATCH = 256

DATA = speech_batches.Speech(
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


def make(name: str, variant: Any, options: Options) -> speech_workload.SpeechWorkload:
    """Returns the workload; use `workloads.registry.make`."""
    config = conformer.Config(**_CHOICES[name])
    return speech_workload.SpeechWorkload(name, DATA, config, variant, options)
