"""init2winit's models: which take our attention, and as rows of the catalog, `init2winit:<name>`.

Its own trainer trains them, in a process of its own (`sweeps.init2winit`). What its `main.py` is
told beside a study's own settings (data set, loss, metrics, hyperparameters that are not tuned) is
the study's `init2winit_config`. Loads no JAX. Batch sizes: _MODEL_TRAINING_DEFAULTS in
init2winit/trainer_lib/training_algorithm.py.
"""

import dataclasses
import difflib
import json
from collections.abc import Mapping
from typing import Any

from attention import table
from workloads.base.workload_spec import WorkloadSpec

PREFIX = "init2winit:"
# Study keys and trial fields have these names.
DIRECTORY, CONFIG = "init2winit_dir", "init2winit_config"
# As `installation` reads it.
DIRECTORY_VARIABLE = "ATTNPERF_INIT2WINIT_DIR"
OVERRIDES = "hparam_overrides"
# Seams: where a model's attention is met. `flax`: flax's own attention module, whose function is
# wrapped; `own`: init2winit's copy of it (model_lib/attention.py), whose function is replaced;
# `causal`: the einsums, or jax.nn's function, of a layer with a name.
FLAX, OWN, CAUSAL = "flax", "own", "causal"


@dataclasses.dataclass(frozen=True)
class Support:
    """How one model is injected into.

    `refused`: modifiers that no variant may have there, with the reason. `class_name`: the layer's
    at the seam `causal`.
    """

    seam: str
    refused: tuple[tuple[str, str], ...] = ()
    class_name: str = ""

    def check(self, model: str, attention: str) -> None:
        """Raises ValueError for a variant, by name, that the model cannot have, with the reason."""
        has = attention.split("+")[1:]
        for modifier, reason in self.refused:
            if modifier in has:
                raise ValueError(f"{model} {reason}, so not {attention!r}; drop +{modifier}")
        if self.seam != OWN:
            table.check_host_mean(attention, f"init2winit's {model}")


_SCALED = (("per_dim_temp", "scales its queries per dimension itself"),)
# Model names: init2winit/model_lib/models.py.
SUPPORTED: dict[str, Support] = {
    "vit": Support(FLAX),
    "conformer": Support(FLAX, _SCALED),
    "mlcommons_conformer": Support(FLAX, _SCALED),
    "transformer": Support(OWN),
    "nanodo": Support(
        CAUSAL,
        (("qk_norm", "divides its queries by √D before a variant meets them"),),
        "CausalAttn",
    ),
    "rope_nanodo": Support(
        CAUSAL,
        (("qk_norm", "normalises and scales its queries before a variant meets them"),),
        "Attention",
    ),
}
_HAVE_NOT_BEEN_TRIED = (
    "xformer_translate",
    "mlcommons_xformer_translate",
    "mdlm_rope_nanodo",
    "local_attention_transformer",
    "transformer_stu",
)


