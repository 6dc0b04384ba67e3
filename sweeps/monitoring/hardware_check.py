"""`python -m sweeps hardware`: what the devices of a host really do, in about ten minutes.

    kernels     every kernel that can run here against float64, standard attention and LASER
    steps       train steps of the three domains on random examples: milliseconds, memory, LASER
                over standard
    processes   updates of one trial by two processes, each with devices of its own, against one

Each part has a process of its own, so that devices are free for the next one. This process loads no
JAX. Every result is printed and written as soon as it is known. Verdicts: ok; WRONG (an error
beyond its limit, other losses); FAILED (with the error); measured (a figure without a limit); not
here (with what is missing).
"""

import dataclasses
import functools
import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attention import files, table
from sweeps.launchers import local, tpu_host
from sweeps.monitoring import compile as compiler
from sweeps.monitoring import compiled_step, jax_calls
from sweeps.study import config, study
from sweeps.study.trial import Trial

_VARIANTS = ("standard", "laser")
_TIMED = 10
_LIMIT_S = 300.0

FORMAT = "attnperf-hardware-1"
BAD = ("WRONG", "FAILED")


@dataclasses.dataclass
class Result:
    """A checked quantity: its verdict, a summary for people, and the figures behind it."""

    what: str
    verdict: str
    summary: str
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class TimedStudy:
    """A study whose train step is timed, with so many examples on each device."""

    study: str
    examples: int
    kernels: tuple[str, ...]
    settings: dict[str, str] = dataclasses.field(default_factory=dict)


_BF16 = {"compute_dtype": "bfloat16"}
_VIT, _CONFORMER, _LM = "imagenet_vit_paper", "librispeech_conformer_paper", "c4_lm_paper"
_TIMED_STUDIES = {
    "tpu": (
        TimedStudy(_VIT, 128, ("xla", "fused")),
        TimedStudy(_CONFORMER, 32, ("xla", "fused")),
        TimedStudy(_LM, 16, ("xla", "splash", "fused"), _BF16),
    ),
    "gpu": (
        TimedStudy(_VIT, 128, ("xla", "jax_xla", "fused")),
        TimedStudy(_CONFORMER, 32, ("xla", "fused")),
        TimedStudy(_LM, 16, ("xla", "cudnn", "fused"), _BF16),
    ),
    "cpu": (
        TimedStudy("digits_vit_quick", 32, ("xla",)),
        TimedStudy("spoken_digits_conformer_quick", 16, ("xla",)),
        TimedStudy("pydoc_lm_quick", 32, ("xla",)),
    ),
}


def run(out: pathlib.Path, parts: tuple[str, ...]) -> bool:
    """Runs the parts, printing a line per result and writing all to `out`; True if none is bad."""
    started = time.monotonic()
    devices = jax_calls.call(_devices)
    report: dict[str, Any] = {"format": FORMAT, "devices": devices, "lines": []}
    versions = ", ".join(f"{name} {value}" for name, value in devices["versions"].items())
    print(f"{devices['count']} × {devices['kind']}, {versions}", flush=True)
    verdicts = []
    for part in parts:
        for result in _PARTS[part](devices):
            verdicts.append(result.verdict)
            line = dataclasses.asdict(result)
            report["lines"].append({"part": part, "said": line.pop("summary"), **line})
            files.write(out, json.dumps(report, indent=1) + "\n")
            print(f"{result.verdict:9s} {part}: {result.what}: {result.summary}", flush=True)
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts))
    minutes = (time.monotonic() - started) / 60
    print(f"{out}: {counts} in {minutes:.1f} min")
    return not set(verdicts) & set(BAD)


def _attempt(
    what: str, function: Callable[..., list[Result]], /, *arguments: Any, **more: Any
) -> list[Result]:
    """Returns the results that a function gives, or its failure as one."""
    try:
        return function(*arguments, **more)
    except (ValueError, OSError, ChildProcessError) as error:
        return [Result(what, "FAILED", str(error))]


