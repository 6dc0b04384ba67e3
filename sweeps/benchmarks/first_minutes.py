"""`python -m sweeps hardware`: what the devices of a host really do, in about ten minutes.

    kernels     every kernel that can run here against float64, standard attention and LASER
    steps       train steps of the three domains on random examples: milliseconds, memory, LASER
                over standard, beside what `plan` says, and the compiler's own memory
    recovery    a study killed with SIGKILL while it trains, resumed, against one left alone
    processes   one trial's updates by two processes, each with devices of its own, against one

Each part has a process of its own, so that devices are free for the next one; this one loads no
JAX. Every result is a line, and is in the file as soon as it is known: `python -m analysis hardware
FILE` prints it again. Verdicts: ok; WRONG (an error beyond its limit, another curve); DIFFERS (more
than calibration.TOLERANCE from what was predicted); FAILED (with the error); measured (nothing was
predicted); not here (with what is missing).
"""

import contextlib
import csv
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attention import files, table
from sweeps.launchers import local, tpu_host
from sweeps.monitoring import calibration, hardware, jax_calls
from sweeps.monitoring import compile as compiler
from sweeps.records import layout, lease, status
from sweeps.study import config, study
from sweeps.study.trial import Trial

# JAX's device_kind, by how it begins, the longest first.
_KINDS = {
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v6": "v6e",
    "TPU v5": "v5p",
    "TPU v4": "v4",
    "NVIDIA H100": "h100",
    "NVIDIA H200": "h200",
}
_BF16 = {"compute_dtype": "bfloat16"}
# Full-size steps by platform: study, what changes, examples per device, kernels.
_STEPS: dict[str, tuple[tuple[str, dict[str, str], int, tuple[str, ...]], ...]] = {
    "tpu": (
        ("imagenet_vit_paper", {}, 128, ("xla", "fused")),
        ("librispeech_conformer_paper", {}, 32, ("xla", "fused")),
        ("c4_lm_paper", _BF16, 16, ("xla", "splash", "fused")),
    ),
    "gpu": (
        ("imagenet_vit_paper", {}, 128, ("xla", "jax_xla", "fused")),
        ("librispeech_conformer_paper", {}, 32, ("xla", "fused")),
        ("c4_lm_paper", _BF16, 16, ("xla", "cudnn", "fused")),
    ),
    "cpu": (
        ("digits_vit_quick", {}, 32, ("xla",)),
        ("spoken_digits_conformer_quick", {}, 16, ("xla",)),
        ("pydoc_lm_quick", {}, 32, ("xla",)),
    ),
}
_VARIANTS = ("standard", "laser")
_TIMED = 10
_KILLED_AT = 20  # of _WHOLE steps
_WHOLE = 60
_LIMIT_S = 300.0
_GRACE_S = 20.0  # of a command that is told to end

# As analysis reads them (analysis/views/hardware.py).
FORMAT = "attnperf-hardware-1"
BAD = ("WRONG", "DIFFERS", "FAILED")

Line = dict[str, Any]


def run(out: pathlib.Path, data_dir: str, parts: tuple[str, ...]) -> bool:
    """Runs the parts, printing a line per result and writing all to `out`; True if none is bad."""
    started = time.monotonic()
    here = jax_calls.call(_devices)
    report: dict[str, Any] = {"format": FORMAT, "devices": here, "lines": []}
    versions = ", ".join(f"{name} {value}" for name, value in here["versions"].items())
    print(f"{here['count']} × {here['kind']}, {versions}", flush=True)
    for name in parts:
        for line in _PARTS[name](here, data_dir):
            report["lines"].append({"part": name, **line})
            report["seconds"] = time.monotonic() - started
            files.write(out, json.dumps(report, indent=1) + "\n")
            print(told(report["lines"][-1]), flush=True)
    print(f"{out}: {summary(report)}; python -m analysis hardware {files.quoted(out)}")
    return not any(line["verdict"] in BAD for line in report["lines"])


def told(line: Line) -> str:
    """Returns a result as text."""
    return f"{line['verdict']:9s} {line['part']}: {line['what']}: {line['said']}"


def summary(report: dict[str, Any]) -> str:
    """Returns how many results there are of each verdict."""
    verdicts = [line["verdict"] for line in report["lines"]]
    counted = ", ".join(f"{verdicts.count(one)} {one}" for one in dict.fromkeys(verdicts))
    return f"{counted or 'nothing'} in {report.get('seconds', 0.0) / 60:.1f} min"


def _line(what: str, verdict: str, said: str, **figures: Any) -> Line:
    return {"what": what, "verdict": verdict, "said": said, "figures": figures}