def support(model: str) -> Support:
    """Returns how init2winit's `model` is injected into.

    Raises ValueError with the reason, and what works, for one that cannot be.
    """
    if model in SUPPORTED:
        return SUPPORTED[model]
    words = ", ".join(SUPPORTED)
    if model.startswith(_HAVE_NOT_BEEN_TRIED):
        raise ValueError(f"no variant was tried in init2winit's {model}; those that are: {words}")
    near = difflib.get_close_matches(model, SUPPORTED, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(
        f"init2winit's {model!r} has no attention that a variant goes through{hint}. Models with: "
        f"{words}"
    )


# Fields of its config that a study's `init2winit_config` may have. The others are a study's own
# settings (model, num_train_steps …), or would end a trial early or begin it elsewhere.
FIELDS = (
    *("dataset", "trainer", "loss", "metrics", "initializer", "data_selector"),
    *("training_algorithm", "eval_batch_size", "eval_use_ema"),
    *("eval_num_batches", "test_num_batches", "eval_train_num_batches"),
    *("num_tf_data_prefetches", "num_device_prefetches", "num_tf_data_map_parallel_calls"),
    *("compile_init_on_cpu", OVERRIDES),
)
# Hyperparameters that a trial's point, seed, steps or batch size says.
TRIALS_OWN = ("optimizer", "opt_hparams", "lr_hparams", "batch_size", "rng_seed", "label_smoothing")
# Of `sweeps.training.optimizers`, those that its `kitchen_sink` makes with a point's numbers: the
# element that gives the direction.
OPTIMIZERS = {"nadamw": "scale_by_nadam", "adamw": "scale_by_adam"}
# What init2winit calls its rates of dropout, by model; all get a point's `dropout_rate`.
DROPOUT = {
    "vit": ("dropout_rate",),
    "conformer": ("residual_dropout_rate", "input_dropout_rate"),
    "mlcommons_conformer": ("dropout_rate", "aux_dropout_rate"),
    "transformer": ("dropout_rate", "attention_dropout_rate"),
    "nanodo": (),
    "rope_nanodo": (),
}


def _spec(
    model: str,
    description: str,
    metric: str,
    mode: str,
    batch_size: int,
    unit: str = "examples",
) -> WorkloadSpec:
    entry = SUPPORTED[model]
    return WorkloadSpec(
        name=PREFIX + model,
        factory="workloads.init2winit_specs:refuse",
        data="workloads.init2winit.data:Check",
        description=f"init2winit's {description}, by its own trainer",
        metric=metric,
        mode=mode,
        batch_size=batch_size,
        step_hint=0,  # its main.py has no default
        validation_target=None,
        test_target=None,
        parameters=0,  # as its hyperparameters say
        head_size=64,
        data_name="init2winit",
        host_modifiers=tuple(modifier for modifier, _ in entry.refused),
        keeps_softmax=entry.seam != OWN,
        extra_paths=(DIRECTORY, CONFIG),
        observable=False,
        unit=unit,
        serves=(),
    )


# Metrics by our names: an error rate is an accuracy (sweeps/records/init2winit_columns.py).
SPECS = (
    _spec("vit", "Vision Transformer", "accuracy", "max", 1024, "images"),
    _spec("conformer", "Conformer", "wer", "min", 256),
    _spec("mlcommons_conformer", "Conformer as MLCommons has it", "wer", "min", 256),
    _spec("transformer", "decoder-only Transformer", "loss", "min", 512),
    _spec("nanodo", "nanodo", "loss", "min", 256),
    _spec("rope_nanodo", "nanodo with rotary positions", "loss", "min", 256),
)


def is_init2winit(name: str) -> bool:
    """Returns whether a workload is trained by init2winit's trainer."""
    return name.startswith(PREFIX)


def own_name(name: str) -> str:
    """Returns init2winit's name of a workload's model, 'vit'."""
    return name.removeprefix(PREFIX)


def refuse(row: WorkloadSpec, *_: Any, **__: Any) -> Any:
    """Raises ValueError: what asks for the workload's object would have to train it by our loop."""
    raise ValueError(
        f"{row.name} is trained by init2winit's own trainer: it is no workload object of ours, and "
        "what needs one (compile, bench, diagnostics, evaluate) cannot look into it"
    )


def check_variant(name: str, variant: str) -> None:
    """Raises ValueError where a workload's model cannot have a variant, with the reason."""
    support(own_name(name)).check(name, variant)


def check_point(name: str, point: Mapping[str, float]) -> None:
    """Raises ValueError for a point whose `dropout_rate` a workload's model has no name for."""
    if point["dropout_rate"] and not DROPOUT[own_name(name)]:
        raise ValueError(
            f"dropout_rate is {point['dropout_rate']}, and init2winit's {own_name(name)} has no "
            "dropout; take it out"
        )


def read_config(text: str) -> dict[str, Any]:
    """Returns what a study's `init2winit_config` says: fields of init2winit's config.

    Raises ValueError for what is no JSON object of `FIELDS`, or says what the study itself does.
    """
    try:
        given = json.loads(text) if text else {}
    except ValueError as error:
        raise ValueError(f"{CONFIG} is no JSON ({error}): {text}") from error
    overrides = given.get(OVERRIDES, {}) if isinstance(given, dict) else None
    if not isinstance(overrides, dict):
        raise ValueError(
            f"{CONFIG} is an object of fields of init2winit's config, of which {OVERRIDES} is one "
            f'itself, such as {{"dataset": "mnist", "{OVERRIDES}": {{"width": 48}}}}; '
            f"given: {text}"
        )
    for field in given:
        if field not in FIELDS:
            words = table.unknown(f"field of {CONFIG}", field, FIELDS)
            raise ValueError(f"{words} Steps, evaluations and seeds are the study's own keys")
    for name in overrides:
        if name.split(".")[0] in TRIALS_OWN:
            raise ValueError(
                f"{CONFIG}: hyperparameter {name} is what the study's space, seeds and batch_size "
                "say; take it out"
            )
    return given
