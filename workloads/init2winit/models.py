"""init2winit's own models with an attention variant (docs/init2winit.md)::

    from init2winit.model_lib import models
    from init2winit.trainer_lib import training_algorithm
    from workloads.init2winit import models as variants

    variants.register(models, training_algorithm)
    # and then as ever: --config.model=vit_laser --config.dataset=imagenet ...

Sources: init2winit/model_lib/{models,base_model,vit,conformer,transformer_lm,nanodo}.py and
init2winit/trainer_lib/training_algorithm.py of github.com/google/init2winit.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from flax import linen as nn
from jax import Array

from attention import inject, registry, table
from attention.adapters import linen
from attention.adapters.injection import check_normalised
from attention.variant import Variant
from workloads.algoperf import causal_attention
from workloads.base import injection
from workloads.base.workload_spec import BOTH_WAYS, KEEPS_SOFTMAX, OWN_QUERIES
from workloads.speech.speech_specs import SCALED


def register(
    models: Any,
    training_algorithm: Any = None,
    *,
    names: Iterable[str] | None = None,
    variants: Iterable[str] = table.PAPER_ROWS,
) -> tuple[str, ...]:
    """Adds `<model>_<variant>` for each of both; returns their names, such as `vit_laser+qk_norm`.

    names: of models, by default all of `MODELS`.
    models: the module `init2winit.model_lib.models`, whose `_ALL_MODELS` gets the class and the
    model's default hyperparameters with `attention`, the variant, beside them; a +temp variant also
    has `attention_tau`, 1.0. init2winit writes both into hparams.json. training_algorithm: the
    module `init2winit.trainer_lib.training_algorithm`, whose `_MODEL_TRAINING_DEFAULTS` get the
    model's. A variant that a model cannot have (`per_dim_temp` of the Conformers, which have it
    inside) is left out.

    Raises ValueError for a model that is not known to work and for an unknown variant.
    """
    registered = []
    for name, variant in itertools.product(names or MODELS, variants):
        if name not in MODELS:
            raise ValueError(table.unknown("init2winit model with attention", name, MODELS))
        table.check(variant, {})
        with contextlib.suppress(ValueError):
            _check_variant(name, variant)
            registered.append(_register(models, training_algorithm, name, variant))
    return tuple(registered)


def _register(models: Any, training_algorithm: Any, base: str, variant: str) -> str:
    name = f"{base}_{variant}"
    model, hyperparameters = models._ALL_MODELS[base]
    hyperparameters = hyperparameters.copy_and_resolve_references()
    hyperparameters.attention = variant
    if "temp" in variant.split("+"):
        hyperparameters.attention_tau = 1.0
    models._ALL_MODELS[name] = (_model_class(model, base), hyperparameters)
    if training_algorithm is not None:
        defaults = training_algorithm._MODEL_TRAINING_DEFAULTS
        defaults[name] = defaults[base]
    return name


def _model_class(model: Any, name: str) -> Any:
    """Returns a subclass of an init2winit model, called `name` in its registry, whose flax module
    runs the variant that the hyperparameters `attention` and `attention_tau` name.

    Its parameter tree is the model's, with the variant's own leaves beside it. Making parameters
    raises ValueError if the variant runs in another number of layers than the model has.
    """

    def build_flax_module(self: Any) -> Any:
        temperature = {"tau": self.hps.attention_tau} if "attention_tau" in self.hps else {}
        _check_variant(name, self.hps.attention)
        variant = registry.get(self.hps.attention, **temperature)
        names = ("depth", "num_encoder_layers", "num_layers")
        layers = next((self.hps[key] for key in names if key in self.hps), 0)
        pooling = self.hps.get("pool_type") == "map"
        layer = functools.partial(injection.layer_index, layers=layers)

        def check(_: Any, ran: tuple[str, ...]) -> None:
            expected = layers + pooling if layers else len(ran)
            injection.check_layers(variant.name, ran, expected, f"init2winit's {name}")

        inside = functools.partial(MODELS[name].enter, variant, layer)
        return injected_module(model.build_flax_module(self), inside, check)

    members = {"build_flax_module": build_flax_module, "__doc__": f"{model.__name__}, injected"}
    return type(model.__name__, (model,), members)


def injected_module(
    module: Any,
    enter: Callable[[], inject.Injected],
    check: Callable[[Any, tuple[str, ...]], None],
) -> Any:
    """Returns a flax module like `module` whose `init` and `apply` run inside of `enter()`.

    `check` gets the module and the paths of the layers that ran the variant in `init`.

    init2winit calls these two inside the functions that it jits.
    """
    plain = type(module)

    # Flax takes other methods of a module for parts of it.
    members = {
        name: nn.nowrap(injection.run_inside(getattr(plain, name), enter, check))
        for name in ("init", "apply")
    }
    made = type(plain.__name__, (plain,), members)
    settings = {
        field.name: getattr(module, field.name)
        for field in dataclasses.fields(plain)
        if field.init and field.name not in ("parent", "name")
    }
    return made(**settings)


# init2winit's copy of flax's attention module.
_FILE, _CLASS = "init2winit.model_lib.attention", "MultiHeadDotProductAttention"


def injected_copies(variant: Variant, layer: inject.LayerRule) -> inject.Injected:
    """Puts `variant` into every copy of flax's attention module (model_lib/attention.py) called
    inside; as `attention.inject.injected`.

    Its `MultiHeadDotProductAttention` is no subclass of flax's, and calls its attention function
    with one argument more, `attn_temp`, which multiplies the logits.

    Raises ValueError for `+qk_norm` in a module that normalises queries and keys itself
    (`normalize_attention`) or has another attention function than its own file's; RuntimeError on
    a clean exit if no such module was called, or if one did not call its attention function.
    """

    def attending(module: Any, function: linen.InjectedFunction) -> Any:
        check_normalised(module.normalize_attention, variant)
        attention_fn = module.attention_fn
        if getattr(attention_fn, "__module__", "") != _FILE:
            raise ValueError(
                f"the model has an attention function of its own, {attention_fn!r}, which "
                f"{variant.name!r} would replace; leave it out"
            )
        return linen.attending_by(module, function)

    return linen.injected_layers(
        variant, layer, _is_copy, attending, f"{_FILE}.{_CLASS}", kind=_AttentionFunction
    )


def _is_copy(module: Any) -> bool:
    """Whether a module is to be injected into."""
    return any(
        base.__name__ == _CLASS and base.__module__ == _FILE for base in type(module).__mro__
    )


class _AttentionFunction(linen.InjectedFunction):
    """A variant, called as init2winit's module calls its attention function."""

    def __call__(  # type: ignore[override]
        self,
        query: Array,
        key: Array,
        value: Array,
        *,
        mask: Array | None = None,
        attn_temp: float = 1.0,
        **settings: Any,
    ) -> Array:
        return super().__call__(
            query,
            key,
            value,
            mask=None if mask is None else mask.astype(bool),
            scale=attn_temp * query.shape[-1] ** -0.5,
            **settings,
        )


