"""init2winit's models: which take our attention, and as rows of the catalog, `init2winit:<name>`.

Its own trainer trains them, in a process of its own (`sweeps.init2winit`). What its `main.py` is
told beside a study's own settings (data set, loss, metrics, hyperparameters that are not tuned) is
the study's `init2winit_config`. Loads no JAX. Batch sizes: _MODEL_TRAINING_DEFAULTS in
init2winit/trainer_lib/training_algorithm.py.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from attention import files, table
from workloads.base.workload_spec import (
    BOTH_WAYS,
    KEEPS_SOFTMAX,
    OWN_QUERIES,
    ModelSupport,
    WorkloadSpec,
)
from workloads.speech.specs import SCALED

PREFIX = "init2winit:"
# Study keys and trial fields have these names.
DIRECTORY, CONFIG = "init2winit_dir", "init2winit_config"
# As `installation` reads it.
DIRECTORY_VARIABLE = "ATTNPERF_INIT2WINIT_DIR"
OVERRIDES = "hparam_overrides"
# Injection points: where a variant enters a model. `flax`: flax's own attention module, whose
# function is wrapped; `copied`: init2winit's copy of it (model_lib/attention.py), whose function is
# replaced; `causal`: the einsums, or jax.nn's function, of a layer with a name.
FLAX = "flax"
COPIED = "copied"
CAUSAL = "causal"


@dataclasses.dataclass(frozen=True)
class Model:
    """One model of init2winit.

    injection_point: see above; class_name: the layer's at `causal`. lacks: as
    `ModelSupport.lacks`. dropout: what init2winit calls its rates, which all get a point's
    `dropout_rate`. metric: by our name; an error rate is an accuracy
    (sweeps/records/init2winit_columns.py).
    """

    description: str
    metric: str
    batch_size: int
    injection_point: str
    class_name: str = ""
    lacks: tuple[tuple[str, str], ...] = ()
    dropout: tuple[str, ...] = ()
    unit: str = "examples"


_LATE_VALUES = ("memory", "hands on its values after its weights")
# Model names: init2winit/model_lib/models.py.
MODELS: dict[str, Model] = {
    "vit": Model(
        "Vision Transformer",
        "accuracy",
        1024,
        FLAX,
        lacks=(BOTH_WAYS,),
        dropout=("dropout_rate",),
        unit="images",
    ),
    "conformer": Model(
        "Conformer",
        "wer",
        256,
        FLAX,
        lacks=(BOTH_WAYS, SCALED),
        dropout=("residual_dropout_rate", "input_dropout_rate"),
    ),
    "mlcommons_conformer": Model(
        "Conformer as MLCommons has it",
        "wer",
        256,
        FLAX,
        lacks=(BOTH_WAYS, SCALED),
        dropout=("dropout_rate", "aux_dropout_rate"),
    ),
    "transformer": Model(
        "decoder-only Transformer",
        "loss",
        512,
        COPIED,
        dropout=("dropout_rate", "attention_dropout_rate"),
    ),
    "nanodo": Model(
        "nanodo",
        "loss",
        256,
        CAUSAL,
        "CausalAttn",
        lacks=(
            ("qk_norm", "divides its queries by √D before a variant meets them"),
            ("qk_rms_norm", "divides its queries by √D before a variant meets them"),
            _LATE_VALUES,
        ),
    ),
    "rope_nanodo": Model(
        "nanodo with rotary positions",
        "loss",
        256,
        CAUSAL,
        "Attention",
        lacks=(*OWN_QUERIES, _LATE_VALUES),
    ),
}
_HAVE_NOT_BEEN_TRIED = (
    "xformer_translate",
    "mlcommons_xformer_translate",
    "mdlm_rope_nanodo",
    "local_attention_transformer",
    "transformer_stu",
)


def model(name: str) -> Model:
    """Returns init2winit's model of that name.

    Raises ValueError with the reason, and what works, for one that no variant can enter.
    """
    if name in MODELS:
        return MODELS[name]
    if name.startswith(_HAVE_NOT_BEEN_TRIED):
        able = ", ".join(MODELS)
        raise ValueError(f"no variant was tried in init2winit's {name}; those that are: {able}")
    raise ValueError(table.unknown("init2winit model with attention", name, MODELS))


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
TRIAL_HYPERPARAMETERS = (
    "optimizer",
    "opt_hparams",
    "lr_hparams",
    "batch_size",
    "rng_seed",
    "label_smoothing",
)
# Of `sweeps.training.optimizers`, those that its `kitchen_sink` makes with a point's numbers: the
# element that gives the direction.
OPTIMIZERS = {"nadamw": "scale_by_nadam", "adamw": "scale_by_adam"}


def _spec(name: str, model: Model) -> WorkloadSpec:
    return WorkloadSpec(
        name=PREFIX + name,
        factory="workloads.init2winit_specs:refuse",
        data="workloads.init2winit.preflight:Check",
        description=f"init2winit's {model.description}, by its own trainer",
        metric=model.metric,
        mode="max" if model.metric == "accuracy" else "min",
        batch_size=model.batch_size,
        step_hint=0,  # its main.py has no default
        validation_target=None,
        test_target=None,
        parameters=0,  # as its hyperparameters say
        head_size=64,
        data_name="init2winit",
        support=ModelSupport(
            lacks=model.lacks + (KEEPS_SOFTMAX,) * (model.injection_point != COPIED),
            options=(),
            whole_batch="init2winit's own trainer knows no microbatches",
            observable=False,
        ),
        extra_paths=(DIRECTORY, CONFIG),
        unit=model.unit,
    )


SPECS = tuple(_spec(name, entry) for name, entry in MODELS.items())


def is_init2winit(name: str) -> bool:
    """Returns whether a workload is trained by init2winit's trainer."""
    return name.startswith(PREFIX)


