"""Measures the reader: `python -m tests.analysis.bench_reader`.

Writes a study in a temporary folder (about 60 kB per evaluation file of 200 rows, so 1.2 GB for
10,000 runs with their losses) and prints seconds and peak memory of `table` and `runs`.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from sweeps.records import layout
from tests.analysis import conftest
from tests.analysis.conftest import VARIANTS

RUNS, EVALS = 10_000, 200
SEEDS = 5
COLUMNS = conftest.columns("accuracy", "loss", "perplexity")


def fabricate(root: pathlib.Path, runs: int, evals: int) -> pathlib.Path:
    """Writes a study of `runs` trials with `evals` evaluations each, and as many losses, numbers
    with all their digits. Seeds vary first, then variants, then points. Returns its directory."""
    names = VARIANTS
    points = [{"learning_rate": 0.001 * (1 + n)} for n in range(-(-runs // SEEDS // len(names)))]
    config = {"protocol": "grid", "seeds": SEEDS}
    study = conftest.begin_study_in(root, names, points, config=config, stages=("grid",))
    numbered = COLUMNS[1:-1]
    steps = range(100, 100 * evals + 1, 100)
    for index in range(runs):
        rng, place = np.random.default_rng(index), index // SEEDS
        rows = [
            {"global_step": step, "preemption_count": 0}
            | dict(zip(numbered, rng.random(len(numbered)).tolist(), strict=True))
            for step in steps
        ]
        directory = study.trial(
            *("grid", names[place % len(names)], place // len(names), index % SEEDS, None),
            steps=steps[-1],
            eval_every=100,
        )
        evaluations = study.csv_text(rows, COLUMNS)
        (directory / layout.EVAL_MEASUREMENTS).write_text(evaluations)
        (directory / layout.MEASUREMENTS).write_text(_with_losses(evaluations))
    return study.finish()


def _with_losses(evaluations: str) -> str:
    """The same rows as measurements.csv has them: a line of loss and gradient norm before each."""
    header, *rows = evaluations.splitlines()
    empty = "," * header.count(",")
    out = [f"{header},loss,grad_norm"]
    for row in rows:
        step, number = row.split(",")[:2]
        out += [f"{step}{empty},{number},1.5", f"{row},,"]
    return "\n".join(out) + "\n"


# ru_maxrss begins at the memory of the process that starts it.
_MEASURED = """
import pathlib, re, sys, time
start = time.perf_counter()
from analysis.cli import main
code = main(sys.argv[1:])
status = pathlib.Path("/proc/self/status").read_text()
kilobytes = re.search(r"VmHWM:\\s+(\\d+)", status)[1]
print(time.perf_counter() - start, time.process_time(), kilobytes, file=sys.stderr)
sys.exit(code)
"""


def measure(command: str, root: pathlib.Path) -> tuple[float, float, float]:
    """Returns the seconds that `python -m analysis <command>` takes, those of them in which it
    computed (of all threads; what a busy machine does not change), and its peak memory in MB.

    Raises CalledProcessError if it fails.
    """
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, command, str(root)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds, computed, kilobytes = done.stderr.splitlines()[-1].split()
    return float(seconds), float(computed), int(kilobytes) / 1024


def main() -> None:
    """Prints the measurements, a line per command."""
    with tempfile.TemporaryDirectory() as folder:
        study = fabricate(pathlib.Path(folder), RUNS, EVALS)
        for command in ("table", "runs"):
            seconds, computed, memory = measure(command, study)
            print(f"{command}: {seconds:.1f} s, {computed:.1f} CPU-s, {memory:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
