"""The local launcher: worker processes on this host, each on its own cores or accelerator."""

import contextlib
import glob
import hashlib
import json
import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
from typing import Any

_MOST_CPU_WORKERS = 8
_FORCED = r"--xla_force_host_platform_device_count=(\d+)"
# glibc would give every large buffer of a step back to the kernel and fault it in again for the
# next: keeping them saves 15 % of a digits_vit step (44.8 to 38.1 ms on one core).
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


class LocalWorkers:
    """N worker processes. Events arrive in `events` as (slot, event); None when a worker ends.

    `settings` is config.local: workers (0: one per accelerator, else per CPU core, at most 8)
    and pin.
    """

    def __init__(self, settings: dict[str, Any], log: pathlib.Path) -> None:
        self._pin_variable, self._accelerators = accelerators()
        cores = sorted(os.sched_getaffinity(0))
        automatic = len(self._accelerators) or min(len(cores), _MOST_CPU_WORKERS)
        self.size = settings["workers"] or automatic
        if settings["pin"] and 0 < len(self._accelerators) < self.size:
            raise ValueError(
                f"local.workers is {self.size}, but there are {len(self._accelerators)} "
                "accelerators: give at most one worker each, or local.pin=False"
            )
        self._pin, self._cores, self._log = settings["pin"], cores, log
        self.events: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, slot: int) -> None:
        """Starts the worker of a slot (0 … size − 1)."""
        command = [sys.executable, "-m", "sweeps.worker", f"--cache_dir={compilation_cache()}"]
        if self._pin and not self._accelerators:
            command.append(f"--cpus={','.join(map(str, self._cores_of(slot)))}")
        with self._log.open("a") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment(slot),
            )
        self._processes[slot] = process
        threading.Thread(target=self._listen, args=(slot, process), daemon=True).start()

    def _cores_of(self, slot: int) -> list[int]:
        """Returns the slot's share of the cores; more workers than cores share them in turn."""
        # Equal shares: XLA's reductions depend on the number of threads.
        share = max(1, len(self._cores) // self.size)
        return self._cores[slot :: self.size][:share] or [self._cores[slot % len(self._cores)]]

    def _environment(self, slot: int) -> dict[str, str]:
        environment = {**_MALLOC, **os.environ}
        # The code of this checkout, wherever the driver was started.
        root = str(pathlib.Path(__file__).resolve().parents[2])
        path = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(part for part in (root, path) if part)
        if self._pin and self._accelerators:
            # Equal shares: a trial must not depend on who runs it.
            share = max(1, len(self._accelerators) // self.size)
            own = self._accelerators[slot :: self.size][:share]
            environment[self._pin_variable] = ",".join(own)
        return environment

    def _listen(self, slot: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError):  # cut short: its writer was killed
                self.events.put((slot, json.loads(line)))
        process.wait()
        self.events.put((slot, None))

    def send(self, slot: int, **order: Any) -> None:
        """Gives an idle worker an order (see sweeps.worker); one that died tells by `events`."""
        stream = self._processes[slot].stdin
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):
            stream.write(json.dumps(order) + "\n")
            stream.flush()

    def terminate(self) -> None:
        """Asks all workers to save and end."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()

    def close(self, timeout: float = 120.0) -> None:
        """Ends the workers, which save what they have at hand; kills them after `timeout` s."""
        self.terminate()
        for process in self._processes.values():
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()


def accelerators() -> tuple[str, list[str]]:
    """Returns the variable that pins a process to accelerators, and their numbers (maybe none)."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return "", []
    for variable, pattern in (
        ("CUDA_VISIBLE_DEVICES", "/dev/nvidia[0-9]*"),
        ("TPU_VISIBLE_CHIPS", "/dev/accel[0-9]*"),
        ("TPU_VISIBLE_CHIPS", "/dev/vfio/[0-9]*"),  # v5 and later
    ):
        given = os.environ.get(variable)
        numbers = [re.sub(r"\D", "", path) for path in sorted(glob.glob(pattern))]
        if numbers:
            if given is None:
                return variable, numbers
            return variable, [number for number in given.split(",") if number not in ("", "-1")]
    return "", []


def devices_per_worker(settings: dict[str, Any]) -> int:
    """Returns how many devices JAX will see in a worker, for `settings` = config.local."""
    _, numbers = accelerators()
    if not numbers:
        forced = re.search(_FORCED, os.environ.get("XLA_FLAGS", ""))
        return int(forced[1]) if forced else 1
    workers = settings["workers"] or len(numbers)
    return max(1, len(numbers) // workers) if settings["pin"] else len(numbers)


def compilation_cache() -> pathlib.Path:
    """Returns the folder of JAX's persistent cache for this kind of CPU.

    $JAX_COMPILATION_CACHE_DIR where set. Otherwise one folder per set of CPU features: XLA's CPU
    programs use the features of the machine that compiled them, and home directories are shared.
    """
    given = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if given:
        return pathlib.Path(given)
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        features = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = ""
    name = hashlib.sha256(features.encode()).hexdigest()[:12]
    root = os.environ.get("ATTNPERF_CACHE")
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return (pathlib.Path(root) if root else pathlib.Path(cache) / "attnperf") / "xla" / name
