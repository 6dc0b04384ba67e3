"""Workloads by name, ready to train."""

from collections.abc import Mapping
from typing import Any

import jax

from attention import registry as variants
from workloads import catalog
from workloads.base import spec
from workloads.base.options import Options


def make(
    name: str,
    variant: Any = None,
    compute_dtype: str = "float32",
    *,
    extra_paths: Mapping[str, str] | None = None,
    **options: Any,
) -> spec.Workload:
    """Returns a new workload object whose model uses an attention variant.

    variant: from `attention.registry.get`, or None for the plain model. One object serves
    one variant: its compiled functions have it built in. `options` are the other fields of
    `workloads.base.options.Options`. extra_paths: where things lie, by the names in
    `WorkloadSpec.extra_paths`; what is not given is ''.

    Raises ValueError for an unknown name, for a variant that the model already contains, for an
    option that the workload cannot serve, and where a user's row makes no model.
    """
    row = catalog.get(name)
    checked = Options(compute_dtype, **options)
    names, kernel = ((), "xla") if variant is None else ((variant.name,), variant.kernel)
    catalog.check(name, checked, variants=names, kernel=kernel)
    factory = catalog.resolve(name, row.factory)
    paths = {key: (extra_paths or {}).get(key, "") for key in row.extra_paths}
    try:
        return factory(row, variant, checked, **paths)
    except (AttributeError, KeyError, TypeError) as error:
        if not catalog.module_of(name):
            raise
        raise ValueError(
            f"workload {name!r}: its row makes no model: {type(error).__name__}: {error}"
        ) from error


def check_model(name: str) -> str:
    """Returns what is right of a user's model of standard attention.

    Raises ValueError where it cannot be made, or has another number of parameters than its row
    says.
    """
    workload = make(name, variants.get("standard"))
    parameters, _ = jax.eval_shape(workload.init_model_fn, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    if count != (stated := catalog.get(name).parameters):
        raise ValueError(
            f"{name}: its model has {count:,} parameters, and its row says {stated:,}; write "
            f"parameters={count} there"
        )
    return f"model: {count:,} parameters"
