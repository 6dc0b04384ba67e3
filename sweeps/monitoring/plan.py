"""`python -m sweeps plan`: what a study will cost, before anything starts."""

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from attention import precision
from attention import table as variants_table
from sweeps.launchers import remote
from sweeps.launchers import table as launchers
from sweeps.launchers.protocol import EngineError
from sweeps.monitoring import calibration, hardware, progress
from sweeps.records import layout, status
from sweeps.study import checks
from sweeps.study.study import Study
from workloads import catalog
from workloads.base.options import MESH_AXES
from workloads.base.workload_spec import WorkloadSpec

# Two moments in float32, beside the parameter itself, in each checkpoint that stays.
_BYTES_OF_MOMENTS = 2 * 4
_BYTES = {"float32": 4, "bfloat16": 2}
_LOG_BYTES = 300_000
# Whose input is said where no topology is given and the workload is planned for none.
_GPUS = "h100:1x1x8"
# Whose compiler speaks for a launcher's devices, of which no more than the platform is known.
_KINDS = {"gpu": "h100", "tpu": "v5e"}


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
    launcher_class, own = launchers.launcher_class(name), settings[name]
    launcher_class.check(settings)
    jobs, problem = None, ""
    try:
        with contextlib.closing(launcher_class(settings, study.directory)) as engine:
            jobs = int(engine.capacity())
    except (EngineError, ValueError, OSError) as error:  # planned on a host without the engine
        if name == "local":
            raise
        problem = str(error)
    trials_per_job = int(own.get("trials_per_job", 1))
    side_by_side = min(int(own.get("workers", 0)) or 1, trials_per_job)
    where = (name, launcher_class.platform(settings), launcher_class.devices(settings))
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
    disk_gb: float | None


def lines(study: Study, where: Resources, step_seconds: float | None) -> list[StageCost]:
    """Returns the cost per stage; without `step_seconds` hours are not known."""
    entry = catalog.get(study.workload)
    result = []
    for stage in study.stages:
        # Which point is selected does not change the cost.
        selection = {"points": dict.fromkeys(study.settings["variants"], 0)}
        trials = study.trials(stage, selection)
        steps = sum(trial.steps for trial in trials)
        per_parameter = _BYTES[study.settings["param_dtype"]] + _BYTES_OF_MOMENTS
        kept = min(study.settings["keep_checkpoints"], trials[0].evaluations)
        size = kept * entry.parameters * per_parameter + _LOG_BYTES
        programs = len({trial.program for trial in trials})
        wall = where.wall_steps(len(trials), trials[0].steps)
        result.append(
            StageCost(
                stage=stage,
                trials=len(trials),
                jobs=where.jobs_for(len(trials)),
                programs=programs,
                steps=steps,
                hours=_in_hours(steps, step_seconds),
                wall_hours=_in_hours(wall, step_seconds),
                disk_gb=len(trials) * size / 1e9 if entry.parameters else None,
            )
        )
    return result


def summary(study: Study) -> str:
    """Returns the study's trials, steps and wall time in a line, for `run`.

    Before it, for models at full size on accelerators, what a device needs.
    """
    entry, where = catalog.get(study.workload), resources_of(study)
    seconds, source = entry.step_time(study.settings["batch_size"])
    total = _total(lines(study, where, seconds))
    known = total.wall_hours is not None and where.devices == entry.devices
    wall = f"about {progress.duration(3600 * (total.wall_hours or 0))}" if known else "unknown time"
    why = source if known else "python -m sweeps plan --topology=... reckons it"
    if not entry.parameters:
        why = "python -m sweeps plan --step_seconds=... reckons it"
    text = f"whole study: {total.trials:,} trials, {total.steps:,} steps, {wall} ({why})"
    if not entry.stands_in_for and where.platform in _KINDS:
        kind = _KINDS[where.platform]
        here = hardware.Topology(f"devices such as {kind}", kind, (where.devices,))
        needs, _ = on_hardware(study, here, judged=False)
        text = "\n".join(one for one in (needs, text) if one)
    return text