def short_name(name: str) -> str:
    """Returns init2winit's name of a workload's model, 'vit'."""
    return name.removeprefix(PREFIX)


def refuse(row: WorkloadSpec, *_: Any, **__: Any) -> Any:
    """Raises ValueError: what asks for the workload's object would have to train it by our loop."""
    raise ValueError(
        f"{row.name} is trained by init2winit's own trainer: it is no workload object of ours, and "
        "what needs one (compile, bench, diagnostics, evaluate) cannot look into it"
    )


def check_point(name: str, point: Mapping[str, float]) -> None:
    """Raises ValueError for a point whose `dropout_rate` a workload's model has no name for."""
    if point["dropout_rate"] and not MODELS[short_name(name)].dropout:
        raise ValueError(
            f"dropout_rate is {point['dropout_rate']}, and init2winit's {short_name(name)} has no "
            "dropout; take it out"
        )


def read_config(text: str) -> dict[str, Any]:
    """Returns what a study's `init2winit_config` says: fields of init2winit's config.

    Raises ValueError for what is no JSON object of `FIELDS`, or says what the study itself does.
    """
    try:
        fields = files.loads(text) if text else {}
    except ValueError as error:
        raise ValueError(f"{CONFIG} is no JSON ({error}): {text}") from error
    overrides = fields.get(OVERRIDES, {}) if isinstance(fields, dict) else None
    if not isinstance(overrides, dict):
        raise ValueError(
            f"{CONFIG} is an object of fields of init2winit's config, of which {OVERRIDES} is one "
            f'itself, such as {{"dataset": "mnist", "{OVERRIDES}": {{"width": 48}}}}; '
            f"given: {text}"
        )
    for field in fields:
        if field not in FIELDS:
            words = table.unknown(f"field of {CONFIG}", field, FIELDS)
            raise ValueError(f"{words} Steps, evaluations and seeds are the study's own keys")
    for name in overrides:
        if name.split(".")[0] in TRIAL_HYPERPARAMETERS:
            raise ValueError(
                f"{CONFIG}: hyperparameter {name} is what the study's space, seeds and batch_size "
                "say; take it out"
            )
    return fields