def _asked(named: str, function: Callable[..., list[Line]], **arguments: Any) -> list[Line]:
    """Returns the lines that a function gives in a process of its own; its failure is one."""
    try:
        lines: list[Line] = jax_calls.call(function, **arguments)
    except (ValueError, OSError, ChildProcessError) as error:
        return [_line(named, "FAILED", str(error))]
    return lines


def _devices() -> dict[str, Any]:
    import importlib.metadata

    import jax

    from attention import devices

    platform, device = devices.default_platform(), jax.local_devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit")
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "flax")}
    return {
        "platform": platform,
        "kind": device.device_kind,
        "count": jax.local_device_count(),
        "memory_gb": None if memory is None else memory / 1e9,
        "versions": {**versions, "runtime": device.client.platform_version.splitlines()[0]},
    }


def _kernels(here: dict[str, Any], data_dir: str) -> Iterator[Line]:
    del data_dir
    for name, entry in table.KERNELS.items():
        if entry.platforms and here["platform"] not in entry.platforms:
            wanted = " or ".join(entry.platforms)
            yield _line(name, "not here", f"runs on {wanted}, and this is {here['platform']}")
        else:
            yield from _asked(name, _errors, kernel=name)


def _errors(kernel: str) -> list[Line]:
    """Returns a line per dtype and mask, with the worst error over its limit."""
    import jax

    from attention.verification import check

    lines: list[Line] = []
    for dtype in table.KERNELS[kernel].dtypes or ("float32", "bfloat16"):
        if dtype not in ("float32", "bfloat16"):
            continue
        # A TPU would multiply float32 as bfloat16; kernels in bfloat16 know the default alone.
        precision = "highest" if dtype == "float32" else "default"
        with jax.default_matmul_precision(precision):
            for mask in ("none", "causal"):
                rows = [
                    check.measure(check.Case(name, kernel, dtype, mask, qs, 1.0))
                    for name in _VARIANTS
                    for qs in (1.0, 4.0)
                ]
                worst = float(np.max([row.worst for row in rows]))
                said = f"worst error {worst:.2f} of its limit, {len(rows)} cases"
                what = f"{kernel}, {dtype}, mask {mask}"
                lines.append(_line(what, "ok" if worst <= 1 else "WRONG", said, worst=worst))
    return lines


def _steps(here: dict[str, Any], data_dir: str) -> Iterator[Line]:
    del data_dir
    count = here["count"]
    kind = next((ours for name, ours in _KINDS.items() if here["kind"].startswith(name)), None)
    for name, changed, examples, kernels in _STEPS.get(here["platform"], _STEPS["cpu"]):
        for kernel in kernels:
            settings = {"kernel": kernel, "variants": ",".join(_VARIANTS), **changed}
            settings["batch_size"] = str(examples * count)
            if name.startswith("c4_lm"):
                settings["mesh.fsdp"] = str(math.gcd(count, 8))
            its_study = _resolved(name, settings)
            trials, predicted = compiler.first_trials(its_study), {}
            if kind is not None:
                where = hardware.Topology(f"{kind}:{count}", kind, (count,))
                predicted = calibration.predict(its_study, where)
            standard_ms = None
            for variant in _VARIANTS:
                what = f"{name}, {examples * count} examples, {variant} by {kernel}"
                lines = _asked(what, _step, what=what, trial=trials[variant])
                for line in lines:
                    if "step_ms" in line["figures"]:
                        standard_ms = standard_ms or line["figures"]["step_ms"]
                        _compare(line, predicted.get(variant), standard_ms)
                    yield line


def _resolved(name: str, settings: dict[str, str]) -> study.Study:
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    return study.resolve(config.parse(name, overrides), planning=True)


def _compare(line: Line, predicted: calibration.Prediction | None, standard_ms: float) -> None:
    """Adds to a step's line what was predicted of it, and its time over standard attention's."""
    figures = line["figures"]
    figures["over_standard"] = figures["step_ms"] / standard_ms
    line["said"] += f", {figures['over_standard']:.3f} times standard"
    if predicted is None:
        return
    figures["plan_gb"], ratios = predicted.total_gb, [figures["memory_gb"] / predicted.total_gb]
    line["said"] += f"; plan: {predicted.total_gb:.2f} GB"
    if predicted.step_ms:
        figures["plan_ms"] = predicted.step_ms
        ratios.append(figures["step_ms"] / predicted.step_ms)
        line["said"] += f", {predicted.step_ms:.1f} ms"
    elif predicted.least_ms:
        figures["least_ms"] = predicted.least_ms
        line["said"] += f", at least {predicted.least_ms:.1f} ms"
        ratios.append(min(figures["step_ms"] / predicted.least_ms, 1.0))
    near = all(abs(ratio - 1) <= calibration.TOLERANCE for ratio in ratios)
    line["verdict"] = "ok" if near else "DIFFERS"


