"""Attention variants of init2winit's own models, in its registries, where its tree is importable.

The public tree is not, as published (docs/init2winit.md). In a tree that is::

    from init2winit.model_lib import models
    from init2winit.trainer_lib import training_algorithm
    from workloads import init2winit_registration

    init2winit_registration.register(models, training_algorithm)
    # and then as ever: --model=vit_laser --dataset=imagenet ...

Sources: init2winit/model_lib/{models,base_model,vit,conformer}.py and
init2winit/trainer_lib/training_algorithm.py of github.com/google/init2winit.
"""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from attention import inject, registry, table

# init2winit's models whose attention is flax's `nn.MultiHeadDotProductAttention` or its
# `nn.SelfAttention`, and the modifiers that the model has already.
HOSTS: dict[str, tuple[str, ...]] = {
    "vit": (),
    "conformer": ("per_dim_temp",),
    "mlcommons_conformer": ("per_dim_temp",),
}


def register(
    models: Any,
    training_algorithm: Any = None,
    *,
    hosts: Iterable[str] = tuple(HOSTS),
    variants: Iterable[str] = table.PAPER_ROWS,
) -> tuple[str, ...]:
    """Adds `<host>_<variant>` for each of both; returns the names, `vit_laser+qk_norm` for one.

    models: the module `init2winit.model_lib.models`, whose `_ALL_MODELS` gets the class and the
    host's default hyperparameters; a +temp variant has one more, `attention_tau`, 1.0.
    training_algorithm: the module `init2winit.trainer_lib.training_algorithm`, whose
    `_MODEL_TRAINING_DEFAULTS` get the host's. A row that a host has inside (`per_dim_temp` of the
    Conformers) is left out.

    Raises ValueError for a host that is not known to work or is not registered there, for an
    unknown variant, and for a name that is taken.
    """
    variants = tuple(variants)
    added = []
    for host in hosts:
        _check_host(models, host)
        for variant in variants:
            table.check(variant, {})
            if set(variant.split("+")[1:]) & set(HOSTS[host]):
                continue
            added.append(_register(models, training_algorithm, host, variant))
    return tuple(added)


def _check_host(models: Any, host: str) -> None:
    if host not in HOSTS:
        raise ValueError(f"host {host!r} is not known to work; use {', '.join(HOSTS)}")
    if host not in models._ALL_MODELS:
        raise ValueError(f"init2winit's registry has no {host!r}: {', '.join(models._ALL_MODELS)}")


def _register(models: Any, training_algorithm: Any, host: str, variant: str) -> str:
    name = f"{host}_{variant}"
    if name in models._ALL_MODELS:
        raise ValueError(f"{name!r} is registered already; register once per process")
    model, hyperparameters = models._ALL_MODELS[host]
    hyperparameters = hyperparameters.copy_and_resolve_references()
    if "temp" in variant.split("+"):
        hyperparameters.attention_tau = 1.0
    models._ALL_MODELS[name] = (model_class(model, variant), hyperparameters)
    if training_algorithm is not None:
        defaults = training_algorithm._MODEL_TRAINING_DEFAULTS
        defaults[name] = defaults[host]
    return name


def model_class(model: Any, variant: str) -> Any:
    """Returns a subclass of an init2winit model whose flax module runs the variant.

    Its parameter tree is the host's, with the variant's own leaves beside it.
    """

    def build_flax_module(self: Any) -> Any:
        hyperparameters = {}
        if "attention_tau" in self.hps:
            hyperparameters["tau"] = self.hps.attention_tau
        chosen = registry.get(variant, **hyperparameters)
        return injected_module(model.build_flax_module(self), chosen)

    members = {"build_flax_module": build_flax_module, "__doc__": f"{model.__name__}, {variant}"}
    return type(model.__name__, (model,), members)


def injected_module(module: Any, variant: Any) -> Any:
    """Returns a flax module like `module` whose `init` and `apply` run the variant.

    init2winit calls these two inside the functions it jits, where an injection belongs.
    """
    plain = type(module)

    def entering(method: Any) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            with inject.injected(variant, depth=_depth):
                return method(self, *args, **kwargs)

        return run

    members = {name: entering(getattr(plain, name)) for name in ("init", "apply")}
    made = type(plain.__name__, (plain,), members)
    settings = {
        field.name: getattr(module, field.name)
        for field in dataclasses.fields(plain)
        if field.init and field.name not in ("parent", "name")
    }
    return made(**settings)


def _depth(path: str) -> int:
    """A layer's index from 0: 'encoderblock_3/…', 'ConformerBlock_0/…'."""
    found = re.search(r"block_(\d+)", path, re.IGNORECASE)
    if found is None:
        raise ValueError(f"no layer number in {path!r}; differential attention needs one")
    return int(found[1])
