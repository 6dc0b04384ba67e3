"""Measures the reader: `python -m tests.analysis.bench_reader --runs=10000 --evals=200`.

Fabricates studies in a temporary folder (about 60 kB per evaluation file of 200 rows, so 1.2 GB for
10,000 runs with their losses) and prints seconds and peak memory of `table` and `runs`.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from attention.common import arguments as numbers
from sweeps.records import layout

VARIANTS = tuple(
    mixer + modifier
    for mixer in ("standard", "laser")
    for modifier in ("", "+temp", "+qk_norm", "+per_dim_temp")
)
SEEDS = 5
STAGE, WORKLOAD, NAME = "grid", "imagenet_vit", "fabricated"
COLUMNS = (
    "global_step",
    *(
        f"{split}/{name}"
        for split in layout.SPLITS
        for name in ("accuracy", "loss", "num_examples", "perplexity")
    ),
    *layout.TIME_COLUMNS,
    "preemption_count",
)
COMMANDS = ("table", "runs")


def fabricate(root: pathlib.Path, runs: int, evals: int) -> None:
    """Writes a study of `runs` trials with `evals` evaluations each, and as many losses."""
    entries = [_entry(index, evals) for index in range(runs)]
    for index, entry in enumerate(entries):
        directory = root / entry["path"]
        directory.mkdir(parents=True)
        layout.write_json(directory / layout.TRIAL, entry | {"versions": {"jax": "0.7.0"}})
        layout.write_json(directory / layout.HPARAMS, entry["hyperparameters"])
        layout.write_json(directory / layout.STATUS, {"state": "done", "reason": None})
        body = _evaluations(np.random.default_rng(index), evals)
        (directory / layout.EVAL_MEASUREMENTS).write_bytes(body)
        (directory / layout.MEASUREMENTS).write_bytes(_with_losses(body))
    layout.write_json(root / STAGE / layout.TRIALS, {"stage": STAGE, "trials": entries})
    layout.write_json(root / layout.STUDY, _record())


def _entry(index: int, evals: int) -> dict[str, Any]:
    """A line of trials.json: seeds vary first, then variants, then points."""
    seed, variant = index % SEEDS, VARIANTS[index // SEEDS % len(VARIANTS)]
    point = index // SEEDS // len(VARIANTS)
    return {
        "path": layout.trial_path(STAGE, variant, WORKLOAD, point, seed),
        "id": f"{index:012x}",
        "study": NAME,
        "stage": STAGE,
        "workload": WORKLOAD,
        "variant": variant,
        "variant_hyperparameters": {"tau": 0.9} if "+temp" in variant else {},
        "point": point,
        "hyperparameters": {"learning_rate": 0.001 * (point + 1), "weight_decay": 0.1},
        "seed": seed,
        "steps": 100 * evals,
        "eval_every": 100,
        "batch_size": 1024,
        "step_hint": 100 * evals,
        "targets": {"metric": "accuracy", "validation": 0.77309, "test": 0.6519},
    }


def _record() -> dict[str, Any]:
    config = {"name": NAME, "workload": WORKLOAD, "baseline": "standard"}
    return {
        "format": layout.FORMAT,
        "name": NAME,
        "config": config | {"variants": list(VARIANTS), "seeds": SEEDS},
        "points": [],
        "stages": [STAGE],
    }


def _evaluations(rng: np.random.Generator, evals: int) -> bytes:
    """Numbers with all their digits, as a trial writes them."""
    rows = [",".join(COLUMNS)]
    for step in range(100, 100 * evals + 1, 100):
        numbers = rng.random(len(COLUMNS) - 2).tolist()
        rows.append(",".join([str(step), *map(repr, numbers), "0"]))
    return ("\n".join(rows) + "\n").encode()


def _with_losses(evaluations: bytes) -> bytes:
    """The same rows as measurements.csv has them: a line of loss and gradient norm before each."""
    header, *rows = evaluations.decode().splitlines()
    empty = "," * header.count(",")
    out = [f"{header},loss,grad_norm"]
    for row in rows:
        step, number = row.split(",")[:2]
        out += [f"{step}{empty},{number},1.5", f"{row},,"]
    return ("\n".join(out) + "\n").encode()


# ru_maxrss begins at the memory of the process that starts it.
_MEASURED = """
import pathlib, re, sys
from analysis.cli import main
code = main(sys.argv[1:])
status = pathlib.Path("/proc/self/status").read_text()
print(re.search(r"VmHWM:\\s+(\\d+)", status)[1], end="", file=sys.stderr)
sys.exit(code)
"""


def measure(command: str, root: pathlib.Path) -> tuple[float, float, float]:
    """Returns the seconds that `python -m analysis <command>` takes, those of them in which it
    computed (of all threads; what a busy machine does not change), and its peak memory in MB.

    Raises RuntimeError where it fails.
    """
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", _MEASURED, command, str(root)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        last = process.stderr.read().rpartition("\n")[2]
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"python -m analysis {command} {root}: exit code {process.returncode}")
    took = time.perf_counter() - start
    return took, usage.ru_utime + usage.ru_stime, int(last) / 1024


def main(arguments: list[str] | None = None) -> None:
    """Prints the measurements, a line per command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=numbers.whole(), default=10_000, help="trials of the study")
    parser.add_argument("--evals", type=numbers.whole(), default=200, help="evaluations of a trial")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        fabricate(pathlib.Path(folder), options.runs, options.evals)
        for command in COMMANDS:
            took, computed, memory = measure(command, pathlib.Path(folder))
            print(f"{command}: {took:.1f} s, {computed:.1f} CPU-s, {memory:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
