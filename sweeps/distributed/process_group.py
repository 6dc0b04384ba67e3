"""Several processes, on one host or many, that train one trial together.

All run the same program (SPMD): they launch the same computations in the same order, or a
collective waits for ever. Process 0 alone claims trials and writes their files. The processes agree
through collectives:

- process 0 broadcasts the trial that it has claimed;
- every few updates each process contributes an order (`sweeps.training.loop.Order`), and the
  largest counts for all. JAX's preemption service is off: it takes SIGTERM away from Python, and
  knows no other reason to stop;
- a process that fails for itself ends. The others end with it: their connections break, or JAX
  misses its heartbeats and aborts them. That is the end of a killed job, no failure of the trial.

`detect` reads from the environment, with the standard library alone, which process this is:

    explicit    ATTNPERF_COORDINATOR=host:port, ATTNPERF_NUM_PROCESSES, ATTNPERF_PROCESS_ID; in a
                Kubernetes JobSet the manifest sets them (JAX's own way there asks the API server,
                which needs a role and a package)
    Slurm       tasks of one srun step; ATTNPERF_COORDINATOR alone replaces the first node's name
    TPU slices  TPU_WORKER_HOSTNAMES and TPU_WORKER_ID, as GKE sets them; JAX finds the coordinator

JAX's own detection takes Slurm's allocation for a step, and the task's number on its node for its
only GPU; here a task has all the devices that it sees, or those of JAX_LOCAL_DEVICE_IDS=0,1.
"""

import dataclasses
import os
import re
import socket
import sys
from collections.abc import Mapping
from typing import Any

from sweeps.launchers.protocol import COORDINATOR, PROCESS_COUNT, PROCESS_ID

# Nodes pull images and start one after another.
_START_S = 300
# A process without a heartbeat for so long is lost; JAX then aborts all others.
HEARTBEAT_S = 30
_SHUTDOWN_S = 60
# Slurm's jobs get ports by their number, as JAX does it (jax/_src/clusters/slurm_cluster.py).
_PORTS = 2**12
# absl's status codes that a lost connection may have; not RESOURCE_EXHAUSTED, which is memory.
_STATUSES = "(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED): "


class PrimaryError(Exception):
    """Process 0 could not do its part; its own error says why."""


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes of a trial. `id` is this process's number, 0 … count − 1.

    coordinator: 'host:port', None if JAX finds it.
    """

    count: int = 1
    id: int = 0
    coordinator: str | None = None

    @property
    def is_primary(self) -> bool:
        """Whether this process claims trials and writes their files."""
        return self.id == 0

    def __str__(self) -> str:
        coordinator = self.coordinator or "found by JAX"
        return (
            f"process {self.id} of {self.count} on {socket.gethostname()} (coordinator "
            f"{coordinator}; set {COORDINATOR}=host:port to choose another)"
        )

    def agree(self, value: int) -> int:
        """Returns the largest of all processes' values. All must call it."""
        if self.count == 1:
            return value
        from jax.experimental import multihost_utils

        # 4 ms between two processes of one host, after the updates that are in flight.
        return int(multihost_utils.process_allgather(value).max())

    def broadcast(self, *values: int) -> tuple[int, ...]:
        """Returns process 0's values. All must call it, with as many."""
        if self.count == 1:
            return values
        from jax.experimental import multihost_utils

        return tuple(map(int, multihost_utils.broadcast_one_to_all(values)))


SINGLE = ProcessGroup()


def is_lost_process(problem: Exception) -> bool:
    """Whether a collective failed: XLA raises 'UNKNOWN: Gloo all-reduce failed' as a ValueError."""
    return re.match(_STATUSES, str(problem)) is not None


def detect(environment: Mapping[str, str]) -> ProcessGroup:
    """Returns which process of how many this is.

    Raises ValueError for variables that contradict each other.
    """
    group = _explicit(environment) or _slurm(environment) or _tpu(environment)
    if group is None or group.count == 1:
        return SINGLE
    if not 0 <= group.id < group.count:
        raise ValueError(f"process {group.id} of {group.count}: numbers run from 0 to count − 1")
    return group


