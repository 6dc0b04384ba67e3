"""`python -m sweeps hardware`: what the devices of a host really do, in about ten minutes.

    kernels     `python -m attention check` of standard attention and LASER, by every kernel that
                can run here
    steps       `python -m workloads bench` of the three full-size models, on a GPU or TPU
    processes   updates of one trial by two processes, each with devices of its own, against one

Each command has a process of its own, so that devices are free for the next one. This process loads
no JAX. Every result is printed and written as soon as it is known. Verdicts: ok; WRONG (an error
beyond its limit, other losses); FAILED (with the error); measured (a figure without a limit); not
here (with what is missing).
"""

import contextlib
import dataclasses
import functools
import importlib
import io
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attention import backends
from attention.common import files
from sweeps.compilers import compile as compiler
from sweeps.launchers import local, tpu_host
from sweeps.records import provenance
from sweeps.study import config, jax_calls, study
from sweeps.study.trial import Trial

_VARIANTS = ("standard", "laser")
_LIMIT_S = 300.0

# A workload, examples on each device, dtype, and the kernels that are timed on each platform.
_STEPS: tuple[tuple[str, int, str, dict[str, tuple[str, ...]]], ...] = (
    (
        "imagenet_vit",
        128,
        "float32",
        {"tpu": ("xla", "fused"), "gpu": ("xla", "jax_xla", "fused")},
    ),
    ("librispeech_conformer", 32, "float32", {"tpu": ("xla", "fused"), "gpu": ("xla", "fused")}),
    (
        "c4_lm",
        16,
        "bfloat16",
        {"tpu": ("xla", "splash", "fused"), "gpu": ("xla", "cudnn", "fused")},
    ),
)


@dataclasses.dataclass(frozen=True)
class Result:
    """A checked quantity: its verdict, a summary, and the lines that a command printed of it."""

    what: str
    verdict: str
    summary: str
    printed: tuple[str, ...] = ()


def run(out: pathlib.Path, parts: tuple[str, ...]) -> bool:
    """Runs the parts, printing a line per result and writing all to `out`; True if none is bad."""
    devices = jax_calls.call(_devices)
    report: dict[str, Any] = {"format": "attnperf-hardware-2", "devices": devices, "lines": []}
    print(f"{devices['device_count']} × {devices['device_kind']}, {devices['runtime']}", flush=True)
    verdicts = []
    for part in parts:
        for result in PARTS[part](devices):
            verdicts.append(result.verdict)
            report["lines"].append({"part": part, **dataclasses.asdict(result)})
            files.write(out, json.dumps(report, indent=1) + "\n")
            print(f"{result.verdict:9s} {part}: {result.what}: {result.summary}", flush=True)
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts))
    print(f"{out}: {counts}")
    return not {"WRONG", "FAILED"} & set(verdicts)


def _attempt(what: str, function: Callable[..., Result], /, *arguments: Any) -> Result:
    """Returns the result that a function gives, or its failure as one."""
    try:
        return function(what, *arguments)
    except (ValueError, OSError, ChildProcessError) as error:
        return Result(what, "FAILED", str(error))


def _devices() -> dict[str, Any]:
    import jax

    from attention.common import devices

    return {
        "platform": devices.default_platform(),
        **provenance.hardware(),
        "versions": provenance.versions(),
        "runtime": jax.devices()[0].client.platform_version.splitlines()[0],
    }


def _kernels(devices: dict[str, Any]) -> Iterator[Result]:
    for name, entry in backends.KERNELS.items():
        if entry.platforms and devices["platform"] not in entry.platforms:
            needed = " or ".join(entry.platforms)
            yield Result(name, "not here", f"runs on {needed}, and this is {devices['platform']}")
            continue
        # The limits are for float32 products, which a TPU would make of bfloat16 numbers.
        precision = "float32" if entry.follows_precision else "default"
        flags = [f"--kernels={name}", f"--matmul_precision={precision}"]
        yield _attempt(name, _command, "ok", "attention", ["check", *_VARIANTS, *flags])


def _steps(devices: dict[str, Any]) -> Iterator[Result]:
    for workload, examples, dtype, kernels in _STEPS:
        if devices["platform"] not in kernels:
            yield Result(workload, "not here", f"timed on {' or '.join(kernels)}")
        for kernel in kernels.get(devices["platform"], ()):
            arguments = [
                "bench",
                workload,
                f"--variants={','.join(_VARIANTS)}",
                f"--batch_size={examples * devices['device_count']}",
                f"--kernel={kernel}",
                f"--compute_dtype={dtype}",
            ]
            yield _attempt(f"{workload} by {kernel}", _command, "measured", "workloads", arguments)


def _command(what: str, verdict: str, package: str, arguments: list[str]) -> Result:
    """Returns the last line of `python -m package ...` with a verdict, which holds if its exit
    status is 0."""
    status, lines = jax_calls.call(_printed, package=package, arguments=arguments)
    return Result(what, {0: verdict, 1: "WRONG"}.get(status, "FAILED"), lines[-1], lines)


def _printed(package: str, arguments: list[str]) -> tuple[int, tuple[str, ...]]:
    """Returns a command's exit status and the lines that it printed, of status 2 the errors."""
    command = importlib.import_module(f"{package}.__main__")
    with (
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        status = command.main(arguments)
    return status, tuple((errors if status == 2 else output).getvalue().splitlines())


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
        if (halves := tpu_host.halves(names, devices["device_kind"])) is None:
            yield Result(what, "not here", f"a TPU host of 4 or 8 chips (it has {len(names)})")
            return
        grid, shares = halves
        environments = [
            tpu_host.variables(share, ports, index, grid) for index, share in enumerate(shares)
        ]
    yield _attempt(what, _two_against_one, environments, port)


def _two_against_one(what: str, environments: list[dict[str, str]], port: int) -> Result:
    """Returns how far the losses of two processes are from those of one."""
    overrides = ["--config.batch_size=32", "--config.variants=standard,laser"]
    resolved = study.resolve(config.parse("digits_vit_quick", overrides), planning=True)
    trial = compiler.first_trials(resolved)["laser"]
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
    verdict = "ok" if worst < 1e-4 else "WRONG"
    return Result(what, verdict, f"losses within {worst:.1e} of one process's")


def _losses(
    trial: Trial, index: int, count: int, port: int, environment: dict[str, str]
) -> list[float]:
    """Returns the losses of three updates on random examples.

    count: of processes that compute together, each with devices of its own; index: of this one.
    environment: which devices; {} is all, or a CPU.
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
    # Loaded late: two processes have to meet before JAX looks for devices.
    from sweeps.training import train_step

    step = train_step.of_trial(trial)
    workload: Any = step.workload
    state = step.first_state(0)
    examples = jax.device_get(workload.example_batch(trial.batch_size))
    rows = workload.devices.rows(trial.batch_size)
    batch = workload.devices.shard(jax.tree.map(lambda leaf: leaf[rows], examples))
    arguments = batch, train_step.scalars_of(trial), train_step.seed_key(0, train_step.DROPOUT)
    update = step.compile(state, *arguments)
    losses = []
    for _ in range(3):
        state, metrics = update(state, *arguments)
        losses.append(float(metrics.loss))
    if count > 1:
        # Both processes now. When Python ends, the first would wait 20 s for the second, which is
        # waited for after it, and both would abort.
        jax.distributed.shutdown()
    return losses


PARTS: dict[str, Callable[[dict[str, Any]], Iterator[Result]]] = {
    "kernels": _kernels,
    "steps": _steps,
    "processes": _processes,
}