def _step(what: str, trial: Trial) -> list[Line]:
    import jax

    from sweeps.training import train_step

    step = train_step.of_trial(trial)
    workload: Any = step.workload
    state = step.first_state(0)
    batch = jax.device_put(workload.example_batch(trial.batch_size), workload.devices.batch())
    scalars = train_step.scalars_of(trial)
    key = train_step.seed_key(0, train_step.DROPOUT)
    started = time.monotonic()
    update = step.compile(state, batch, scalars, key)
    compiled_s = time.monotonic() - started

    def timed(count: int) -> float:
        nonlocal state
        before = time.monotonic()
        for _ in range(count):
            state, metrics = update(state, batch, scalars, key)
        jax.block_until_ready((state, metrics))
        return (time.monotonic() - before) / count * 1e3

    timed(2)
    step_ms = min(timed(_TIMED) for _ in range(2))
    memory = update.memory_analysis()
    found = sum(
        getattr(memory, f"{part}_size_in_bytes")
        for part in ("argument", "output", "temp", "generated_code")
    )
    figures = {
        "step_ms": step_ms,
        "memory_gb": (found - memory.alias_size_in_bytes) / 1e9,
        "compiled_s": compiled_s,
    }
    peak = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    said = f"{step_ms:.1f} ms, compiler {figures['memory_gb']:.2f} GB"
    if peak:
        figures["peak_gb"] = peak / 1e9
        said += f", at most {figures['peak_gb']:.2f} GB in use"
    return [_line(what, "measured", said, **figures)]


def _recovery(here: dict[str, Any], data_dir: str) -> Iterator[Line]:
    del here
    what = f"digits_vit, killed at step {_KILLED_AT} of {_WHOLE} or later"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with _started(_study(folder, "alone", data_dir)) as process:
                _wait(process)
            with _started(_study(folder, "killed", data_dir)) as process:
                trial = _killed(process, pathlib.Path(folder) / "killed")
            with _started(["resume", f"{folder}/killed"]) as process:
                _wait(process)
            attempts = len(list((trial / layout.ATTEMPTS).iterdir()))
            other = pathlib.Path(folder) / "alone" / trial.relative_to(f"{folder}/killed")
            problem = _difference(trial, other)
        except (OSError, ValueError) as error:
            yield _line(what, "FAILED", str(error))
            return
    said = problem or f"the same curve to the bit, in {attempts} attempts"
    yield _line(what, "WRONG" if problem else "ok", said, attempts=attempts)


def _study(folder: str, name: str, data_dir: str) -> list[str]:
    settings = {
        **{"experiment_dir": folder, "name": name, "data_dir": data_dir},
        **{"variants": "laser", "baseline": "laser"},
        **{"protocol": "grid", "points": 1, "steps": _WHOLE, "eval_every": 10},
        **{"local.workers": 1, "log_every": 1},
    }
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    return ["run", "--config=digits_vit_quick", *overrides]


