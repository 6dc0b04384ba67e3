"""Workloads by name, ready to train."""

import importlib
from collections.abc import Mapping
from typing import Any

from workloads import table
from workloads.base import spec
from workloads.base.options import Options


def make(
    name: str,
    variant: Any = None,
    compute_dtype: str = "float32",
    *,
    places: Mapping[str, str] | None = None,
    **options: Any,
) -> spec.Workload:
    """Returns a new workload object whose model uses an attention variant.

    variant: from `attention.registry.get`, or None for the plain host model. One object serves
    one variant: its compiled functions have it built in. `options` are the other fields of
    `workloads.base.options.Options`. places: where things lie, by the names in `Entry.places`; what
    is not given is ''.

    Raises ValueError for an unknown name or option, and for one the workload cannot serve.
    """
    entry = table.entry(name)
    module, function = entry.factory.split(":")
    known = Options.__dataclass_fields__
    for option in options:
        if option not in known:
            raise ValueError(f"unknown option {option!r} of a workload. Known: {', '.join(known)}")
    factory = getattr(importlib.import_module(module), function)
    found = {place: (places or {}).get(place, "") for place in entry.places}
    workload: spec.Workload = factory(name, variant, Options(compute_dtype, **options), **found)
    return workload


def data_module(name: str) -> Any:
    """Returns what prepares and checks the workload's data: a module, or an object like one."""
    return table.data_module(name)
