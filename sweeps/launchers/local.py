"""The local launcher: worker processes on this host, each on its own cores or accelerators.

It also works inside every job of the other launchers: `sweeps.scheduling.job` runs the job's trials
by it.
"""

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

from sweeps.launchers import config_keys, slots
from sweeps.launchers.config_keys import Key, Range
from sweeps.records import code_snapshot

KEYS = {
    "workers": Key(0, "processes; 0: one per CPU core or accelerator, at most 8", Range(0, 1024)),
    "pin": Key(True, "each worker to its own CPU cores or accelerators"),
}
DEFAULTS = config_keys.defaults(KEYS)

# Below it lie dev, proc and sys.
ROOT = "/"
_MOST_CPU_WORKERS = 8
# Slurm writes NoDevFiles for jobs without a device.
_NO_DEVICE = ("", "-1", "NoDevFiles")
_FORCED = r"--xla_force_host_platform_device_count=(\d+)"
# glibc would give every large buffer of a step back to the kernel and fault it in again for the
# next: keeping them saves 15 % of a digits_vit step (44.8 to 38.1 ms on one core).
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError for a number of workers that cannot be."""
    config_keys.check(KEYS, settings["local"], "local.")


def platform(settings: dict[str, Any]) -> str:
    """Returns 'gpu', 'tpu' or 'cpu': what this host's workers will compute on."""
    del settings
    variable, numbers = accelerators()
    names = {"CUDA_VISIBLE_DEVICES": "gpu", "TPU_VISIBLE_CHIPS": "tpu"}
    return names[variable] if numbers else "cpu"


def devices(settings: dict[str, Any]) -> int:
    """Returns how many devices a trial sees on this host."""
    return devices_per_worker(settings["local"])


