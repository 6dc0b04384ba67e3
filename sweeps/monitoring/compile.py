"""`python -m sweeps compile`: what an accelerator's own compiler says of a study's train step.

Definitions (per device and step):

- memory_gb: arguments + outputs − aliases + scratch + code; peak_gb: XLA's own peak. 10⁹ bytes.
- xla_ms: the TPU compiler's estimated cycles by the clock of `accelerators`; it knows no waiting
  for the network or for transfers. kernel_ms: of kernels, which carry no cycles: what their
  instructions take (bundles × grid steps / clock), their products at the matrix units' peak, or
  their bytes at the memory's bandwidth, whichever is most. step_ms: both. A GPU's compiler gives
  no times without a device: null.
- hbm_gb: bytes read and written in main memory, kernels' included, which are kernel_hbm_gb.
- plan_gb, plan_ms: what `plan` says of memory_gb and step_ms, null where it says nothing.
- flops: matrix products and convolutions of the program, recomputation included; model_flops: the
  model's (`workloads list`); utilisation: model_flops over what the device can do in step_ms.
"""

import json
from typing import Any

from sweeps.monitoring import calibration, compiled_step, jax_calls
from sweeps.study.study import Study
from sweeps.study.trial import Trial
from sweeps.training import accelerators
from workloads import catalog


def rows(study: Study, topology: str, plain: bool = False) -> list[dict[str, Any]]:
    """Returns a row per variant of the study, with its kernel, compiled one after the other.

    plain: with the attention that the host model has of itself, whatever the variant: a peer's.

    Raises ValueError where the topology does not exist, its compiler is not installed, or mesh and
    batch do not fit it.
    """
    where = accelerators.topology(topology)
    settings, model = study.settings, model_flops(study, where)
    first = first_trials(study)
    planned = calibration.predict(study, where)
    compiled: list[dict[str, Any]] = []
    for variant in settings["variants"]:
        report = jax_calls.call(
            compiled_step.compiled, trial=first[variant], topology=topology, plain=plain
        )
        row = {
            "variant": variant,
            "kernel": settings["kernel"],
            **figures(where, report, model),
        }
        prediction = planned.get(variant)
        row["plan_gb"] = prediction and prediction.total_gb
        row["plan_ms"] = prediction and prediction.step_ms
        compiled.append(row)
    return compiled


def first_trials(study: Study) -> dict[str, Trial]:
    """Returns a trial of each variant: all of a variant have one train step."""
    selection = {"points": dict.fromkeys(study.settings["variants"], 0)}
    return {one.variant: one for one in reversed(study.trials(study.stages[-1], selection))}


def model_flops(study: Study, where: accelerators.Topology) -> float | None:
    """Returns the model's FLOP of a step on one of the devices; None where no formula is kept."""
    model = catalog.get(study.workload).flops
    return None if model is None else model * study.settings["batch_size"] / where.devices


def figures(
    where: accelerators.Topology, report: dict[str, Any], model_flops: float | None
) -> dict[str, Any]:
    """Returns the figures of a row from a report of `compiled_step`."""
    if "out_of_memory" in report:
        return {**dict.fromkeys(_FIELDS), "fits": False, "warnings": [report["out_of_memory"]]}
    row: dict[str, Any] = {}
    device = where.accelerator
    memory = sum(report["memory"].values())
    times: dict[str, float | None] = dict.fromkeys(("step_ms", "xla_ms", "kernel_ms"))
    if device.platform == "tpu":
        by_part = {part: _ms(cycles, device) for part, cycles in report["parts"].items()}
        kernels = {call: _ms(cycles, device) for call, cycles in report["kernels"].items()}
        xla, own = sum(by_part.values()), sum(kernels.values())
        times = {"step_ms": xla + own, "xla_ms": xla, "kernel_ms": own}
        row |= {"parts_ms": by_part, "kernels_ms": kernels}
    return {
        **row,
        "memory_gb": memory / 1e9,
        "peak_gb": None if report["peak"] is None else report["peak"] / 1e9,
        # A TPU's compiler refuses what does not fit.
        "fits": device.platform == "tpu" or memory / 1e9 <= device.usable_gb(),
        **times,
        "hbm_gb": report["hbm"] / 1e9,
        "kernel_hbm_gb": report["kernel_hbm"] / 1e9,
        "collectives_gb": report["collectives"] / 1e9,
        "flops": report["flops"],
        "model_flops": model_flops,
        "custom_calls": {call: int(times) for call, times in report["calls"].items()},
        "warnings": report["warnings"],
        "memory_parts_gb": {part: size / 1e9 for part, size in report["memory"].items()},
        "compile_cpu_seconds": report["cpu_seconds"],
        "versions": report["versions"],
    }


_FIELDS = (
    "memory_gb",
    "peak_gb",
    "fits",
    "step_ms",
    "xla_ms",
    "kernel_ms",
    "hbm_gb",
    "kernel_hbm_gb",
    "collectives_gb",
    "flops",
    "model_flops",
    "custom_calls",
    "warnings",
)


