"""The local launcher: worker processes on this host, each on its own cores or accelerators.

It also works inside every job of the other launchers, which run the job's trials by it.
"""

import contextlib
import errno
import glob
import hashlib
import json
import os
import pathlib
import queue
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, TypeVar

from sweeps.launchers import config_keys, tpu_host
from sweeps.launchers.config_keys import Key, Range
from sweeps.records.submissions import Batch
from workloads import init2winit_specs
from workloads.base import machine

KEYS = {
    "workers": Key(0, "processes; 0: one per CPU core or accelerator, at most 8", Range(0, 1024)),
    "pin": Key(True, "each worker to its own CPU cores or accelerators"),
}
Thing = TypeVar("Thing")
# In the study's directory: what workers say beside their trials.
LOG = "workers.log"

# Below it lie dev, proc and sys.
ROOT = "/"
_MOST_CPU_WORKERS = 8
# Slurm writes NoDevFiles for jobs without a device.
_NO_DEVICE = ("", "-1", "NoDevFiles")
_FORCED = r"--xla_force_host_platform_device_count=(\d+)"
# glibc would give every large buffer of a step back to the kernel and fault it in again for the
# next: keeping them saves 15 % of a digits_vit step (44.8 to 38.1 ms on one core).
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


class Local:
    """This host. A job is a worker process in a slot, which the handle numbers: '0' … 'size − 1'.

    A worker is given its trials one by one (`send`), so that they share what it has compiled; its
    events arrive in `events` as (slot, event), None when it ends. A slot of an `owner` (a study's
    or job's path) has one worker on this host, also when one has outlived its driver.

    `own` is config.local: 0 workers are one per accelerator, else per CPU core, at most 8. `log` is
    where workers write what is no trial's. `primary`: the worker is the first process of several
    that train a trial. Workers that do not compute on `platform` end at once; without
    `jax` they leave the devices to another trainer's processes. Raises ValueError for more workers
    than accelerators, and for TPU chips that cannot be divided so.
    """

    def __init__(
        self,
        own: dict[str, Any],
        log: pathlib.Path,
        owner: str,
        primary: bool = False,
        platform: str = "",
        jax: bool = True,
    ) -> None:
        self._pin_variable, self._accelerators = accelerators()
        cores = sorted(os.sched_getaffinity(0))
        automatic = len(self._accelerators) or min(machine.cpu_count(), _MOST_CPU_WORKERS)
        self._size = own["workers"] or automatic
        if own["pin"] and 0 < len(self._accelerators) < self._size:
            raise ValueError(
                f"{self._size} workers, but there are {len(self._accelerators)} accelerators: "
                "give at most one worker each, or local.pin=False"
            )
        self._pin, self._cores, self.log, self._owner = own["pin"], cores, log, owner
        if self._divides_tpu():
            tpu_host.check(_share(self._accelerators, 0, self._size))
        self.primary = primary
        self._arguments = ["--primary"] if primary else []
        self._arguments += [f"--platform={platform}"] if platform else []
        self._arguments += [] if jax else ["--no_jax"]
        self.events: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._processes: dict[int, subprocess.Popen[str]] = {}

    def _divides_tpu(self) -> bool:
        """Whether several workers share the chips of a TPU host."""
        chips = self._pin_variable == "TPU_VISIBLE_CHIPS" and bool(self._accelerators)
        return self._pin and chips and self._size > 1

    def capacity(self) -> int:
        """Returns how many workers there may be."""
        return self._size

    def cancel(self, handles: Sequence[str]) -> None:
        """Asks workers that were started here to save and end."""
        for slot in map(int, handles):
            if slot in self._processes and self._processes[slot].poll() is None:
                self._processes[slot].terminate()

    def start(self, slot: int, variables: dict[str, str]) -> bool:
        """Starts the worker of a slot, with a batch's variables.

        Returns False, and does nothing, where a worker of an earlier driver still lives there.
        """
        held = hold_name(f"{self._owner} {slot}")
        if held is None:
            return False
        # The worker holds the name from here on, until it ends.
        with held, self.log.open("ab") as log:
            process = subprocess.Popen(
                self.command(slot),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                errors="replace",  # what Python's start prints comes before the events
                env=self._environment(slot, variables),
                pass_fds=(held.fileno(),),
            )
        self._processes[slot] = process
        threading.Thread(target=self._listen, args=(slot, process), daemon=True).start()
        return True

    def command(self, slot: int) -> list[str]:
        """Returns the command of a slot's worker."""
        command = [sys.executable, "-m", "sweeps.worker"]
        command += [f"--cache_dir={compilation_cache()}", *self._arguments]
        if self._pin and not self._accelerators:
            # Equal shares: XLA's reductions depend on the number of threads. More workers than
            # cores share them in turn.
            own = _share(self._cores, slot, self._size) or [self._cores[slot % len(self._cores)]]
            command.append(f"--cpus={','.join(map(str, own))}")
        return command

    def _environment(self, slot: int, variables: dict[str, str]) -> dict[str, str]:
        environment = {**MALLOC, **os.environ, **variables}
        paths = (variables.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if self._pin and self._accelerators:
            # Equal shares: a trial must not depend on who runs it.
            own = _share(self._accelerators, slot, self._size)
            alone = {self._pin_variable: ",".join(own)}
            divides = self._divides_tpu()
            environment |= tpu_host.variables(own, free_ports(1)) if divides else alone
        return environment

    def _listen(self, slot: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with contextlib.suppress(ValueError):  # cut short, as its writer was killed
                    event = json.loads(line)
                    if isinstance(event, dict) and "event" in event:
                        self.events.put((slot, event))
        process.wait()
        self.events.put((slot, None))

    def send(self, slot: int, **order: Any) -> None:
        """Gives an idle worker an order (see sweeps.worker); one that died tells by `events`."""
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

    def close(self, timeout: float = 120.0) -> None:
        """Ends the workers, which save what they have at hand; kills them after `timeout` s."""
        self.cancel([str(slot) for slot in self._processes])
        for process in self._processes.values():
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()


class LocalLauncher(Local):
    """The workers of a study. Raises ValueError for more workers than accelerators."""

    KEYS = KEYS

    def __init__(self, settings: dict[str, Any], study_directory: pathlib.Path) -> None:
        # A host without accelerator may compute on whatever JAX finds.
        accelerator = self.platform(settings).replace("cpu", "")
        log, owner = study_directory / LOG, os.path.realpath(study_directory)
        jax = not init2winit_specs.is_init2winit(settings["workload"])
        super().__init__(settings["local"], log, owner, platform=accelerator, jax=jax)

    @classmethod
    def check(cls, settings: dict[str, Any]) -> None:
        """Raises ValueError for a number of workers that cannot be."""
        config_keys.check(cls.KEYS, settings["local"], "local.")

    @classmethod
    def platform(cls, settings: dict[str, Any]) -> str:
        """Returns 'gpu', 'tpu' or 'cpu': what this host's workers will compute on."""
        del settings
        variable, numbers = accelerators()
        names = {"CUDA_VISIBLE_DEVICES": "gpu", "TPU_VISIBLE_CHIPS": "tpu"}
        return names[variable] if numbers else "cpu"

    @classmethod
    def devices(cls, settings: dict[str, Any]) -> int:
        """Returns how many devices JAX will see in a worker of this host."""
        own, (_, numbers) = settings["local"], accelerators()
        if not numbers:
            forced = re.search(_FORCED, os.environ.get("XLA_FLAGS", ""))
            return int(forced[1]) if forced else 1
        workers = own["workers"] or len(numbers)
        return max(1, len(numbers) // workers) if own["pin"] else len(numbers)

    @classmethod
    def preview(cls, settings: dict[str, Any], batch: Batch) -> str:
        """Returns the command of a batch's first worker."""
        return shlex.join(Local(settings["local"], batch.file, "").command(0))

    @staticmethod
    def requeue() -> bool:
        """Returns False: this host starts no job twice, the scheduler does."""
        return False


def _share(things: list[Thing], slot: int, size: int) -> list[Thing]:
    """Returns what slot `slot` of `size` gets: neighbours, as many as every other, at least one
    while any is left."""
    own = max(1, len(things) // size)
    return things[slot * own :][:own]


def free_ports(count: int) -> list[int]:
    """Returns different ports of loopback that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def hold_name(name: str) -> socket.socket | None:
    """Returns what holds a name of this user on this host, None where it is taken.

    The name is held until the last copy of the socket is closed, in whichever process. It is an
    abstract address of the kernel's: no file that somebody tidies up, no home directory that hosts
    share, and free as soon as the last process that holds it has ended.
    """
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0attnperf-{os.getuid()}-{digest}")
    except OSError as error:
        held.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return held


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
        paths = glob.glob(pattern, root_dir=ROOT)
        if not paths or ("vfio" in pattern and not _has_google_devices()):
            continue  # maybe a host that passes devices of others to virtual machines
        if (given := os.environ.get(variable)) is not None:
            return variable, [number for number in given.split(",") if number not in _NO_DEVICE]
        # A container has its host's names, nvidia4, for what CUDA counts from 0.
        return variable, [str(number) for number in range(len(paths))]
    return "", []


def _has_google_devices() -> bool:
    """Whether a PCI device is Google's, as JAX looks for TPUs (jax/_src/hardware_utils.py)."""
    for path in glob.glob("sys/bus/pci/devices/*/vendor", root_dir=ROOT):
        with contextlib.suppress(OSError):
            if (pathlib.Path(ROOT) / path).read_text("utf-8").strip() == "0x1ae0":
                return True
    return False


def compilation_cache() -> pathlib.Path:
    """Returns the folder of JAX's persistent cache for this kind of CPU.

    $JAX_COMPILATION_CACHE_DIR where set. Otherwise one folder per set of CPU features: XLA's CPU
    programs use the features of the machine that compiled them, and home directories are shared.
    """
    if given := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return pathlib.Path(given)
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        features = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = ""
    name = hashlib.sha256(features.encode()).hexdigest()[:12]
    return machine.cache_folder() / "xla" / name
