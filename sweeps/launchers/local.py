"""The local launcher: jobs on this host, each on its own cores or accelerators."""

import collections
import contextlib
import glob
import hashlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attention.common import machine
from sweeps.launchers import device_locks, remote, tpu_host
from sweeps.launchers.config_keys import Key, Range
from sweeps.launchers.protocol import Devices, Launcher, State
from sweeps.records import provenance, status, submissions
from sweeps.records.submissions import Batch

# Below it lie dev, proc and sys.
ROOT = "/"
_MOST_CPU_WORKERS = 8
# A compilation or a full evaluation may have to end before a trial is saved.
_SAVE_S, _POLL_S = 600.0, 0.05
# Slurm writes NoDevFiles for jobs without a device.
_NO_DEVICE = ("", "-1", "NoDevFiles")
# Devices by the variable that pins a process to them, as people call them.
_KINDS = {"CUDA_VISIBLE_DEVICES": "GPU", "TPU_VISIBLE_CHIPS": "TPU chip"}
_FORCED = r"--xla_force_host_platform_device_count=(\d+)"


class Slots:
    """This host's cores or accelerators in equal shares, numbered 0 … size − 1, one a process.

    keys: {"workers", "pin"} as of config.local: 0 workers are one per accelerator, else per CPU
    core, at most 8. Raises ValueError for more workers than accelerators, and for TPU chips that
    cannot be divided so. kind: 'GPU', 'TPU chip' or 'core'.
    """

    def __init__(self, keys: Mapping[str, Any]) -> None:
        self._variable, self._devices = accelerators()
        self.kind = _KINDS[self._variable] if self._devices else "core"
        automatic = len(self._devices) or min(machine.cpu_count(), _MOST_CPU_WORKERS)
        self.size: int = keys["workers"] or automatic
        self._pin = keys["pin"]
        if self._pin and 0 < len(self._devices) < self.size:
            raise ValueError(
                f"{self.size} workers, but there are {len(self._devices)} accelerators: "
                "give at most one worker each, or local.pin=False"
            )
        self._divides_tpu = self._pin and self.kind == "TPU chip" and self.size > 1
        if self._divides_tpu:
            tpu_host.check(self.share(0))
        if self.kind == "core":
            self._devices = [str(core) for core in sorted(os.sched_getaffinity(0))]

    def share(self, slot: int) -> list[str]:
        """Returns the devices of a slot: neighbours, as many as every other slot has.

        A trial must not depend on who runs it, and XLA's reductions depend on the number of
        threads. More workers than cores share them in turn.
        """
        count = max(1, len(self._devices) // self.size)
        others = self._devices[slot % len(self._devices)]
        return self._devices[slot * count :][:count] or [others]

    def hold(self, slot: int, exclusive: bool) -> tuple[list[str], list[socket.socket]]:
        """Returns devices for a job in a slot, and locks on them; [], [] while others hold them.

        Any cores will do: those that are free come first. If too few are and `exclusive` is False,
        cores of other jobs complete the share, without a lock.
        """
        share, is_core = self.share(slot), self.kind == "core"
        if not self._pin:
            return share, []
        order = dict.fromkeys([*share, *(self._devices if is_core else ())])
        locks = device_locks.hold_devices(self.kind, order, len(share))
        if len(locks) < len(share) and (exclusive or not is_core):
            device_locks.release(locks.values())
            return [], []
        chosen = [*locks, *(number for number in order if number not in locks)][: len(share)]
        return sorted(chosen, key=self._devices.index), [*locks.values()]

    def arguments(self, devices: Sequence[str]) -> list[str]:
        """Returns the arguments that put `python -m sweeps job` on its cores."""
        return [f"--cpus={','.join(devices)}"] if self._pin and self.kind == "core" else []

    def environment(self, devices: Sequence[str]) -> dict[str, str]:
        """Returns the variables by which a process sees its accelerators alone."""
        if not self._pin or self.kind == "core":
            return {}
        if self._divides_tpu:
            return tpu_host.variables(devices, free_ports(1))
        return {self._variable: ",".join(devices)}


class LocalLauncher(Launcher):
    """This host. A job is a process in a slot of the study, which it holds until it ends.

    A job holds locks on its slot, its devices and its own name, the handle: so that every driver
    sees whether it runs, also once its own driver was killed. Jobs for which no slot or device is
    free are queued in the driver that submitted them. Raises ValueError as `Slots`.
    """

    NAME = "local"
    KEYS: ClassVar = {
        "workers": Key(
            0, "processes; 0: one per CPU core or accelerator, at most 8", Range(0, 1024)
        ),
        "pin": Key(True, "each process to its own CPU cores or accelerators"),
        "exclusive": Key(False, "wait for free CPU cores instead of sharing other studies'"),
    }
    is_this_host = True

    def __init__(self, settings: dict[str, Any], study_directory: pathlib.Path) -> None:
        super().__init__(settings, study_directory)
        self._slots = Slots(self._keys)
        self._study = pathlib.Path(os.path.realpath(study_directory))
        # With the trials that were not complete when they were last looked at.
        self._queue: dict[str, tuple[Batch, int, collections.deque[str]]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._has_told = False

    @classmethod
    def hardware(cls, settings: dict[str, Any]) -> Devices:
        """Returns the devices that JAX will see in a job of this host."""
        keys, (variable, numbers) = settings["local"], accelerators()
        if not numbers:
            forced = re.search(_FORCED, os.environ.get("XLA_FLAGS", ""))
            return Devices("cpu", int(forced[1]) if forced else 1)
        kind = _KINDS[variable].split()[0].lower()
        workers = keys["workers"] or len(numbers)
        return Devices(kind, len(numbers), workers=workers if keys["pin"] else 1)

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
        """Returns the names of a batch's jobs, None if none of them runs or waits here."""
        handles = remote.job_names(batch)
        known = (handle in self._queue or device_locks.is_held(handle) for handle in handles)
        return handles if any(known) else None

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
        if not is_over and device_locks.is_held(handle):
            return State.RUNNING
        self._processes.pop(handle, None)
        return State.GONE

    def _start_queued(self) -> None:
        for handle, (batch, index, trials) in list(self._queue.items()):
            devices, locks = self._free_slot()
            if devices:
                try:
                    self._processes[handle] = self._start(batch, index, handle, devices, locks)
                finally:
                    device_locks.release(locks)  # the job holds them from here on, until it ends
                del self._queue[handle]
                continue
            # Jobs of another driver, which has the slots, may have ended them.
            while trials and status.recorded(self._study / trials[0])["state"] in status.COMPLETE:
                trials.popleft()
            if not trials:
                del self._queue[handle]

    def _free_slot(self) -> tuple[list[str], list[socket.socket]]:
        """Returns devices for a job, and locks on them and a slot of the study; [], [] if others
        hold all slots or too many devices."""
        waits = False
        for slot in range(self._slots.size):
            if (lock := device_locks.hold_name(f"{self._study} {slot}")) is None:
                continue
            devices, locks = self._slots.hold(slot, self._keys["exclusive"])
            if devices:
                if len(locks) < len(devices):
                    self._tell_holders("its jobs and these share them")
                return devices, [lock, *locks]
            lock.close()
            waits = True
        if waits:
            self._tell_holders("jobs wait")
        return [], []

    def _tell_holders(self, consequence: str) -> None:
        """Says once which other studies hold devices."""
        holders = {} if self._has_told else device_locks.holders(self._slots.kind)
        holders.pop(str(self._study), None)
        if holders:
            self._has_told = True
            self.say(f"{'; '.join(device_locks.describe(holders))}; {consequence}")

    def _start(
        self,
        batch: Batch,
        index: int,
        handle: str,
        devices: list[str],
        locks: list[socket.socket],
    ) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, **batch.environment, **self._slots.environment(devices)}
        paths = (batch.environment.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        # Another driver asks whether it runs.
        while (named := device_locks.hold_name(handle)) is None:
            time.sleep(0.01)
        with named, batch.log(index).open("ab") as log:
            return subprocess.Popen(
                [*batch.command(index), *self._slots.arguments(devices)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=[lock.fileno() for lock in (named, *locks)],
                start_new_session=True,  # Ctrl-C is for the driver, which passes it on
            )


def free_ports(count: int) -> list[int]:
    """Returns different ports of loopback that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


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


def cache_programs(folder: str) -> None:
    """Has JAX keep every program, however small, in a folder of `compilation_cache`."""
    import jax

    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