def _explicit(environment: Mapping[str, str]) -> ProcessGroup | None:
    if not (environment.get(PROCESS_COUNT) or environment.get(PROCESS_ID)):
        return None
    names = (COORDINATOR, PROCESS_COUNT, PROCESS_ID)
    if missing := [name for name in names if not environment.get(name)]:
        raise ValueError(f"{' and '.join(missing)} is not set; set all of {', '.join(names)}")
    coordinator = environment[COORDINATOR]
    if not re.fullmatch(r".+:\d+", coordinator):
        raise ValueError(f"{COORDINATOR}={coordinator!r}; it must be host:port")
    count, number = _int(environment, PROCESS_COUNT), _int(environment, PROCESS_ID)
    return ProcessGroup(count, number, coordinator)


def _slurm(environment: Mapping[str, str]) -> ProcessGroup | None:
    # Of srun alone: the batch script has SLURM_NTASKS and SLURM_PROCID too.
    if "SLURM_STEP_NUM_TASKS" not in environment:
        return None
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    first = re.sub(r"\[(\d+)[^]]*\]", r"\1", nodes).split(",")[0]
    port = 2**16 - _PORTS + _int(environment, "SLURM_JOB_ID") % _PORTS
    coordinator = environment.get(COORDINATOR) or f"{first}:{port}"
    count, number = _int(environment, "SLURM_STEP_NUM_TASKS"), _int(environment, "SLURM_PROCID")
    return ProcessGroup(count, number, coordinator)


def _tpu(environment: Mapping[str, str]) -> ProcessGroup | None:
    names = environment.get("TPU_PROCESS_ADDRESSES") or environment.get("TPU_WORKER_HOSTNAMES")
    if not names or "TPU_WORKER_ID" not in environment:
        return None
    # jax/_src/clusters/cloud_tpu_cluster.py, BaseTpuCluster.get_process_id
    per_slice, slices = len(names.split(",")), int(environment.get("MEGASCALE_NUM_SLICES") or 1)
    before = per_slice * int(environment.get("MEGASCALE_SLICE_ID") or 0)
    return ProcessGroup(per_slice * slices, before + _int(environment, "TPU_WORKER_ID"))


def _int(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except (KeyError, ValueError):
        raise ValueError(f"{name}={environment.get(name)!r}; it must be a whole number") from None


def join(environment: Mapping[str, str] = os.environ, start_s: int = _START_S) -> ProcessGroup:
    """Connects this process to its group, before anything else of JAX is used; returns the group.

    JAX aborts the process where not all are connected after `start_s`. Raises what `detect` raises;
    SystemExit where the coordinator's port is taken, and where JAX counts otherwise than `detect`.
    """
    group = detect(environment)
    if group.count == 1:
        return group
    import jax

    print(f"{group}: connects within {start_s} s", file=sys.stderr, flush=True)
    coordinator: dict[str, Any] = {}
    if group.coordinator is not None:
        coordinator = {
            "coordinator_address": group.coordinator,
            "num_processes": group.count,
            "process_id": group.id,
        }
        if group.is_primary:
            port = int(group.coordinator.rpartition(":")[2])
            try:  # JAX dies of a segmentation fault where the port is taken (0.10.2)
                socket.create_server(("", port), reuse_port=False).close()
            except OSError as error:
                sys.exit(f"{group}: port {port} cannot be opened here: {error}")
    # An empty list is all devices; without one JAX would choose (see above).
    devices: list[int] | None = None if "JAX_LOCAL_DEVICE_IDS" in environment else []
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        **coordinator,
        local_device_ids=devices,
        initialization_timeout=start_s,
        heartbeat_timeout_seconds=HEARTBEAT_S,
        shutdown_timeout_seconds=_SHUTDOWN_S,
    )
    if (jax.process_count(), jax.process_index()) != (group.count, group.id):
        sys.exit(
            f"{group}: to JAX this is process {jax.process_index()} of {jax.process_count()}; set "
            f"{COORDINATOR}, {PROCESS_COUNT} and {PROCESS_ID}"
        )
    return group
