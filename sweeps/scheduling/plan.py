"""`python -m sweeps plan`: what a study will cost, before anything starts."""

import contextlib
import dataclasses
import heapq
import math
from collections.abc import Sequence

from attention.common import precision
from sweeps.launchers import remote
from sweeps.launchers import table as launchers
from sweeps.launchers.protocol import EngineError
from sweeps.monitoring import view
from sweeps.study.study import Study
from sweeps.study.trial import Trial, WorkItem, jobs_of
from workloads import catalog

# Two moments in float32, beside the parameter itself, in each checkpoint that stays.
_BYTES_OF_MOMENTS = 2 * 4
_BYTES = {"float32": 4, "bfloat16": 2}
_LOG_BYTES = 300_000
# Seconds of a job's start, of a program's compilation and of an evaluation with its checkpoint:
# digits_vit on two CPU cores with two workers, an empty cache of programs. The driver's own few
# seconds are in the start. Large models take longer to compile and to evaluate.
START_S, COMPILE_S, EVALUATE_S = 5.0, 5.0, 0.5


@dataclasses.dataclass(frozen=True)
class Resources:
    """What trials would run on.

    devices: per trial, of `platform`. trials_per_job: None for local, whose jobs share a stage's
    trials. jobs: that may run at a time, None if that is unknown and `problem` says why.
    side_by_side: trials that one job runs at a time.
    """

    launcher: str
    platform: str
    devices: int
    trials_per_job: int | None
    jobs: int | None
    side_by_side: int
    problem: str = ""

    def grouped(self, trials: Sequence[WorkItem]) -> list[list[WorkItem]]:
        """Returns the trials of each job, as the scheduler submits them."""
        if self.trials_per_job is not None:
            return jobs_of(trials, self.trials_per_job)
        workers = min(self.jobs or 1, len(trials))
        return [list(trials[worker::workers]) for worker in range(workers)]

    def wall(self, trials: Sequence[Trial]) -> tuple[float, float]:
        """Returns the steps, one after the other, of the jobs that end last, and the seconds that
        these jobs take beside their steps: to start, compile and evaluate.

        NaN where it is not known how many jobs run at a time.
        """
        if self.jobs is None:
            return math.nan, math.nan
        ends = [(0.0, 0.0)] * min(self.jobs, len(trials))
        for job in self.grouped(trials):
            rounds = -(-len(job) // self.side_by_side)
            programs = len({task.program for task in job})
            steps, beside_s = heapq.heappop(ends)
            beside_s += START_S + COMPILE_S * programs + EVALUATE_S * rounds * trials[0].evaluations
            heapq.heappush(ends, (steps + rounds * job[0].steps, beside_s))
        return max(ends)

    def describe(self) -> str:
        """Returns the resources in words."""
        device = f"{self.devices} {self.platform} {view.plural('device', self.devices)} per trial"
        if self.jobs is None:
            return f"launcher {self.launcher}: {device}; jobs at a time unknown: {self.problem}"
        if self.launcher == "local":
            workers = f"{self.jobs} {view.plural('worker', self.jobs)}"
            return f"launcher local: {workers}, a trial each at a time, {device}"
        return (
            f"launcher {self.launcher}: at most {self.jobs:,} jobs at a time, each of up to "
            f"{self.trials_per_job} trials, {self.side_by_side} at a time, {device}"
        )


def resources_of(study: Study) -> Resources:
    """Returns the resources that a study's settings describe; an engine may be asked."""
    settings = study.settings
    name = settings["launcher"]
    launcher_class, keys = launchers.launcher_class(name), settings[name]
    jobs, problem = None, ""
    try:
        with contextlib.closing(launcher_class(settings, study.directory)) as engine:
            capacity = int(engine.capacity())
        jobs = min(capacity, keys.get("at_once") or capacity)
    except (EngineError, ValueError, OSError) as error:  # planned on a host without the engine
        if name == "local":
            raise
        problem = str(error)
        jobs = min(keys["at_once"], keys["max_jobs"]) if keys.get("at_once") else None
    trials_per_job = keys.get("trials_per_job")
    side_by_side = min(keys.get("workers") or 1, trials_per_job or 1)
    devices = launcher_class.hardware(settings)
    return Resources(
        launcher=name,
        platform=devices.kind,
        devices=devices.of_a_trial(),
        trials_per_job=trials_per_job,
        jobs=jobs,
        side_by_side=side_by_side,
        problem=problem,
    )


@dataclasses.dataclass(frozen=True)
class StageCost:
    """The cost of a stage.

    steps: of all trials. wall_steps, beside_s: `Resources.wall`, without waiting in an engine's
    queue. NaN: not known.
    """

    stage: str
    trials: int
    jobs: int
    programs: int
    steps: int
    wall_steps: float
    beside_s: float
    disk_gb: float


def lines(study: Study, where: Resources) -> list[StageCost]:
    """Returns the cost per stage."""
    settings, parameters = study.settings, catalog.get(study.workload).parameters
    result = []
    for stage in study.stages:
        # Which point is selected does not change the cost.
        trials = study.trials(stage, {"points": dict.fromkeys(settings["variants"], 0)})
        wall_steps, beside_s = where.wall(trials)
        kept = min(settings["keep_checkpoints"], trials[0].evaluations)
        per_parameter = _BYTES[settings["param_dtype"]] + _BYTES_OF_MOMENTS
        size = kept * parameters * per_parameter + _LOG_BYTES
        result.append(
            StageCost(
                stage=stage,
                trials=len(trials),
                jobs=len(where.grouped(trials)),
                programs=len({trial.program for trial in trials}),
                steps=sum(trial.steps for trial in trials),
                wall_steps=wall_steps,
                beside_s=beside_s,
                disk_gb=len(trials) * size / 1e9,
            )
        )
    return result


def summary(study: Study) -> str:
    """Returns the study's trials, steps and wall time in a line, for `run`."""
    entry, where = catalog.get(study.workload), resources_of(study)
    seconds, source = entry.step_time(study.settings["batch_size"])
    total = _total(lines(study, where))
    wall = "unknown time"
    if seconds is None or where.jobs is None or where.devices != entry.devices:
        source = "python -m sweeps plan with --step_seconds estimates it"
    else:
        steps_s, beside = total.wall_steps * seconds, view.duration(total.beside_s)
        wall = (
            f"about {view.duration(steps_s + total.beside_s)}: {view.duration(steps_s)} of steps, "
            f"{beside} to start, compile and evaluate"
        )
    return f"whole study: {_count(total.trials, 'trial')}, {total.steps:,} steps, {wall} ({source})"


def render(study: Study, step_seconds: float | None = None) -> str:
    """Returns the plan as text: hours by `step_seconds`, or by the workload's measured step."""
    entry, settings = catalog.get(study.workload), study.settings
    where = resources_of(study)
    seconds, source = entry.step_time(settings["batch_size"])
    devices = entry.devices
    if step_seconds is not None:
        seconds, devices, source = step_seconds, where.devices, "given by --step_seconds"
    stages = lines(study, where)
    text = [
        f"study {study.name}: {settings['workload']} ({entry.description}, "
        f"{entry.parameters:,} parameters)",
        f"protocol {settings['protocol']}, {_count(len(study.points), 'point')} of "
        f"{settings['space']}, {_count(len(settings['variants']), 'variant')}, "
        f"{_count(settings['seeds'], 'seed')}, "
        f"{settings['steps']:,} steps at batch {settings['batch_size']}",
        f"data {study.data_dir}",
        f"directory {study.directory}",
        where.describe(),
        "",
        f"{'stage':<10}{'trials':>8}{'jobs':>8}{'programs':>10}{'steps':>14}{'hours':>10}"
        f"{'wall':>10}{'start':>10}{'disk GB':>10}",
    ]
    text += [_row(line, seconds or math.nan) for line in [*stages, _total(stages)]]
    text.append(f"hours: {source or 'no step time known; give --step_seconds'}")
    if seconds is not None and where.devices != devices:
        text.append(f"    but a trial has {where.devices} here, not {devices}: give --step_seconds")
    text += [
        "wall: hours of steps with as many jobs at a time as above, stages one after the other, "
        "without waiting in queues",
        f"start: hours beside these; {START_S:g} s a job to start, {COMPILE_S:g} s a program to "
        f"compile, {EVALUATE_S:g} s an evaluation (digits_vit; more for large models)",
        "disk: what stays; a trial holds three times as much while it runs",
        "programs: train steps to compile; every trial of a program shares one",
        precision.describe(settings["matmul_precision"], where.platform),
    ]
    if not entry.embedded:
        text.append(
            "memory and time of a step on accelerators: python -m sweeps compile "
            f"--topology={entry.topology or 'h100:1x1x8'}, with the same --config"
        )
    launcher = launchers.launcher_class(settings["launcher"])
    if preview := launcher.preview(settings, remote.sample(settings)):
        text += ["", "a job, as it would be submitted:", preview.rstrip()]
    return "\n".join(text)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {view.plural(noun, number)}"


def _row(line: StageCost, seconds: float) -> str:
    hours, wall = _figure(line.steps * seconds / 3600), _figure(line.wall_steps * seconds / 3600)
    start = _figure(line.beside_s / 3600)
    return (
        f"{line.stage:<10} {line.trials:>7} {line.jobs:>7} {line.programs or '':>9} "
        f"{line.steps:>13,} {hours:>9} {wall:>9} {start:>9} {line.disk_gb:>9.2f}"
    )


def _total(stages: list[StageCost]) -> StageCost:
    """Returns the sums; programs, which stages share, are left out."""
    return StageCost(
        stage="total",
        trials=sum(line.trials for line in stages),
        jobs=sum(line.jobs for line in stages),
        programs=0,
        steps=sum(line.steps for line in stages),
        wall_steps=sum(line.wall_steps for line in stages),
        beside_s=sum(line.beside_s for line in stages),
        disk_gb=sum(line.disk_gb for line in stages),
    )


def _figure(hours: float) -> str:
    if math.isnan(hours):
        return "?"
    return f"{hours:,.2f}" if hours < 10 else f"{hours:,.0f}"
