"""The local launcher: jobs on this host, each on its own cores or accelerators."""

import collections
import contextlib
import errno
import glob
import hashlib
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from sweeps.launchers import config_keys, remote, tpu_host
from sweeps.launchers.config_keys import Key, Range
from sweeps.launchers.protocol import Devices, Launcher, State
from sweeps.records import provenance, status, submissions
from sweeps.records.submissions import Batch
from workloads.base import machine

Thing = TypeVar("Thing")

# Below it lie dev, proc and sys.
ROOT = "/"
_MOST_CPU_WORKERS = 8
# A compilation or a full evaluation may have to end before a trial is saved.
_SAVE_S, _POLL_S = 600.0, 0.05
# Slurm writes NoDevFiles for jobs without a device.
_NO_DEVICE = ("", "-1", "NoDevFiles")
_FORCED = r"--xla_force_host_platform_device_count=(\d+)"


class Slots:
    """This host's cores or accelerators in equal shares, numbered 0 … size − 1, one a process.

    keys: {"workers", "pin"} as of config.local: 0 workers are one per accelerator, else per CPU
    core, at most 8. Raises ValueError for more workers than accelerators, and for TPU chips that
    cannot be divided so.
    """

    def __init__(self, keys: Mapping[str, Any]) -> None:
        self._variable, self._accelerators = accelerators()
        self._cores, self._pin = sorted(os.sched_getaffinity(0)), keys["pin"]
        automatic = len(self._accelerators) or min(machine.cpu_count(), _MOST_CPU_WORKERS)
        self.size: int = keys["workers"] or automatic
        if self._pin and 0 < len(self._accelerators) < self.size:
            raise ValueError(
                f"{self.size} workers, but there are {len(self._accelerators)} accelerators: "
                "give at most one worker each, or local.pin=False"
            )
        chips = self._variable == "TPU_VISIBLE_CHIPS" and bool(self._accelerators)
        self._divides_tpu = self._pin and chips and self.size > 1
        if self._divides_tpu:
            tpu_host.check(_share(self._accelerators, 0, self.size))

    def arguments(self, slot: int) -> list[str]:
        """Returns the arguments that put `python -m sweeps job` on its share of the cores."""
        if not self._pin or self._accelerators:
            return []
        # Equal shares: XLA's reductions depend on the number of threads. More workers than cores
        # share them in turn.
        cores = _share(self._cores, slot, self.size) or [self._cores[slot % len(self._cores)]]
        return [f"--cpus={','.join(map(str, cores))}"]

    def environment(self, slot: int) -> dict[str, str]:
        """Returns the variables by which a process sees its share of the accelerators alone."""
        if not (self._pin and self._accelerators):
            return {}
        # Equal shares: a trial must not depend on who runs it.
        devices = _share(self._accelerators, slot, self.size)
        if self._divides_tpu:
            return tpu_host.variables(devices, free_ports(1))
        return {self._variable: ",".join(devices)}


