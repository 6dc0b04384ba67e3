"""Workloads by name, ready to train."""

import importlib
from typing import Any

from workloads import spec, table


def make(name: str, variant: Any = None, compute_dtype: str = "float32") -> spec.Workload:
    """Returns a new workload object whose model uses an attention variant.

    variant: from `attention.registry.get`, or None for the plain host model. One object serves
    one variant: its compiled functions have it built in.

    Raises ValueError for an unknown name or compute dtype.
    """
    module, function = table.entry(name).factory.split(":")
    table.check_compute_dtype(compute_dtype)
    factory = getattr(importlib.import_module(module), function)
    return factory(name, variant, compute_dtype)


def data_module(name: str) -> Any:
    """Returns the module that prepares and checks the workload's data. Does not load JAX."""
    return importlib.import_module(table.entry(name).data)