def later(study: Study, after: Sequence[Study]) -> progress.Later | None:
    """Returns what comes after each stage of `study` and then of the studies `after` it.

    Trials that are finished are left out. None where a time is not known: small twins alone have
    one for each host.
    """
    known: dict[tuple[str, str], float] = {}
    for one in (study, *after):
        seconds, _ = catalog.get(one.workload).step_time(one.settings["batch_size"])
        if seconds is None or not catalog.get(one.workload).stands_in_for:
            return None
        where = resources_of(one)
        if where.at_once is None:
            return None
        for cost in lines(one, where, seconds):
            steps = cost.steps // cost.trials
            left = cost.trials - _finished(one.directory / cost.stage)
            wall = where.wall_steps(max(left, 0), steps) or 0
            known[str(one.directory), cost.stage] = wall * seconds
    stages, result = list(known), {}
    for number, (directory, stage) in enumerate(stages):
        if directory == str(study.directory):
            result[stage] = sum(known[name] for name in stages[number + 1 :])
    seconds, _ = catalog.get(study.workload).step_time(study.settings["batch_size"])
    return progress.Later(result, seconds or math.nan)


def _finished(stage: pathlib.Path) -> int:
    """Returns how many trials of a stage's directory will not run again, as `Progress` counts."""
    found = stage.glob(f"*/*/trial_*/{layout.STATUS}")
    return sum(status.read(file.parent)["state"] in ("done", "diverged") for file in found)


def _in_hours(steps: int | None, seconds: float | None) -> float | None:
    return None if steps is None or seconds is None else steps * seconds / 3600


def on_hardware(
    study: Study, where: hardware.Topology, device_gb: float | None = None, judged: bool = True
) -> tuple[str, float | None]:
    """Returns what a train step needs on accelerators, as text, and its seconds if they are known.

    From a model of what their compiler says (`calibration`), for the variant that needs most.
    device_gb: instead of what the kind of device has. judged: say whether it fits. A mesh that is
    not for so many devices gives way to the nearest one that is, which is said. Empty where the
    model knows nothing of the workload. Raises ValueError where mesh, batch or kernel do not fit.
    """
    settings = study.settings
    platform = "gpu" if where.hardware.platform == "cuda" else where.hardware.platform
    able = variants_table.KERNELS[settings["kernel"]].platforms
    if able and platform not in able:
        raise ValueError(
            f"kernel {settings['kernel']!r} runs on {' and '.join(able)}, not on {where.text}: "
            "choose another by --config.kernel"
        )
    remark = []
    mesh = checks.options(settings).mesh
    if (fitting := _mesh_for(mesh, where.devices)) != mesh:
        study = dataclasses.replace(
            study, settings={**settings, "mesh": dict(zip(MESH_AXES, fitting, strict=True))}
        )
        given = " ".join(
            f"--config.mesh.{axis}={size}" for axis, size in zip(MESH_AXES, fitting, strict=True)
        )
        remark = [
            f"    the study's mesh {settings['mesh']} is not for {where.devices} devices; to run "
            f"it on them as reckoned here, give {given}"
        ]
    known = calibration.predict(study, where)
    if not known:
        return "", None
    variant, found = max(known.items(), key=lambda item: item[1].total_gb)
    answer = ""
    if judged:
        gb = where.hardware.usable_gb(device_gb)
        answer = f", {calibration.verdict(found.total_gb, gb)}: {gb:.4g} GB can be had"
    listing = " + ".join(f"{part} {size:.2f}" for part, size in found.memory_gb.items() if size)
    seconds = None if found.step_ms is None else found.step_ms / 1e3
    time = "" if seconds is None else f", {seconds:.3g} s a step"
    if found.least_ms is not None:
        time = f", at least {found.least_ms / 1e3:.3g} s a step"
    data = fitting[0] or where.devices // (fitting[1] * fitting[2])
    text = [
        f"on {where.text}, {where.devices} devices as data {data} x fsdp {fitting[1]} x tensor "
        f"{fitting[2]}, per device: {found.total_gb:.2f} GB{answer}{time}",
        f"    = {listing} ({variant}; within {calibration.TOLERANCE:.0%} of the compiler on what "
        "it was asked, docs/performance.md)",
        *remark,
    ]
    return "\n".join(text), seconds