class LocalLauncher(Launcher):
    """This host. A job is a process in a slot of the study, which it holds until it ends.

    A job holds two names of the kernel's, its slot's and its own, the handle: so that every driver
    sees whether it runs, also once its own driver was killed. Jobs for which no slot is free are
    queued in the driver that submitted them. Raises ValueError as `Slots`.
    """

    NAME = "local"
    KEYS: ClassVar = {
        "workers": Key(
            0, "processes; 0: one per CPU core or accelerator, at most 8", Range(0, 1024)
        ),
        "pin": Key(True, "each process to its own CPU cores or accelerators"),
    }
    is_this_host = True

    def __init__(self, settings: dict[str, Any], study_directory: pathlib.Path) -> None:
        super().__init__(settings, study_directory)
        self._slots = Slots(self._keys)
        self._study = pathlib.Path(os.path.realpath(study_directory))
        # With the trials that were not complete when they were last looked at.
        self._queue: dict[str, tuple[Batch, int, collections.deque[str]]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @classmethod
    def check(cls, settings: dict[str, Any]) -> None:
        """Raises ValueError for a number of workers that cannot be."""
        config_keys.check(cls.KEYS, settings["local"], "local.")

    @classmethod
    def hardware(cls, settings: dict[str, Any]) -> Devices:
        """Returns the devices that JAX will see in a job of this host."""
        keys, (variable, numbers) = settings["local"], accelerators()
        if not numbers:
            forced = re.search(_FORCED, os.environ.get("XLA_FLAGS", ""))
            return Devices("cpu", int(forced[1]) if forced else 1)
        kind = "gpu" if variable == "CUDA_VISIBLE_DEVICES" else "tpu"
        workers = keys["workers"] or len(numbers)
        return Devices(kind, len(numbers), workers=workers if keys["pin"] else 1)

    @classmethod
    def preview(cls, settings: dict[str, Any], batch: Batch) -> str:
        """Returns the command of a batch's first job."""
        return shlex.join([*batch.command(0), *Slots(settings["local"]).arguments(0)])

    def capacity(self) -> int:
        """Returns the number of slots."""
        return self._slots.size

    def submit(self, batch: Batch) -> list[str]:
        """Starts a batch's jobs, or queues those for which no slot is free; returns their names."""
        handles = remote.job_names(batch)
        for index, handle in enumerate(handles):
            self._queue[handle] = batch, index, collections.deque(batch.jobs[index])
        self._start_queued()
        return handles

    def find(self, batch: Batch) -> list[str] | None:
        """Returns the names of a batch's jobs, None where none of them runs or waits here."""
        handles = remote.job_names(batch)
        is_known = any(handle in self._queue or _is_held(handle) for handle in handles)
        return handles if is_known else None

    def status(self, handles: Sequence[str]) -> dict[str, State]:
        """Returns the state of every handle; starts queued jobs in slots that are free."""
        self._start_queued()
        return {handle: self._state(handle) for handle in handles}

    def cancel(self, handles: Sequence[str]) -> None:
        """Asks jobs to save and end, whichever driver of this host started them."""
        for handle in handles:
            self._queue.pop(handle, None)
            if self._state(handle) is State.RUNNING:
                process = self._processes.get(handle)
                pid = process.pid if process else submissions.process(self._study, handle)
                if pid is not None:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGTERM)

    def close(self) -> None:
        """Has the jobs that were started here save, and waits; kills them after ten minutes."""
        self.cancel([*self._queue, *self._processes])
        waits = int(_SAVE_S / _POLL_S)  # counted: while this process is stopped, no job saves
        for process in self._processes.values():
            while process.poll() is None and waits > 0:
                time.sleep(_POLL_S)
                waits -= 1
            process.kill()
            process.wait()

    def _state(self, handle: str) -> State:
        if handle in self._queue:
            return State.QUEUED
        process = self._processes.get(handle)
        is_over = process is not None and process.poll() is not None
        if not is_over and _is_held(handle):
            return State.RUNNING
        self._processes.pop(handle, None)
        return State.GONE

    def _start_queued(self) -> None:
        for handle, (batch, index, trials) in list(self._queue.items()):
            slot, held = self._free_slot()
            if held is not None:
                with held:
                    self._processes[handle] = self._start(batch, index, slot, handle, held)
                del self._queue[handle]
                continue
            # Jobs of another driver, which has the slots, may have ended them.
            while trials and status.recorded(self._study / trials[0])["state"] in status.COMPLETE:
                trials.popleft()
            if not trials:
                del self._queue[handle]

    def _free_slot(self) -> tuple[int, socket.socket | None]:
        """Returns a slot and the hold on its name, (0, None) where none is free."""
        for slot in range(self._slots.size):
            if (held := hold_name(f"{self._study} {slot}")) is not None:
                return slot, held
        return 0, None

    def _start(
        self, batch: Batch, index: int, slot: int, handle: str, held: socket.socket
    ) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, **batch.environment, **self._slots.environment(slot)}
        paths = (batch.environment.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        while (named := hold_name(handle)) is None:  # another driver asks whether it runs
            time.sleep(0.01)
        # The job holds both names from here on, until it ends.
        with named, batch.log(index).open("ab") as log:
            return subprocess.Popen(
                [*batch.command(index), *self._slots.arguments(slot)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=(held.fileno(), named.fileno()),
                start_new_session=True,  # Ctrl-C is for the driver, which passes it on
            )


def _share(things: list[Thing], slot: int, size: int) -> list[Thing]:
    """Returns what slot `slot` of `size` gets: neighbours, as many as every other, at least one
    while any is left."""
    count = max(1, len(things) // size)
    return things[slot * count :][:count]


def free_ports(count: int) -> list[int]:
    """Returns different ports of loopback that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


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


def _is_held(name: str) -> bool:
    held = hold_name(name)
    if held is None:
        return True
    held.close()
    return False


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
        if (visible := os.environ.get(variable)) is not None:
            return variable, [number for number in visible.split(",") if number not in _NO_DEVICE]
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
    if folder := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return pathlib.Path(folder)
    features = provenance.cpu("flags", "Features") or ""
    name = hashlib.sha256(features.encode()).hexdigest()[:12]
    return machine.cache_folder() / "xla" / name