def _devices() -> dict[str, Any]:
    import importlib.metadata

    import jax

    from attention import devices

    platform, device = devices.default_platform(), jax.local_devices()[0]
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax")}
    return {
        "platform": platform,
        "kind": device.device_kind,
        "count": jax.local_device_count(),
        "versions": {**versions, "runtime": device.client.platform_version.splitlines()[0]},
    }


def _kernels(devices: dict[str, Any]) -> Iterator[Result]:
    for name, entry in table.KERNELS.items():
        if entry.platforms and devices["platform"] not in entry.platforms:
            needed = " or ".join(entry.platforms)
            yield Result(name, "not here", f"runs on {needed}, and this is {devices['platform']}")
        else:
            yield from _attempt(name, jax_calls.call, _errors, kernel=name)


def _errors(kernel: str) -> list[Result]:
    """Returns a result per dtype and mask, with the worst error over its limit."""
    import jax

    from attention.verification import check

    results = []
    for dtype in ("float32", "bfloat16"):
        if dtype not in (table.KERNELS[kernel].dtypes or (dtype,)):
            continue
        # A TPU would multiply float32 as bfloat16; kernels in bfloat16 know the default alone.
        precision = "highest" if dtype == "float32" else "default"
        for mask in ("none", "causal"):
            cases = [
                check.Case(name, kernel, dtype, mask, qs, 1.0)
                for name in _VARIANTS
                for qs in (1.0, 4.0)
            ]
            with jax.default_matmul_precision(precision):
                worst = float(np.max([check.measure(case).worst for case in cases]))
            summary = f"worst error {worst:.2f} of its limit, {len(cases)} cases"
            what = f"{kernel}, {dtype}, mask {mask}"
            verdict = "ok" if worst <= 1 else "WRONG"
            results.append(Result(what, verdict, summary, {"worst": worst}))
    return results


def _steps(devices: dict[str, Any]) -> Iterator[Result]:
    count = devices["count"]
    for timed in _TIMED_STUDIES.get(devices["platform"], _TIMED_STUDIES["cpu"]):
        for kernel in timed.kernels:
            settings = {
                "kernel": kernel,
                "variants": ",".join(_VARIANTS),
                "batch_size": str(timed.examples * count),
                **timed.settings,
            }
            if timed.study == _LM:
                settings["mesh.fsdp"] = str(math.gcd(count, 8))
            resolved = _resolved(timed.study, settings)
            trials, standard_ms = compiler.first_trials(resolved), None
            for variant in _VARIANTS:
                what = f"{timed.study}, {timed.examples * count} examples, {variant} by {kernel}"
                for result in _attempt(
                    what, jax_calls.call, _step, what=what, trial=trials[variant]
                ):
                    if result.figures:
                        step_ms = result.figures["step_ms"]
                        standard_ms = standard_ms or step_ms
                        result.figures["over_standard"] = step_ms / standard_ms
                        result.summary += f", {step_ms / standard_ms:.3f} times standard"
                    yield result


def _resolved(name: str, settings: dict[str, str]) -> study.Study:
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    return study.resolve(config.parse(name, overrides), planning=True)