def _mesh_for(mesh: tuple[int, int, int], devices: int) -> tuple[int, int, int]:
    """Returns the mesh if its sizes multiply to `devices`, else the nearest that do."""
    data, fsdp, tensor = mesh
    if (data or devices // (fsdp * tensor)) * fsdp * tensor == devices:
        return mesh
    tensor = math.gcd(tensor, devices)
    return 0, math.gcd(fsdp, devices // tensor), tensor


def render(
    study: Study,
    step_seconds: float | None = None,
    topology: str = "",
    device_gb: float | None = None,
) -> str:
    """Returns the plan as text, for the workload's own topology unless one is given.

    Raises ValueError for a topology that does not exist or that mesh, batch or kernel do not fit.
    """
    entry, settings = catalog.get(study.workload), study.settings
    where = resources_of(study)
    needs, devices = "", entry.devices
    seconds, source = entry.step_time(settings["batch_size"])
    if topology or entry.topology:
        found = hardware.topology(topology or entry.topology)
        needs, predicted = on_hardware(study, found, device_gb)
        needs = needs or f"on {found.text}: no figures of a compiler are known for {entry.name}"
        if predicted is not None:
            seconds, devices = predicted, found.devices
            source = f"hours of {found.text}: {predicted:.3g} s a step, as said below"
        if topology:
            where = dataclasses.replace(where, devices=found.devices)
    if step_seconds is not None:
        seconds, devices, source = step_seconds, where.devices, "given by --step_seconds"
    stages = lines(study, where, seconds)
    size = (
        f"{entry.parameters:,} parameters" if entry.parameters else "of the size that it is given"
    )
    text = [
        f"study {study.name}: {settings['workload']} ({entry.description}, {size})",
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
    if seconds is not None and where.devices != devices:
        text.append(
            f"    but a trial has {where.devices} here, not {devices}: give --topology or "
            "--step_seconds"
        )
    text.append(
        "wall: hours with as many trials at a time as above, stages one after the other, without "
        "waiting in queues"
    )
    text.append("disk: what stays; a trial holds three times as much while it runs")
    text.append("programs: train steps to compile; every trial of a program shares one")
    text.append(precision.describe(settings["matmul_precision"], where.platform))
    text += [needs] if needs else []
    if entry.example_cpu_ms is not None:
        bound = ""
        if not step_seconds and (topology or not entry.topology):
            judged = bool(topology) or where.platform == "gpu"
            bound = _most_input(study, topology or _GPUS, judged)
        if seconds is not None and not (topology and bound):
            text.append(_input(entry, settings, seconds))
        text += [bound] if bound else []
    if settings["launcher"] != "local":
        sample = remote.sample(settings)
        text += ["", "a job, as it would be submitted:"]
        text.append(
            launchers.launcher_class(settings["launcher"]).preview(settings, sample).rstrip()
        )
    return "\n".join(text)


def _input(entry: WorkloadSpec, settings: dict[str, Any], seconds: float) -> str:
    """Returns how many cores must read and decode so that steps of so many seconds do not wait."""
    workers = settings["loader_workers"]
    said, cores = _cores(entry, settings, seconds)
    short = "" if workers >= cores else ": too few, training will wait for its input"
    return f"input: {said}; loader_workers is {workers}{short}"


def _cores(entry: WorkloadSpec, settings: dict[str, Any], seconds: float) -> tuple[str, float]:
    assert entry.example_cpu_ms is not None
    rate = settings["batch_size"] / seconds
    cores = rate * entry.example_cpu_ms / 1e3
    return (
        f"{rate:,.0f} {entry.unit}/s at {entry.example_cpu_ms} ms of a CPU core each take "
        f"{cores:.1f} cores of a trial's hosts"
    ), cores


def _most_input(study: Study, topology: str, judged: bool) -> str:
    """Returns `_input` for GPUs of which no more than the least time of a step is known, else ''.

    judged: say whether the study's loader_workers are enough for them.
    """
    known = calibration.predict(study, hardware.topology(topology)).values()
    least = min((one.least_ms for one in known if one.least_ms is not None), default=None)
    if least is None:
        return ""
    settings, seconds = study.settings, least / 1e3
    said, cores = _cores(catalog.get(study.workload), settings, seconds)
    workers = settings["loader_workers"]
    verdict = f"; loader_workers is {workers}" if judged else ""
    if judged and workers < cores:
        verdict += ": too few if steps were as short as that"
    return (
        f"input on {topology}, were a step no longer than its bytes take at the memory's full "
        f"bandwidth or its products at the peak ({seconds:.3g} s): {said}{verdict}"
    )


def _row(line: StageCost) -> str:
    programs = str(line.programs) if line.programs else ""
    disk = "?" if line.disk_gb is None else f"{line.disk_gb:.2f}"
    return (
        f"{line.stage:<10} {line.trials:>7} {line.jobs:>7} {programs:>9} {line.steps:>13,}"
        f" {_hours(line.hours):>9} {_hours(line.wall_hours):>9} {disk:>9}"
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
        disk_gb=_sum([line.disk_gb for line in stages]),
    )


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _hours(hours: float | None) -> str:
    if hours is None:
        return "?"
    return f"{hours:,.2f}" if hours < 10 else f"{hours:,.0f}"
