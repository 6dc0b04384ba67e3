"""`python -m sweeps plan`: what a study will cost, before anything starts."""

import contextlib
import dataclasses
import math

from attention import precision
from sweeps.launchers import remote
from sweeps.launchers import table as launchers
from sweeps.launchers.protocol import EngineError
from sweeps.monitoring import jax_calls, progress
from sweeps.study import checks
from sweeps.study.study import Study
from workloads import catalog
from workloads.base.options import MESH_AXES

# Two moments in float32, beside the parameter itself; one checkpoint stays when a trial is done.
_BYTES_OF_MOMENTS = 2 * 4
_BYTES = {"float32": 4, "bfloat16": 2}
_LOG_BYTES = 300_000


@dataclasses.dataclass(frozen=True)
class Resources:
    """What trials would run on.

    devices: per trial, of `platform`. trials_per_job: 1 for local, whose worker processes are its
    jobs. jobs: that may be under way at a time, None where that is unknown and `problem` says why.
    side_by_side: trials that one job runs at a time.
    """

    launcher: str
    platform: str
    devices: int
    trials_per_job: int
    jobs: int | None
    side_by_side: int
    problem: str = ""

    @property
    def at_once(self) -> int | None:
        """How many trials run at a time, None where that is unknown."""
        return None if self.jobs is None else self.jobs * self.side_by_side

    def jobs_for(self, trials: int) -> int:
        """Returns how many jobs that many trials are."""
        return -(-trials // self.trials_per_job)

    def wall_steps(self, trials: int, steps: int) -> int | None:
        """Returns how many steps, one after the other, `trials` of `steps` each take at least."""
        return None if self.at_once is None else -(-trials // self.at_once) * steps

    def describe(self) -> str:
        """Returns the resources in words."""
        device = f"{self.devices} {self.platform} device{'s' * (self.devices != 1)} per trial"
        if self.jobs is None:
            return f"launcher {self.launcher}: {device}; jobs at a time unknown: {self.problem}"
        if self.launcher == "local":
            workers = f"{self.jobs} worker{'s' * (self.jobs != 1)}"
            return f"launcher local: {workers}, a trial each at a time, {device}"
        return (
            f"launcher {self.launcher}: at most {self.jobs:,} jobs at a time, each of up to "
            f"{self.trials_per_job} trials, {self.side_by_side} at a time, {device}"
        )


def resources_of(study: Study) -> Resources:
    """Returns the resources that a study's settings describe; an engine may be asked.

    Raises ValueError for settings that the launcher refuses.
    """
    settings = study.settings
    name = settings["launcher"]
    module, own = launchers.module(name), settings[name]
    module.check(settings)
    jobs, problem = None, ""
    try:
        with contextlib.closing(module.launcher(settings, study.directory)) as engine:
            jobs = int(engine.capacity())
    except (EngineError, ValueError, OSError) as error:  # planned on a host without the engine
        if name == "local":
            raise
        problem = str(error)
    trials_per_job = int(own.get("trials_per_job", 1))
    side_by_side = min(int(own.get("workers", 0)) or 1, trials_per_job)
    where = (name, module.platform(settings), module.devices(settings))
    return Resources(*where, trials_per_job, jobs, side_by_side, problem)


@dataclasses.dataclass(frozen=True)
class StageCost:
    """One stage's cost.

    hours: of all trials, one after the other; wall_hours: as many at a time as its resources
    allow, without waiting in an engine's queue. None where that is not known.
    """

    stage: str
    trials: int
    jobs: int
    programs: int
    steps: int
    hours: float | None
    wall_hours: float | None
    disk_gb: float


def lines(study: Study, where: Resources, step_seconds: float | None = None) -> list[StageCost]:
    """Returns the cost per stage; `step_seconds` replaces the table's time per step."""
    entry = catalog.get(study.workload)
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
        wall = where.wall_steps(len(trials), trials[0].steps)
        result.append(
            StageCost(
                stage=stage,
                trials=len(trials),
                jobs=where.jobs_for(len(trials)),
                programs=programs,
                steps=steps,
                hours=_in_hours(steps, seconds),
                wall_hours=_in_hours(wall, seconds),
                disk_gb=len(trials) * size / 1e9,
            )
        )
    return result


def summary(study: Study) -> str:
    """Returns the whole study's trials, steps and wall time in one line, for `run`."""
    entry, where = catalog.get(study.workload), resources_of(study)
    total = _total(lines(study, where))
    known = total.wall_hours is not None and where.devices == entry.devices
    wall = f"about {progress.duration(3600 * (total.wall_hours or 0))}" if known else "unknown time"
    why = entry.step_source if known else "python -m sweeps plan --step_seconds=... reckons it"
    return f"whole study: {total.trials:,} trials, {total.steps:,} steps, {wall} ({why})"


def _in_hours(steps: int | None, seconds: float | None) -> float | None:
    return None if steps is None or seconds is None else steps * seconds / 3600


def memory(study: Study, devices: int = 0, device_gb: float | None = None) -> str:
    """Returns the memory per device that a train step of a Transformer study needs, as text.

    devices: how many share one trial; 0: those that the workload's step time is for, with their
    memory as device_gb unless it is given. Without device_gb nothing is said about fitting. A mesh
    that does not fit the `devices` asked about gives way to the nearest one that does, which is
    said. Empty for other workloads. Nothing is allocated. Raises ValueError where mesh or batch do
    not fit.
    """
    entry, settings = catalog.get(study.workload), study.settings
    if "mesh" not in entry.serves:
        return ""
    options, remark = checks.options(settings), []
    if not devices:  # what the workload is planned for
        devices, device_gb = entry.devices, device_gb or entry.device_gb
    elif (mesh := _mesh_for(options.mesh, devices)) != options.mesh:
        options = dataclasses.replace(options, mesh=mesh)
        fitting = " ".join(
            f"--config.mesh.{axis}={size}" for axis, size in zip(MESH_AXES, mesh, strict=True)
        )
        remark = [
            f"the study's mesh {settings['mesh']} is not for {devices} devices; to run it on them "
            f"as reckoned here, give {fitting}"
        ]
    variant = settings["variants"][-1]
    parts = jax_calls.call(
        jax_calls.memory,
        workload=study.workload,
        variant=variant,
        variant_hyperparameters=checks.variant_hyperparameters(variant, settings),
        options=dataclasses.asdict(options),
        batch_size=settings["batch_size"] // settings["microbatches"],
        devices=devices,
    )
    total = parts.pop("total") / 1e9
    listing = " + ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items())
    data = options.mesh[0] or devices // (options.mesh[1] * options.mesh[2])
    return "\n".join(
        [
            f"memory per device, {devices} of them as data {data} x fsdp {options.mesh[1]} x "
            f"tensor {options.mesh[2]}: {total:.2f} GB{_fits(total, device_gb)}",
            f"    = {listing} ({variant}; activations estimated, workloads/text/memory.py)",
            *remark,
        ]
    )


def _mesh_for(mesh: tuple[int, int, int], devices: int) -> tuple[int, int, int]:
    """Returns the mesh if its sizes multiply to `devices`, else the nearest that do."""
    data, fsdp, tensor = mesh
    if (data or devices // (fsdp * tensor)) * fsdp * tensor == devices:
        return mesh
    tensor = math.gcd(tensor, devices)
    return 0, math.gcd(fsdp, devices // tensor), tensor


def _fits(needed: float, available: float | None) -> str:
    if available is None:
        return ""
    # A tenth stays free for fragmentation and buffers of the network.
    answer = "fits" if needed <= 0.9 * available else "DOES NOT FIT"
    return f", {answer} into 90 % of {available:g} GB"


def render(
    study: Study,
    step_seconds: float | None = None,
    devices: int = 0,
    device_gb: float | None = None,
) -> str:
    """Returns the plan as text; `devices` and `device_gb` as in `memory`."""
    entry, settings = catalog.get(study.workload), study.settings
    where = resources_of(study)
    if devices:
        where = dataclasses.replace(where, devices=devices)
    stages = lines(study, where, step_seconds)
    source = "given by --step_seconds" if step_seconds is not None else entry.step_source
    text = [
        f"study {study.name}: {settings['workload']} ({entry.description}, "
        f"{entry.parameters:,} parameters)",
        f"protocol {settings['protocol']}, {len(study.points)} points of {settings['space']}, "
        f"{len(settings['variants'])} variants, {settings['seeds']} seeds, "
        f"{settings['steps']:,} steps at batch {settings['batch_size']}",
        f"data {study.data_dir}",
        f"directory {study.directory}",
        where.describe(),
        "",
        f"{'stage':<10}{'trials':>8}{'jobs':>8}{'programs':>10}{'steps':>14}{'hours':>10}"
        f"{'wall':>10}{'disk GB':>10}",
    ]
    text += [_row(line) for line in [*stages, _total(stages)]]
    text.append(f"hours: {source or 'no step time known; give --step_seconds'}")
    if step_seconds is None and entry.step_seconds is not None and where.devices != entry.devices:
        text.append(
            f"    but a trial has {where.devices} here, not {entry.devices}: give --step_seconds"
        )
    text.append(
        "wall: hours with as many trials at a time as above, stages one after the other, without "
        "waiting in queues"
    )
    text.append("disk: what stays; a trial holds three times as much while it runs")
    text.append("programs: train steps to compile; every trial of a program shares one")
    platform = launchers.module(settings["launcher"]).platform(settings)
    text.append(precision.describe(settings["matmul_precision"], platform))
    text += [line for line in [memory(study, devices, device_gb)] if line]
    if settings["launcher"] != "local":
        sample = remote.sample(settings)
        text += ["", "a job, as it would be submitted:"]
        text.append(launchers.module(settings["launcher"]).preview(settings, sample).rstrip())
    return "\n".join(text)


def _row(line: StageCost) -> str:
    programs = str(line.programs) if line.programs else ""
    return (
        f"{line.stage:<10} {line.trials:>7} {line.jobs:>7} {programs:>9} {line.steps:>13,}"
        f" {_hours(line.hours):>9} {_hours(line.wall_hours):>9} {line.disk_gb:>9.2f}"
    )


def _total(stages: list[StageCost]) -> StageCost:
    """Returns the sums; programs, which stages share, are left out."""
    return StageCost(
        stage="total",
        trials=sum(line.trials for line in stages),
        jobs=sum(line.jobs for line in stages),
        programs=0,
        steps=sum(line.steps for line in stages),
        hours=_sum([line.hours for line in stages]),
        wall_hours=_sum([line.wall_hours for line in stages]),
        disk_gb=sum(line.disk_gb for line in stages),
    )


def _sum(hours: list[float | None]) -> float | None:
    known = [value for value in hours if value is not None]
    return sum(known) if len(known) == len(hours) else None


def _hours(hours: float | None) -> str:
    if hours is None:
        return "?"
    return f"{hours:,.2f}" if hours < 10 else f"{hours:,.0f}"
