"""`python -m sweeps compile`: what an accelerator's own compiler says of a study's train step.

Definitions (per device and step):

- memory_gb: arguments + outputs − aliases + scratch + code, in 10⁹ bytes. peak_gb: XLA's own peak.
- xla_ms: the TPU compiler's estimate, its cycles over the clock of `accelerators`.
- kernel_ms: the time of kernels, for which the compiler gives no cycles. It is the largest of three
  times: instructions (bundles × grid steps / clock), matrix products at the peak of the matrix
  units, and bytes at the bandwidth of main memory.
- step_ms: xla_ms + kernel_ms. Null for GPUs, whose compiler estimates no time without a device.
- hbm_gb: bytes read and written in main memory. kernel_hbm_gb: the kernels' share of them.
- flops: matrix products and convolutions of the program, recomputation included. model_flops: those
  of the model (`workloads list`). Utilisation: model_flops over what the device can do in step_ms.
"""

import json
from typing import Any

from attention.common import accelerators
from sweeps.compilers import compiled_step
from sweeps.study import jax_calls
from sweeps.study.study import Study
from sweeps.study.trial import Trial
from workloads import catalog


def rows(study: Study, topology: str, plain: bool = False) -> list[dict[str, Any]]:
    """Returns a row per variant of the study, with its kernel, compiled one after the other.

    plain: with the attention that the model has of itself, whatever the variant: a peer's.

    Raises ValueError where the topology does not exist, its compiler is not installed, or mesh and
    batch do not fit it.
    """
    where = accelerators.topology(topology)
    settings, trials = study.settings, first_trials(study)
    return [
        {
            "variant": variant,
            "kernel": settings["kernel"],
            **jax_calls.call(
                compiled_step.compiled, trial=trials[variant], topology=topology, plain=plain
            ),
            "model_flops": model_flops(study, where),
        }
        for variant in settings["variants"]
    ]


def first_trials(study: Study) -> dict[str, Trial]:
    """Returns a trial of each variant: all of a variant have one train step."""
    trials = study.trials(
        study.stages[-1], {"points": dict.fromkeys(study.settings["variants"], 0)}
    )
    return {trial.variant: trial for trial in reversed(trials)}


def model_flops(study: Study, where: accelerators.Topology) -> float | None:
    """Returns the model's FLOP of a step on one of the devices; None where no formula is kept."""
    model = catalog.get(study.workload).flops
    return None if model is None else model * study.settings["batch_size"] / where.devices


# Where a step does not fit, the least costly first.
_REMEDY = (
    "    what would make it smaller: --config.remat=True, a larger --config.mesh.fsdp, "
    "--config.compute_dtype=bfloat16, more devices"
)


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
    name = f"{row['variant']} by {row['kernel']}"
    remedy = [] if row["fits"] else [_REMEDY]
    if row["memory_gb"] is None:
        return [f"{name}: OUT OF MEMORY, {row['warnings'][0]}", *remedy]
    parts = " + ".join(f"{part} {size:.3g}" for part, size in row["memory_parts_gb"].items())
    lines = [
        f"{name}: {row['memory_gb']:.4g} GB, peak {row['peak_gb']:.4g}, fits: "
        + ("yes" if row["fits"] else "NO"),
        f"    memory = {parts}",
        *remedy,
    ]
    if row["step_ms"] is not None:
        share = share_of_peak(row, where.accelerator)
        peak = ratio = ""
        if share is not None:
            peak = (
                f", {share:.1%} of peak by the model's {row['model_flops'] / 1e12:.4g} TFLOP "
                f"(program: {row['flops'] / row['model_flops']:.2f} times as many)"
            )
        wanted = study.settings["baseline"], row["kernel"]
        baseline = next(row for row in compiled if (row["variant"], row["kernel"]) == wanted)
        if row is not baseline and baseline["step_ms"] is not None:
            ratio = f", {row['step_ms'] / baseline['step_ms']:.3f} times {baseline['variant']}"
        lines.append(f"    step {row['step_ms']:.4g} ms{peak}{ratio}")
        kernels = {f"kernel {kernel}": ms for kernel, ms in row["kernels_ms"].items()}
        times = sorted((row["parts_ms"] | kernels).items(), key=lambda item: -item[1])
        lines.append("    = " + " + ".join(f"{part} {ms:.3g}" for part, ms in times))
    calls = ", ".join(f"{call} × {times}" for call, times in row["custom_calls"].items())
    versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
    return [
        *lines,
        f"    main memory {row['hbm_gb']:.4g} GB (kernels {row['kernel_hbm_gb']:.4g}), collectives "
        f"{row['collectives_gb']:.4g} GB, program {row['flops'] / 1e12:.4g} TFLOP",
        f"    calls: {calls or 'none'}",
        *(f"    warning: {warning}" for warning in row["warnings"]),
        f"    compiled by {versions}",
    ]


def share_of_peak(row: dict[str, Any], device: accelerators.Accelerator) -> float | None:
    """Returns the model's FLOP over what the device can do in a step's time; None without both."""
    if row["model_flops"] is None or row["step_ms"] is None:
        return None
    return float(row["model_flops"] / (row["step_ms"] / 1e3 * device.peak_tflops * 1e12))