def _step(what: str, trial: Trial) -> list[Result]:
    import jax

    from workloads import bench

    state, arguments, update = _compiled(trial)

    def updated() -> Any:
        nonlocal state
        state, metrics = update(state, *arguments)
        return state, metrics

    bench.seconds(updated, 2)
    step_ms = 1e3 * min(bench.seconds(updated, _TIMED) for _ in range(2))
    memory_gb = sum(compiled_step.memory_parts(update, {}).values()) / 1e9
    figures = {"step_ms": step_ms, "memory_gb": memory_gb}
    summary = f"{step_ms:.1f} ms, compiler {memory_gb:.2f} GB"
    if peak := (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use"):
        figures["peak_gb"] = peak / 1e9
        summary += f", at most {figures['peak_gb']:.2f} GB in use"
    return [Result(what, "measured", summary, figures)]


def _compiled(trial: Trial) -> tuple[Any, tuple[Any, ...], Any]:
    """Returns a trial's first state, an update's other arguments (random examples), the update."""
    import jax

    from sweeps.training import train_step

    step = train_step.of_trial(trial)
    workload: Any = step.workload
    state = step.first_state(0)
    examples = jax.device_get(workload.example_batch(trial.batch_size))
    rows = workload.devices.rows(trial.batch_size)
    batch = workload.devices.shard(jax.tree.map(lambda leaf: leaf[rows], examples))
    key = train_step.seed_key(0, train_step.DROPOUT)
    arguments = (batch, train_step.scalars_of(trial), key)
    return state, arguments, step.compile(state, *arguments)


def _processes(devices: dict[str, Any]) -> Iterator[Result]:
    what = "digits_vit, three updates by two processes"
    names = local.accelerators()[1]
    port, *ports = local.free_ports(3)
    environments: list[dict[str, str]] = [{}, {}]
    if devices["platform"] == "gpu":
        if len(names) < 2:
            yield Result(what, "not here", "one device")
            return
        environments = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in names[:2]]
    elif devices["platform"] == "tpu":
        if (halves := tpu_host.halves(names, devices["kind"])) is None:
            summary = f"a TPU host of 4 or 8 chips (it has {len(names)})"
            yield Result(what, "not here", summary)
            return
        grid, shares = halves
        environments = [
            tpu_host.variables(share, ports, index, grid) for index, share in enumerate(shares)
        ]
    yield from _attempt(what, _two_against_one, what, environments, port)


def _two_against_one(what: str, environments: list[dict[str, str]], port: int) -> list[Result]:
    """Returns how far the losses of two processes are from those of one."""
    changes = {"batch_size": "32", "variants": ",".join(_VARIANTS)}
    trial = compiler.first_trials(_resolved("digits_vit_quick", changes))["laser"]
    shared = {"count": 2, "port": port, "trial": trial}
    start = functools.partial(jax_calls.SubprocessCall, _losses, **shared)
    with (
        start(index=1, environment=environments[1]) as second,
        start(index=0, environment=environments[0]) as first,
    ):
        losses = first.result(_LIMIT_S), second.result(_LIMIT_S)
    codes = [call.process.exitcode for call in (first, second)]
    if any(codes):
        raise ValueError(f"the processes gave their losses, and ended with codes {codes}")
    alone = jax_calls.call(_losses, index=0, environment={}, count=1, port=0, trial=trial)
    worst = float(np.max(np.abs(np.asarray(losses) / np.asarray(alone) - 1)))
    summary = f"losses within {worst:.1e} of one process's"
    return [Result(what, "ok" if worst < 1e-4 else "WRONG", summary, {"worst": worst})]


def _losses(
    trial: Trial, index: int, count: int, port: int, environment: dict[str, str]
) -> list[float]:
    """Returns the losses of three updates, as one of `count` processes with devices of their own.

    environment: which ones; {} is all, or a CPU.
    """
    os.environ |= environment
    import jax

    if count > 1:
        # If one process fails, the other waits no longer than this.
        jax.distributed.initialize(
            f"127.0.0.1:{port}",
            count,
            index,
            initialization_timeout=60,
            shutdown_timeout_seconds=20,
        )
    state, arguments, update = _compiled(trial)
    losses = []
    for _ in range(3):
        state, metrics = update(state, *arguments)
        losses.append(float(metrics.loss))
    if count > 1:
        # Both processes now. When Python ends, the first would wait 20 s for the second, which is
        # waited for after it, and both would abort.
        jax.distributed.shutdown()
    return losses


_PARTS: dict[str, Callable[[dict[str, Any]], Iterator[Result]]] = {
    "kernels": _kernels,
    "steps": _steps,
    "processes": _processes,
}
PARTS = tuple(_PARTS)
