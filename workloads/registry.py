"""Workloads by name, ready to train."""

import pkgutil
from collections.abc import Mapping
from typing import Any

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

    Raises ValueError for an unknown name, for a variant that the model already contains, and for
    an option that the workload cannot serve.
    """
    row = catalog.get(name)
    checked = Options(compute_dtype, **options)
    variants, kernel = ((), "xla") if variant is None else ((variant.name,), variant.kernel)
    catalog.check(name, checked, variants=variants, kernel=kernel)
    factory = pkgutil.resolve_name(row.factory)
    paths = {key: (extra_paths or {}).get(key, "") for key in row.extra_paths}
    return factory(row, variant, checked, **paths)
