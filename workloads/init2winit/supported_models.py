"""init2winit's models that take our attention, and the variants that each can have."""

import dataclasses

from attention import table
from workloads.base.workload_spec import BOTH_WAYS, KEEPS_SOFTMAX, OWN_QUERIES
from workloads.speech.speech_specs import SCALED

# Injection points of a variant in a model. `flax`: flax's own attention module, whose function is
# replaced or wrapped; `copied`: init2winit's copy of it (model_lib/attention.py), whose function is
# replaced; `causal`: the einsums, or jax.nn's function, of a layer with a name.
FLAX = "flax"
COPIED = "copied"
CAUSAL = "causal"


@dataclasses.dataclass(frozen=True)
class Model:
    """One model of init2winit.

    injection_point: FLAX, COPIED or CAUSAL. class_name: of the layer at CAUSAL. lacks: as
    `workloads.base.workload_spec.ModelSupport.lacks`.
    """

    injection_point: str
    class_name: str = ""
    lacks: tuple[tuple[str, str], ...] = ()


_LATE_VALUES = ("memory", "hands on its values after its weights")
# Model names: init2winit/model_lib/models.py.
MODELS: dict[str, Model] = {
    "vit": Model(FLAX, lacks=(BOTH_WAYS, KEEPS_SOFTMAX)),
    "conformer": Model(FLAX, lacks=(BOTH_WAYS, SCALED)),
    "mlcommons_conformer": Model(FLAX, lacks=(BOTH_WAYS, SCALED)),
    "transformer": Model(COPIED),
    "nanodo": Model(
        CAUSAL,
        "CausalAttn",
        lacks=(
            ("qk_norm", "divides its queries by √D before a variant meets them"),
            ("qk_rms_norm", "divides its queries by √D before a variant meets them"),
            _LATE_VALUES,
            KEEPS_SOFTMAX,
        ),
    ),
    "rope_nanodo": Model(CAUSAL, "Attention", lacks=(*OWN_QUERIES, _LATE_VALUES, KEEPS_SOFTMAX)),
}


def model(name: str) -> Model:
    """Returns init2winit's model of that name. Raises ValueError for one that is not known."""
    if name in MODELS:
        return MODELS[name]
    raise ValueError(table.unknown("init2winit model with attention", name, MODELS))


def check_variant(name: str, variant: str) -> None:
    """Raises ValueError if init2winit's model of that name cannot have a variant."""
    table.check_model(variant, dict(model(name).lacks), f"init2winit's {name}")