@dataclasses.dataclass(frozen=True)
class Model:
    """One model of init2winit.

    enter: puts a variant into its attention layers. These are flax's own module, whose function is
    replaced or wrapped; init2winit's copy of it, whose function is replaced; or a layer of a class,
    whose einsums, or calls of jax.nn's function, are replaced. lacks: as
    `workloads.base.workload_spec.ModelSupport.lacks`.
    """

    enter: Callable[..., inject.Injected]
    lacks: tuple[tuple[str, str], ...] = ()


# Masks are floats of 0 and 1 in the Conformers.
_FLAX = functools.partial(inject.injected, float_masks=True)
_LATE_VALUES = ("memory", "hands on its values after its weights")
# Model names: init2winit/model_lib/models.py.
MODELS: dict[str, Model] = {
    "vit": Model(_FLAX, lacks=(BOTH_WAYS, KEEPS_SOFTMAX)),
    "conformer": Model(_FLAX, lacks=(BOTH_WAYS, SCALED)),
    "mlcommons_conformer": Model(_FLAX, lacks=(BOTH_WAYS, SCALED)),
    "transformer": Model(injected_copies),
    "nanodo": Model(
        causal_attention.injected,
        lacks=(
            ("qk_norm", "divides its queries by √D before a variant meets them"),
            ("qk_rms_norm", "divides its queries by √D before a variant meets them"),
            _LATE_VALUES,
            KEEPS_SOFTMAX,
        ),
    ),
    "rope_nanodo": Model(
        functools.partial(causal_attention.injected, class_name="Attention"),
        lacks=(*OWN_QUERIES, _LATE_VALUES, KEEPS_SOFTMAX),
    ),
}


def _check_variant(name: str, variant: str) -> None:
    """Raises ValueError if init2winit's model of that name cannot have a variant."""
    table.check_model(variant, dict(MODELS[name].lacks), f"init2winit's {name}")
