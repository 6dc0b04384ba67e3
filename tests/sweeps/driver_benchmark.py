"""How fast the driver is: `python -m tests.sweeps.driver_benchmark` prints seconds until it has
answered.

    python -m tests.sweeps.driver_benchmark [--runs=7]

Each line is the median of several runs of the real command, in a new process each. 'python' is an
interpreter that does nothing. 'run' counts until the first job exists; its study is
stopped then. Embedded data is prepared before the first measurement.
"""

import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from workloads.arguments import whole

STUDY = "digits_vit_quick"
WITH_MEMORY = "c4_lm_234m_paper"
_JOB = b"sweeps\0job\0"
_DEADLINE_S = 300.0


def measure(command: list[str]) -> float:
    """Returns how long a command takes, seconds. Raises CalledProcessError where it fails."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def until_worker(command: list[str]) -> float:
    """Returns the seconds until the command's process has started a worker; ends it then.

    Raises RuntimeError with its output where it ends before.
    """
    began, found, ended = time.perf_counter(), False, False
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            while not found and not ended:
                found = _JOB in _children(process.pid)
                took = time.perf_counter() - began
                ended = process.poll() is not None or took > _DEADLINE_S
                time.sleep(0.002)
        finally:
            process.terminate()
        output = process.communicate()[0]
    if not found:
        raise RuntimeError(f"no worker after {took:.1f} s:\n{output}")
    return took


def _children(pid: int) -> bytes:
    """Returns the command lines of a process's children."""
    found = b""
    with contextlib.suppress(OSError):  # it, or one of them, ended meanwhile
        for number in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split():
            found += pathlib.Path(f"/proc/{number}/cmdline").read_bytes()
    return found


def cases(folder: pathlib.Path) -> dict[str, Callable[[], float]]:
    """Returns what is measured, by name; studies live in `folder`."""
    sweeps = [sys.executable, "-m", "sweeps"]
    run = [*sweeps, "run", f"--config={STUDY}", f"--config.experiment_dir={folder}"]
    plan = [*sweeps, "plan"]
    return {
        "python": lambda: measure([sys.executable, "-c", "pass"]),
        f"run {STUDY}, to its first worker": lambda: until_worker(run),
        "status": lambda: measure([*sweeps, "status", str(folder / STUDY)]),
        f"plan {STUDY}": lambda: measure([*plan, f"--config={STUDY}"]),
        f"plan {WITH_MEMORY}, with memory": lambda: measure([*plan, f"--config={WITH_MEMORY}"]),
    }


def main(arguments: list[str] | None = None) -> int:
    """Prints the medians. Returns 0."""
    prog, about = "python -m tests.sweeps.driver_benchmark", __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(prog=prog, description=about, allow_abbrev=False)
    text = "of each command (default 7)"
    parser.add_argument("--runs", type=whole(1, 10_000), default=7, help=text)
    runs = parser.parse_args(arguments).runs
    with tempfile.TemporaryDirectory() as folder:
        for name, case in cases(pathlib.Path(folder)).items():
            case()  # files cached, data prepared
            seconds = sorted(case() for _ in range(runs))
            spread = f"({seconds[0]:.3f} to {seconds[-1]:.3f}, {runs} runs)"
            print(f"{name:<44}{statistics.median(seconds):>8.3f} s   {spread}", flush=True)
    print(f"on {os.cpu_count()} CPUs, Python {sys.version.split()[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