def _ms(cycles: float, device: accelerators.Accelerator) -> float:
    return cycles / device.clock_ghz / 1e6


def as_json(study: Study, topology: str, compiled: list[dict[str, Any]]) -> str:
    """Returns one object with the rows, as the design pins it."""
    return json.dumps({"study": study.name, "topology": topology, "rows": compiled}, indent=1)


def render(study: Study, topology: str, compiled: list[dict[str, Any]]) -> str:
    """Returns the rows as text: memory by part, times by part, traffic, warnings, ratios."""
    where = accelerators.topology(topology)
    text = [
        f"study {study.name} on {topology}: {where.devices} devices of "
        f"{where.accelerator.memory_gb:.1f} GB, as compiled; nothing was run"
    ]
    for row in compiled:
        text += ["", *_lines(row, compiled, study, where)]
    return "\n".join(text)


def _lines(
    row: dict[str, Any], compiled: list[dict[str, Any]], study: Study, where: accelerators.Topology
) -> list[str]:
    if row["memory_gb"] is None:
        return [
            f"{_name(row)}: OUT OF MEMORY, {row['warnings'][0]}{_planned(row, 'plan_gb', 'GB')}",
            f"    {_remedy(study.settings, where)}",
        ]
    parts = " + ".join(f"{part} {size:.3g}" for part, size in row["memory_parts_gb"].items())
    peak = "" if row["peak_gb"] is None else f", peak {row['peak_gb']:.4g}"
    fits = "yes" if row["fits"] else "NO"
    planned = _planned(row, "plan_gb", "GB")
    lines = [f"{_name(row)}: {row['memory_gb']:.4g} GB{planned}{peak}, fits: {fits}"]
    lines.append(f"    memory = {parts}")
    if not row["fits"]:
        lines.append(f"    {_remedy(study.settings, where)}")
    if row["step_ms"] is not None:
        lines.append(
            f"    step {row['step_ms']:.4g} ms{_planned(row, 'plan_ms', 'ms')}"
            f"{_share(row, where)}{_ratio(row, compiled, study)}"
        )
        times = {**row["parts_ms"], **{f"kernel {k}": ms for k, ms in row["kernels_ms"].items()}}
        ordered = sorted(times.items(), key=lambda item: -item[1])
        lines.append("    = " + " + ".join(f"{part} {ms:.3g}" for part, ms in ordered))
    lines.append(
        f"    main memory {row['hbm_gb']:.4g} GB (kernels {row['kernel_hbm_gb']:.4g}), collectives "
        f"{row['collectives_gb']:.4g} GB, program {row['flops'] / 1e12:.4g} TFLOP"
    )
    calls = ", ".join(f"{call} × {times}" for call, times in row["custom_calls"].items())
    lines.append(f"    calls: {calls or 'none'}")
    lines += [f"    warning: {warning}" for warning in row["warnings"]]
    versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
    lines.append(f"    compiled in {row['compile_cpu_seconds']:.0f} CPU-s by {versions}")
    return lines


def _name(row: dict[str, Any]) -> str:
    return f"{row['variant']} by {row['kernel']}"


def _planned(row: dict[str, Any], key: str, unit: str) -> str:
    return "" if row[key] is None else f" (plan: {row[key]:.4g} {unit})"


def share_of_peak(row: dict[str, Any], topology: str) -> float | None:
    """Returns the model's FLOP over what the device can do in a step's time; None without both."""
    if row["model_flops"] is None or row["step_ms"] is None:
        return None
    device = accelerators.topology(topology).accelerator
    return float(row["model_flops"] / (row["step_ms"] / 1e3 * device.peak_tflops * 1e12))


def _share(row: dict[str, Any], where: accelerators.Topology) -> str:
    share = share_of_peak(row, where.text)
    if share is None:
        return ""
    return (
        f", {share:.1%} of peak by the model's {row['model_flops'] / 1e12:.4g} TFLOP "
        f"(program: {row['flops'] / row['model_flops']:.2f} times as many)"
    )


def _ratio(row: dict[str, Any], compiled: list[dict[str, Any]], study: Study) -> str:
    wanted = study.settings["baseline"], row["kernel"]
    baseline = next(one for one in compiled if (one["variant"], one["kernel"]) == wanted)
    if row is baseline or baseline["step_ms"] is None:
        return ""
    return f", {row['step_ms'] / baseline['step_ms']:.3f} times {baseline['variant']}"


def _remedy(settings: dict[str, Any], where: accelerators.Topology) -> str:
    """Returns what to change where a step does not fit, the least costly first."""
    changes = []
    if not settings["remat"]:
        changes.append("--config.remat=True")
    fsdp = settings["mesh"]["fsdp"]
    if fsdp < where.devices:
        changes.append(f"--config.mesh.fsdp={min(2 * fsdp, where.devices)}")
    if settings["compute_dtype"] == "float32":
        changes.append("--config.compute_dtype=bfloat16")
    changes.append("more devices")
    return f"what would make it smaller: {', '.join(changes)}"
