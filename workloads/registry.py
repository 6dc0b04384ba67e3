"""Workloads by name, ready to train."""

import importlib
from typing import Any

from workloads import spec, table
from workloads.options import Options


def make(
    name: str, variant: Any = None, compute_dtype: str = "float32", **options: Any
) -> spec.Workload:
    """Returns a new workload object whose model uses an attention variant.

    variant: from `attention.registry.get`, or None for the plain host model. One object serves
    one variant: its compiled functions have it built in. `options` are the other fields of
    `workloads.options.Options`.

    Raises ValueError for an unknown name or option, and for one the workload cannot serve.
    """
    module, function = table.entry(name).factory.split(":")
    known = Options.__dataclass_fields__
    for option in options:
        if option not in known:
            raise ValueError(f"unknown option {option!r} of a workload. Known: {', '.join(known)}")
    factory = getattr(importlib.import_module(module), function)
    workload: spec.Workload = factory(name, variant, Options(compute_dtype, **options))
    return workload


def data_module(name: str) -> Any:
    """Returns the module that prepares and checks the workload's data. Does not load JAX."""
    return importlib.import_module(table.entry(name).data)
