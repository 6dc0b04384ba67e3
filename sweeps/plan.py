"""`python -m sweeps plan`: what a study will cost, before anything starts."""

import dataclasses

from sweeps import study_checks, subprocesses
from sweeps.study import Study
from workloads import table as workloads_table

# Two moments in float32, beside the parameter itself; one checkpoint stays when a trial is done.
_BYTES_OF_MOMENTS = 2 * 4
_BYTES = {"float32": 4, "bfloat16": 2}
_LOG_BYTES = 300_000


@dataclasses.dataclass(frozen=True)
class Line:
    """One stage's cost. device_hours is None where no step time is known."""

    stage: str
    trials: int
    programs: int
    steps: int
    device_hours: float | None
    disk_gb: float


def lines(study: Study, step_seconds: float | None = None) -> list[Line]:
    """Returns the cost per stage; `step_seconds` replaces the table's time per step."""
    entry = workloads_table.entry(study.workload)
    seconds = step_seconds if step_seconds is not None else entry.step_seconds
    result = []
    for stage in study.stages:
        # Which point is selected does not change the cost.
        selection = {"points": dict.fromkeys(study.settings["variants"], 0)}
        trials = study.trials(stage, selection)
        steps = sum(trial.steps for trial in trials)
        per_parameter = _BYTES[study.settings["param_dtype"]] + _BYTES_OF_MOMENTS
        size = entry.parameters * per_parameter + _LOG_BYTES
        programs = len({trial.program for trial in trials})
        hours = None if seconds is None else steps * seconds / 3600
        result.append(Line(stage, len(trials), programs, steps, hours, len(trials) * size / 1e9))
    return result


def memory(study: Study, devices: int = 0, device_gb: float | None = None) -> str:
    """Returns the memory per device that a train step of a Transformer study needs, as text.

    devices: how many share one trial; 0: those that the workload's step time is for, with their
    memory as device_gb unless it is given. Without device_gb nothing is said about fitting. Empty
    for other workloads. Nothing is allocated. Raises ValueError where mesh or batch do not fit.
    """
    entry, settings = workloads_table.entry(study.workload), study.settings
    if "mesh" not in entry.serves:
        return ""
    if not devices:
        devices, device_gb = entry.devices, device_gb or entry.device_gb
    options = study_checks.options(settings)
    variant = settings["variants"][-1]
    parts = subprocesses.call(
        "memory",
        workload=study.workload,
        variant=variant,
        variant_hyperparameters=study_checks.variant_hyperparameters(variant, settings),
        options=dataclasses.asdict(options),
        batch_size=settings["batch_size"],
        devices=devices,
    )
    total = parts.pop("total") / 1e9
    listing = " + ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items())
    data = options.mesh[0] or devices // (options.mesh[1] * options.mesh[2])
    return "\n".join(
        [
            f"memory per device, {devices} of them as data {data} x fsdp {options.mesh[1]} x "
            f"tensor {options.mesh[2]}: {total:.2f} GB{_fits(total, device_gb)}",
            f"    = {listing} ({variant}; activations estimated, workloads/memory.py)",
        ]
    )


def _fits(needed: float, available: float | None) -> str:
    if available is None:
        return ""
    # A tenth stays free for fragmentation and buffers of the network.
    verdict = "fits" if needed <= 0.9 * available else "DOES NOT FIT"
    return f", {verdict} into 90 % of {available:g} GB"


def render(
    study: Study,
    step_seconds: float | None = None,
    devices: int = 0,
    device_gb: float | None = None,
) -> str:
    """Returns the plan as text; `devices` and `device_gb` as in `memory`."""
    entry, settings = workloads_table.entry(study.workload), study.settings
    stages = lines(study, step_seconds)
    source = "given by --step_seconds" if step_seconds is not None else entry.step_source
    text = [
        f"study {study.name}: {settings['workload']} ({entry.description}, "
        f"{entry.parameters:,} parameters)",
        f"protocol {settings['protocol']}, {len(study.points)} points of {settings['space']}, "
        f"{len(settings['variants'])} variants, {settings['seeds']} seeds, "
        f"{settings['steps']:,} steps at batch {settings['batch_size']}",
        f"data {study.data_dir}",
        f"directory {study.directory}",
        "",
        f"{'stage':<10}{'trials':>8}{'programs':>10}{'steps':>14}{'hours':>10}{'disk GB':>10}",
    ]
    text += [
        f"{line.stage:<10}{line.trials:>8}{line.programs:>10}{line.steps:>14,}"
        f"{_hours(line.device_hours):>10}{line.disk_gb:>10.2f}"
        for line in stages
    ]
    total = [line.device_hours for line in stages if line.device_hours is not None]
    text.append(
        f"{'total':<10}{sum(line.trials for line in stages):>8}{'':>10}"
        f"{sum(line.steps for line in stages):>14,}"
        f"{_hours(sum(total) if total else None):>10}{sum(s.disk_gb for s in stages):>10.2f}"
    )
    text.append(f"hours: {source or 'no step time known; give --step_seconds'}")
    text.append("disk: what stays; a trial holds three times as much while it runs")
    text.append("programs: train steps to compile; every trial of a program shares one")
    text += [line for line in [memory(study, devices, device_gb)] if line]
    return "\n".join(text)


def _hours(hours: float | None) -> str:
    if hours is None:
        return "?"
    return f"{hours:,.2f}" if hours < 10 else f"{hours:,.0f}"
