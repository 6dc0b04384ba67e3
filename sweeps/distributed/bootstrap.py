"""Several processes, on one host or many, that train one trial together: which one this is.

`detect` knows it from the environment, with the standard library alone; `initialize` connects the
processes through JAX. Process 0 is the primary one: the others do as
`sweeps.distributed.process_group` says.

    explicit    ATTNPERF_COORDINATOR=host:port, ATTNPERF_NUM_PROCESSES, ATTNPERF_PROCESS_ID; in a
                Kubernetes JobSet the manifest sets them (JAX's own way there asks the API server,
                which needs a role and a package)
    Slurm       tasks of one srun step; ATTNPERF_COORDINATOR alone replaces the first node's name
    TPU slices  TPU_WORKER_HOSTNAMES and TPU_WORKER_ID, as GKE sets them; JAX finds the coordinator

JAX's own detection takes Slurm's allocation for a step, and the task's number on its node for its
only GPU; here a task has all the devices that it sees, or those of JAX_LOCAL_DEVICE_IDS=0,1.
"""

import contextlib
import dataclasses
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from sweeps.launchers.protocol import AGAIN, COORDINATOR, PROCESS_COUNT, PROCESS_ID

# Nodes pull images and start one after another.
START_S = 300.0
# A process that says nothing for so long is dead; JAX then ends all others.
HEARTBEAT_S = 30
_SHUTDOWN_S = 60
# Slurm's jobs get ports by their number, as JAX does it (jax/_src/clusters/slurm_cluster.py).
_PORTS = 2**12


class StartError(Exception):
    """The processes could not be connected."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """`id` is this process's number, 0 … count − 1; coordinator 'host:port', None: JAX finds it."""

    count: int
    id: int
    coordinator: str | None

    @property
    def is_primary(self) -> bool:
        """Whether this process claims trials and writes their files."""
        return self.id == 0

    def __str__(self) -> str:
        where = self.coordinator or "found by JAX"
        return (
            f"process {self.id} of {self.count} on {socket.gethostname()} (coordinator {where}; "
            f"set {COORDINATOR}=host:port to choose another)"
        )


def detect(environment: Mapping[str, str]) -> Processes | None:
    """Returns which process of how many this is, None where it is alone.

    Raises ValueError for variables that contradict each other.
    """
    found = _explicit(environment) or _slurm(environment) or _tpu(environment)
    if found is None or found.count == 1:
        return None
    if not 0 <= found.id < found.count:
        raise ValueError(f"process {found.id} of {found.count}: numbers run from 0 to count − 1")
    return found


def _explicit(environment: Mapping[str, str]) -> Processes | None:
    given = [name for name in (PROCESS_COUNT, PROCESS_ID) if environment.get(name)]
    if not given:
        return None
    needed = (COORDINATOR, PROCESS_COUNT, PROCESS_ID)
    if missing := [name for name in needed if not environment.get(name)]:
        raise ValueError(f"{given[0]} is set without {' and '.join(missing)}; set all or none")
    coordinator = environment[COORDINATOR]
    if not re.fullmatch(r".+:\d+", coordinator):
        raise ValueError(f"{COORDINATOR}={coordinator!r}; it must be host:port")
    return Processes(_int(environment, PROCESS_COUNT), _int(environment, PROCESS_ID), coordinator)


def _slurm(environment: Mapping[str, str]) -> Processes | None:
    # Of srun alone: the batch script has SLURM_NTASKS and SLURM_PROCID too.
    if "SLURM_STEP_NUM_TASKS" not in environment:
        return None
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    first = re.sub(r"\[(\d+)[^]]*\]", r"\1", nodes).split(",")[0]
    port = 2**16 - _PORTS + _int(environment, "SLURM_JOB_ID") % _PORTS
    coordinator = environment.get(COORDINATOR) or f"{first}:{port}"
    count, number = _int(environment, "SLURM_STEP_NUM_TASKS"), _int(environment, "SLURM_PROCID")
    return Processes(count, number, coordinator)


def _tpu(environment: Mapping[str, str]) -> Processes | None:
    names = environment.get("TPU_PROCESS_ADDRESSES") or environment.get("TPU_WORKER_HOSTNAMES")
    if not names or "TPU_WORKER_ID" not in environment:
        return None
    # jax/_src/clusters/cloud_tpu_cluster.py, BaseTpuCluster.get_process_id
    per_slice, slices = len(names.split(",")), int(environment.get("MEGASCALE_NUM_SLICES") or 1)
    own_slice = int(environment.get("MEGASCALE_SLICE_ID") or 0)
    return Processes(
        per_slice * slices, own_slice * per_slice + _int(environment, "TPU_WORKER_ID"), None
    )


def _int(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except (KeyError, ValueError):
        raise ValueError(f"{name}={environment.get(name)!r}; it must be a whole number") from None


def initialize(
    found: Processes, *, start_s: float = START_S, heartbeat_s: int = HEARTBEAT_S
) -> None:
    """Connects this process to the others, before anything else of JAX is used.

    Ends the process with an error that names coordinator and number where not all are connected
    after `start_s`. Raises StartError where the coordinator's port is taken, and where JAX counts
    otherwise than `found`.
    """
    import jax

    if found.is_primary and found.coordinator is not None:
        port = int(found.coordinator.rpartition(":")[2])
        try:  # JAX dies of a segmentation fault where the port is taken (0.10.2)
            socket.create_server(("", port), reuse_port=False).close()
        except OSError as error:
            raise StartError(f"{found}: port {port} cannot be opened here: {error}") from error
    given: dict[str, Any] = {}
    if found.coordinator is not None:
        given = {"coordinator_address": found.coordinator}
        given |= {"num_processes": found.count, "process_id": found.id}
    # An empty list is all devices; without one JAX would choose (see above).
    devices: list[int] | None = None if "JAX_LOCAL_DEVICE_IDS" in os.environ else []
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with _connecting(start_s, found):
        jax.distributed.initialize(
            **given,
            local_device_ids=devices,
            # JAX would end the process without saying which one of what it is.
            initialization_timeout=int(start_s) + 60,
            heartbeat_timeout_seconds=heartbeat_s,
            shutdown_timeout_seconds=_SHUTDOWN_S,
        )
    if (jax.process_count(), jax.process_index()) != (found.count, found.id):
        here = f"process {jax.process_index()} of {jax.process_count()}"
        raise StartError(
            f"{found}: JAX takes it for {here}; set {COORDINATOR}, {PROCESS_COUNT} and {PROCESS_ID}"
        )


@contextlib.contextmanager
def _connecting(limit_s: float, found: Processes) -> Iterator[None]:
    """Ends the process where this lasts too long; keeps what handles SIGTERM.

    JAX's preemption service takes that for itself (see `sweeps.distributed.process_group` for why
    not).
    """

    def end() -> None:
        reason = f"not all of {found.count} processes were connected after {limit_s:.0f} s"
        print(f"{found}: {reason}", file=sys.stderr, flush=True)
        os._exit(AGAIN)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        timer.cancel()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
