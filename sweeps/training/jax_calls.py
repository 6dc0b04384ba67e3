"""What a driver wants to know and only JAX or data libraries can tell; see
sweeps.training.subprocesses."""

from typing import Any


def memory(
    workload: str,
    variant: str,
    variant_hyperparameters: dict[str, Any],
    options: dict[str, Any],
    batch_size: int,
    devices: int,
) -> dict[str, int]:
    """Returns `workloads.text.memory.per_device`: bytes by part, and their total.

    options: the fields of workloads.base.options.Options. Raises ValueError where mesh or batch do
    not fit.
    """
    from attention import registry
    from workloads.base.options import Options
    from workloads.text import memory

    return memory.per_device(
        workload,
        Options(**{**options, "mesh": tuple(options["mesh"])}),  # JSON has lists
        batch_size=batch_size,
        devices=devices,
        variant=registry.get(variant, **variant_hyperparameters),
    )


def data(workload: str, data_dir: str, places: dict[str, str] | None = None) -> dict[str, Any]:
    """Checks a workload's data, which embedded workloads make where it is absent.

    places: where else things lie, by the names in `WorkloadSpec.extra_paths` (workloads.base).
    Returns {"lines": what was found, "reference": {"note", "rows"} of simple methods or None}.
    Raises ValueError naming the directory, the file and the command that repairs it.
    """
    from workloads import catalog

    entry = catalog.get(workload)
    module = catalog.data_module(workload)
    lines: list[str] = []
    if entry.embedded:
        module.prepare(data_dir)
    else:
        given = {name: where for name, where in (places or {}).items() if name in entry.extra_paths}
        lines = list(module.check(data_dir, **given))
    if not hasattr(module, "read_reference"):
        return {"lines": lines, "reference": None}
    reference = module.read_reference(data_dir)
    return {"lines": lines, "reference": {name: reference[name] for name in ("note", "rows")}}
