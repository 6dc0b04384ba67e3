"""AlgoPerf's own workloads in the catalog of workloads, as `algoperf:<AlgoPerf's name>`.

Standard library only. Batch sizes: algorithms/baselines/external_tuning/jax_nadamw_full_budget.py
(held-out variants take their base's, as submission_runner.py does). Targets, step hints and time
budgets: algoperf/workloads/*/workload.py. Parameters: of the models as init_model_fn makes them.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from workloads.base.injection import layer_index
from workloads.base.workload_spec import (
    BOTH_WAYS,
    KEEPS_SOFTMAX,
    OWN_QUERIES,
    ModelSupport,
    WorkloadSpec,
)

PREFIX = "algoperf:"
# Paths that a job must know; study keys and trial fields have these names.
DIRECTORY, TOKENIZER = "algoperf_dir", "tokenizer_vocab_path"
DIRECTORY_VARIABLE = "ATTNPERF_ALGOPERF_DIR"
_MODULES: dict[str, Any] = {
    "factory": "workloads.algoperf.adapter:make",
    "data": "workloads.algoperf.preflight:Check",
}
# Its models have one dtype, one layer loop, and parameters whole everywhere.
_SUPPORT = ModelSupport(
    options=(), whole_batch="AlgoPerf's own models draw dropout for a batch as a whole"
)


def _same(ours: WorkloadSpec) -> WorkloadSpec:
    """Returns the entry of AlgoPerf's workload that ours follows: same model, data and targets."""
    return dataclasses.replace(
        ours,
        name=PREFIX + ours.name,
        **_MODULES,
        data_name=ours.data_name or ours.name,
        description=f"AlgoPerf's own {ours.description}",
        support=dataclasses.replace(
            _SUPPORT, lacks=ours.support.lacks, ignores=ours.support.ignores
        ),
        extra_paths=(DIRECTORY, TOKENIZER) if ours.name in SPEECH else (DIRECTORY,),
    )


def _wmt(
    name: str, description: str, targets: tuple[float, float], parameters: int
) -> WorkloadSpec:
    return WorkloadSpec(
        name=PREFIX + name,
        **_MODULES,
        data_name="wmt",
        description=f"AlgoPerf's own {description}",
        metric="bleu",
        mode="max",
        batch_size=128,
        step_hint=120_000,
        validation_target=targets[0],
        test_target=targets[1],
        parameters=parameters,
        head_size=64,
        support=dataclasses.replace(
            _SUPPORT,
            lacks=(
                BOTH_WAYS,
                ("self", "attends from its decoder to its encoder, too"),
                ("memory", "has an encoder and a decoder, which hand on nothing"),
            ),
        ),
        extra_paths=(DIRECTORY,),
        # 43,336 s allowed for 120,000 steps (max_allowed_runtime_sec of the workload).
        step_seconds=0.3611,
        step_source="hours of 8 V100s: AlgoPerf's time budget of 0.361 s a step, an upper bound",
    )


@dataclasses.dataclass(frozen=True)
class InjectionPoint:
    """The place of a variant in the model of one workload.

    layers: the number of attention modules at full size. traced: methods beside `init_model_fn`
    and `model_fn` that call the model at every call. jitted: methods under `jax.jit`, which call
    it only while they are traced. causal: the model is not built on flax's attention module
    (`workloads.algoperf.causal_attention`).
    """

    layers: int
    traced: tuple[str, ...] = ()
    jitted: tuple[str, ...] = ()
    causal: bool = False

    def layer(self, path: str) -> int:
        """Returns the index of a layer; imagenet_vit_map pools with a thirteenth, the last."""
        return layer_index(path, self.layers - 1)


_CONFORMER = InjectionPoint(4)
# WMT's methods call their models themselves, not through model_fn (wmt_jax/workload.py). Six
# encoder blocks with one attention, six decoder blocks with two.
_WMT = InjectionPoint(18, ("predict_step",), ("eval_step", "initialize_cache"))

# By AlgoPerf's names of workloads. Names of modules: …_jax/models.py.
INJECTION_POINTS: dict[str, InjectionPoint] = {
    "imagenet_vit": InjectionPoint(12),
    "imagenet_vit_glu": InjectionPoint(12),
    "imagenet_vit_map": InjectionPoint(13),
    "librispeech_conformer": _CONFORMER,
    "librispeech_conformer_gelu": _CONFORMER,
    "librispeech_conformer_layernorm": _CONFORMER,
    "librispeech_conformer_attention_temperature": _CONFORMER,
    "wmt": _WMT,
    "wmt_post_ln": _WMT,
    "wmt_attention_temp": _WMT,
    "finewebedu_lm": InjectionPoint(12, causal=True),
    "wmt_glu_tanh": _WMT,
}
# Those whose models, data and targets are ours, too.
IMAGES = tuple(name for name in INJECTION_POINTS if name.startswith("imagenet"))
SPEECH = tuple(name for name in INJECTION_POINTS if name.startswith("librispeech"))


def specs(ours: Iterable[WorkloadSpec]) -> tuple[WorkloadSpec, ...]:
    """Returns the rows of AlgoPerf's workloads; `ours` has those that ours follow."""
    named = {spec.name: spec for spec in ours}
    decoder = dataclasses.replace(
        _same(named["finewebedu_lm"]),
        description="AlgoPerf's own decoder on FineWeb-Edu, since its version 1.0",
        support=dataclasses.replace(
            _SUPPORT,
            # AlgoPerf 1.0's two einsums; the version before calls jax.nn's function.
            lacks=(
                *OWN_QUERIES,
                ("memory", "hands on its values after its weights"),
                KEEPS_SOFTMAX,
            ),
            observable=False,  # its attention is no module that diagnostics know
            ignores=named["finewebedu_lm"].support.ignores,
        ),
    )
    return (
        *(_same(named[name]) for name in (*IMAGES, *SPEECH)),
        _wmt("wmt", "Transformer on WMT", (30.8491, 30.7219), 133_521_408),
        _wmt("wmt_post_ln", "Transformer, post-LN", (30.0779, 29.8982), 133_517_312),
        _wmt("wmt_attention_temp", "Transformer, queries x 4", (29.3379, 29.4143), 133_521_408),
        decoder,
        _wmt("wmt_glu_tanh", "Transformer, gated MLP, tanh", (29.5779, 29.0515), 146_116_608),
    )


# Workloads of AlgoPerf that are refused, and why.
REFUSED = {
    PREFIX + "imagenet_vit_post_ln": (
        "AlgoPerf's own model raises at its first training step (imagenet_jax/models.py calls the "
        "output of a Dropout); ours does not: use 'imagenet_vit_post_ln'"
    ),
}


def short_name(name: str) -> str:
    """Returns AlgoPerf's key for a workload of this table, 'imagenet_vit'."""
    return name.removeprefix(PREFIX)


def no_tokenizer(name: str) -> str:
    """Returns the message for a speech workload without a tokenizer."""
    return (
        f"{name} needs the SentencePiece model that its targets were made with: without one "
        "AlgoPerf calls every word error rate 0 and its goals reached. Set "
        "--config.tokenizer_vocab_path=.../spm_model.vocab (AlgoPerf's datasets/README.md)"
    )