@contextlib.contextmanager
def _started(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Gives a command that runs; where it is left early, the command and its workers end."""
    with subprocess.Popen(
        [sys.executable, "-m", "sweeps", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # it tells its workers to save
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_S)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _wait(process: subprocess.Popen[str]) -> None:
    try:
        output, _ = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise ValueError(f"a study of {_WHOLE} steps took over {_LIMIT_S:.0f} s") from None
    if process.returncode:
        raise ValueError("\n".join(output.splitlines()[-3:]))


def _killed(process: subprocess.Popen[str], directory: pathlib.Path) -> pathlib.Path:
    """Kills a study's processes once a checkpoint is there; returns its trial's directory."""
    until = time.monotonic() + _LIMIT_S
    pattern = f"*/*/*/trial_*/{layout.CHECKPOINTS}/{_KILLED_AT}"
    while not (found := list(directory.glob(pattern))):
        if process.poll() is not None or time.monotonic() > until:
            output = process.communicate()[0] if process.poll() is not None else ""
            raise ValueError(f"no checkpoint to kill it at: {output[-300:]}")
        time.sleep(0.02)
    trial = found[0].parents[1]
    (held,) = trial.glob(f"{layout.ATTEMPTS}/*/{lease.LEASE}")
    worker = json.loads(held.read_bytes())["pid"]
    for end, number in ((os.kill, worker), (os.killpg, process.pid)):
        with contextlib.suppress(ProcessLookupError):
            end(number, signal.SIGKILL)
    process.communicate()
    if status.read(trial)["state"] == "done":
        raise ValueError("it was done before it could be killed")
    return trial


def _difference(trial: pathlib.Path, other: pathlib.Path) -> str:
    """Returns how two trials' evaluations differ, '' where they do not; times aside."""
    found = []
    for directory in (trial, other):
        with (directory / layout.EVAL_MEASUREMENTS).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        kept = ("global_step", *(f"{split}/" for split in layout.SPLITS))
        found.append([{k: v for k, v in row.items() if k.startswith(kept)} for row in rows])
    if len(found[0]) != len(found[1]):
        return f"{len(found[0])} evaluations, not {len(found[1])}"
    for ours, theirs in zip(*found, strict=True):
        for name, value in ours.items():
            if value != theirs[name]:
                return f"step {ours['global_step']}: {name} {value}, not {theirs[name]}"
    return ""


def _processes(here: dict[str, Any], data_dir: str) -> Iterator[Line]:
    del data_dir
    what = "digits_vit, three updates by two processes"
    devices = local.accelerators()[1]
    port, *ports = local.free_ports(3)
    environments: list[dict[str, str]] = [{}, {}]
    if here["platform"] == "gpu":
        if len(devices) < 2:
            yield _line(what, "not here", "one device")
            return
        environments = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in devices[:2]]
    elif here["platform"] == "tpu":
        if (halves := tpu_host.halves(devices, here["kind"])) is None:
            yield _line(what, "not here", f"a TPU host of 4 or 8 chips (it has {len(devices)})")
            return
        grid, shares = halves
        environments = [
            tpu_host.variables(own, ports, index, grid) for index, own in enumerate(shares)
        ]
    try:
        its_study = _resolved("digits_vit_quick", {"batch_size": "32"})
        alike = {"trial": compiler.first_trials(its_study)["laser"]}
        several = {"count": 2, "port": port, **alike}
        with (
            jax_calls.Call(_losses, index=1, environment=environments[1], **several) as other,
            jax_calls.Call(_losses, index=0, environment=environments[0], **several) as primary,
        ):
            found = primary.result(_LIMIT_S), other.result(_LIMIT_S)
        ends = [one.process.exitcode for one in (primary, other)]
        if any(ends):
            raise ValueError(f"the processes gave their losses, and ended with codes {ends}")
        alone = jax_calls.call(_losses, index=0, environment={}, count=1, port=0, **alike)
    except (ValueError, OSError, ChildProcessError) as error:
        yield _line(what, "FAILED", str(error))
        return
    worst = float(np.max(np.abs(np.asarray(found) / np.asarray(alone) - 1)))
    said = f"losses within {worst:.1e} of one process's"
    yield _line(what, "ok" if worst < 1e-4 else "WRONG", said, worst=worst)


def _losses(
    trial: Trial, index: int, count: int, port: int, environment: dict[str, str]
) -> list[float]:
    """Returns the losses of three updates, as one of `count` processes with devices of their own.

    environment: which ones; {} is all, or a CPU.
    """
    os.environ |= environment
    import jax

    from sweeps.training import train_step

    if count > 1:
        # Where one fails, the other is not to wait for it longer than that.
        jax.distributed.initialize(
            f"127.0.0.1:{port}",
            count,
            index,
            initialization_timeout=60,
            shutdown_timeout_seconds=20,
        )
    step = train_step.of_trial(trial)
    workload: Any = step.workload
    state = step.first_state(0)
    whole = jax.device_get(workload.example_batch(trial.batch_size))
    rows = workload.devices.rows(trial.batch_size)
    batch = workload.devices.shard(jax.tree.map(lambda leaf: leaf[rows], whole))
    scalars, key = train_step.scalars_of(trial), train_step.seed_key(0, train_step.DROPOUT)
    update = step.compile(state, batch, scalars, key)
    losses = []
    for _ in range(3):
        state, metrics = update(state, batch, scalars, key)
        losses.append(float(metrics.loss))
    if count > 1:
        # Both now: at their ends the first would wait 20 s for the other, which is told to end
        # after it, and both would abort.
        jax.distributed.shutdown()
    return losses


_PARTS: dict[str, Callable[[dict[str, Any], str], Iterator[Line]]] = {
    "kernels": _kernels,
    "steps": _steps,
    "recovery": _recovery,
    "processes": _processes,
}
PARTS = tuple(_PARTS)