class LocalWorkers:
    """N worker processes. Events arrive in `events` as (slot, event); None when a worker ends.

    `settings` is {"workers", "pin"}: 0 workers are one per accelerator, else per CPU core, at most
    8. `snapshot` is the code they run. A slot of an `owner` (a study's or job's path) has one
    worker on this host, also when one has outlived its driver. `leads`: the worker is the primary
    process of several. Workers that do not compute on `platform` end at once.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        log: pathlib.Path,
        snapshot: pathlib.Path,
        owner: str,
        leads: bool = False,
        platform: str = "",
    ) -> None:
        self._pin_variable, self._accelerators = accelerators()
        cores = sorted(os.sched_getaffinity(0))
        automatic = len(self._accelerators) or min(len(cores), _MOST_CPU_WORKERS)
        self.size = settings["workers"] or automatic
        if settings["pin"] and 0 < len(self._accelerators) < self.size:
            raise ValueError(
                f"{self.size} workers, but there are {len(self._accelerators)} accelerators: "
                "give at most one worker each, or local.pin=False"
            )
        self._pin, self._cores, self._log = settings["pin"], cores, log
        self._snapshot, self._owner = snapshot, owner
        self._arguments = ["--primary"] if leads else []
        self._arguments += [f"--platform={platform}"] if platform else []
        self.events: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, slot: int) -> bool:
        """Starts the worker of a slot (0 … size − 1).

        Returns False, and does nothing, where a worker of an earlier driver still lives there.
        """
        claim = slots.claim(f"{self._owner} {slot}")
        if claim is None:
            return False
        command = [
            sys.executable,
            "-m",
            "sweeps.worker",
            f"--cache_dir={compilation_cache()}",
        ]
        command += self._arguments
        if self._pin and not self._accelerators:
            command.append(f"--cpus={','.join(map(str, self._cores_of(slot)))}")
        try:
            with self._log.open("a") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=self._environment(slot),
                    pass_fds=(claim.fileno(),),
                )
        finally:
            claim.close()  # the worker holds it from here on, until it ends
        self._processes[slot] = process
        threading.Thread(target=self._listen, args=(slot, process), daemon=True).start()
        return True

    def _cores_of(self, slot: int) -> list[int]:
        """Returns the slot's share of the cores; more workers than cores share them in turn."""
        # Equal shares: XLA's reductions depend on the number of threads.
        share = max(1, len(self._cores) // self.size)
        return self._cores[slot :: self.size][:share] or [self._cores[slot % len(self._cores)]]

    def _environment(self, slot: int) -> dict[str, str]:
        environment = {**MALLOC, **os.environ, **code_snapshot.environment(self._snapshot)}
        path = os.environ.get("PYTHONPATH", "")
        environment["PYTHONPATH"] += os.pathsep + path if path else ""
        if self._pin and self._accelerators:
            # Equal shares: a trial must not depend on who runs it.
            share = max(1, len(self._accelerators) // self.size)
            own = self._accelerators[slot :: self.size][:share]
            environment[self._pin_variable] = ",".join(own)
            if self._pin_variable == "TPU_VISIBLE_CHIPS" and self.size > 1:
                environment |= _tpu_bounds(len(own))
        return environment

    def _listen(self, slot: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with contextlib.suppress(ValueError):  # cut short: its writer was killed
                    self.events.put((slot, json.loads(line)))
        process.wait()
        self.events.put((slot, None))

    def send(self, slot: int, **order: Any) -> None:
        """Gives an idle worker an order (see sweeps.worker); one that died tells by
        `events`."""
        stream = self._processes[slot].stdin
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):
            stream.write(json.dumps(order) + "\n")
            stream.flush()

    def was_killed(self, slot: int) -> bool:
        """Whether the slot's last worker was ended by a signal."""
        return (self._processes[slot].poll() or 0) < 0

    def pid(self, slot: int) -> int:
        """Returns the process of a slot's worker."""
        return self._processes[slot].pid

    def kill(self, slot: int) -> None:
        """Kills a worker that no longer does anything; `events` tells that it has ended."""
        self._processes[slot].kill()

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


def _tpu_bounds(chips: int) -> dict[str, str]:
    """Returns what libtpu needs where processes share a host's chips: the grid of one's own.

    Raises ValueError for numbers of chips that form no grid of their own.
    """
    grids = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1"}
    if chips not in grids:
        raise ValueError(
            f"{chips} TPU chips for each worker; 1, 2 or 4 can be separated: change local.workers"
        )
    return {"TPU_CHIPS_PER_PROCESS_BOUNDS": grids[chips], "TPU_PROCESS_BOUNDS": "1,1,1"}


def wanted(settings: dict[str, Any]) -> str:
    """Returns 'gpu' or 'tpu' where this host's workers must compute there, '' where they need not.

    A host without either may compute on whatever JAX finds.
    """
    found = platform(settings)
    return "" if found == "cpu" else found


def accelerators() -> tuple[str, list[str]]:
    """Returns the variable that pins a process to accelerators, and their numbers (maybe none).

    They are what the kernel shows, whether or not JAX can use them.
    """
    if os.environ.get("JAX_PLATFORMS", "").partition(",")[0] == "cpu":
        return "", []
    for variable, pattern in (
        ("CUDA_VISIBLE_DEVICES", "dev/nvidia[0-9]*"),
        # The driver makes its devices when they are first used.
        ("CUDA_VISIBLE_DEVICES", "proc/driver/nvidia/gpus/*"),
        ("TPU_VISIBLE_CHIPS", "dev/accel[0-9]*"),
        ("TPU_VISIBLE_CHIPS", "dev/vfio/[0-9]*"),  # v5 and later
    ):
        given = os.environ.get(variable)
        paths = sorted(glob.glob(pattern, root_dir=ROOT))
        if "vfio" in pattern and not _has_google_devices():
            continue  # a host that passes devices of others to virtual machines
        names = [path.rpartition("/")[2] for path in paths]
        # Those of /proc are PCI addresses, in the order of CUDA's numbers.
        by_order = pattern.startswith("proc")
        numbers = [str(n) if by_order else re.sub(r"\D", "", x) for n, x in enumerate(names)]
        if numbers:
            if given is None:
                return variable, numbers
            return variable, [number for number in given.split(",") if number not in _NO_DEVICE]
    return "", []


def _has_google_devices() -> bool:
    """Whether a PCI device is Google's, as JAX looks for TPUs (jax/_src/hardware_utils.py)."""
    for path in glob.glob("sys/bus/pci/devices/*/vendor", root_dir=ROOT):
        with contextlib.suppress(OSError):
            if (pathlib.Path(ROOT) / path).read_text().strip() == "0x1ae0":
                return True
    return False


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
