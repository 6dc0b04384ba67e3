"""Slurm's commands, run and read: squeue, scancel, and what they say of a job."""

import os
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from sweeps.launchers.protocol import EngineError, State

# Slurm's programs give up by themselves after 10 to 100 s (MessageTimeout).
_PATIENCE_S = 180.0
_ARGUMENTS = 500  # of one scancel
_QUEUED: tuple[str, ...] = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESV_DEL_HOLD",
)
_QUEUED += ("SPECIAL_EXIT",)
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
_GONE: tuple[str, ...] = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
)
_GONE += ("PREEMPTED", "TIMEOUT")
_STATES = {
    **dict.fromkeys(_QUEUED, State.QUEUED),
    **dict.fromkeys(_RUNNING, State.RUNNING),
    **dict.fromkeys(_GONE, State.GONE),
}
# The reason of a job whose node's prolog failed: Slurm drains the node and holds the job until
# somebody releases it.
HELD = "launch failed requeued held"


class Job(NamedTuple):
    """A line of squeue: a task of an array."""

    array: str
    task: str
    name: str
    state: str
    reason: str

    @property
    def handle(self) -> str:
        """What Slurm calls it."""
        return f"{self.array}_{self.task}"

    @property
    def known_state(self) -> State:
        """Its state in the protocol's words; UNKNOWN for one that is not in Slurm's manual."""
        return _STATES.get(self.state, State.UNKNOWN)


def listed(handles: Sequence[str]) -> dict[str, Job]:
    """Returns the jobs behind those handles that Slurm knows, by a squeue each for ids and names.

    Neither asks a cluster of a hundred thousand jobs for all that it has.
    """
    arrays = sorted({handle.rpartition("_")[0] for handle in handles})
    by_id = [array for array in arrays if array.isdigit()]
    by_name = [array for array in arrays if not array.isdigit()]
    # With an unknown id among several, squeue lists the others.
    jobs = squeue(f"--jobs={','.join(by_id)}") if by_id else []
    jobs += squeue(f"--name={','.join(by_name)}") if by_name else []
    found = {job.handle: job for job in jobs}
    found |= {f"{job.name}_{job.task}": job for job in jobs}
    return {handle: found[handle] for handle in handles if handle in found}


def squeue(*which: str) -> list[Job]:
    """Returns the tasks of arrays that squeue shows. Raises EngineError where it cannot."""
    form = "--format=%F|%K|%j|%T|%r"
    try:
        printed = run(["squeue", "--noheader", "--array", "--states=all", form, *which])
    except EngineError as error:
        if "Invalid job id" in str(error):  # of the one array asked for, forgotten by now
            return []
        raise
    return [Job(*line.split("|", 4)) for line in printed.splitlines() if line.count("|") >= 4]


def scancel(jobs: list[str], *options: str) -> None:
    for start in range(0, len(jobs), _ARGUMENTS):
        try:
            run(["scancel", *options, *jobs[start : start + _ARGUMENTS]])
        except EngineError as error:
            over = ("Invalid job id", "already completing or completed")
            lines = str(error).splitlines()
            if not all(any(word in line for word in over) for line in lines):
                raise


def run(command: list[str], script: str | None = None) -> str:
    """Returns what a program of Slurm prints. Raises EngineError with its words where it fails."""
    try:
        done = subprocess.run(
            command,
            input=script or "",
            capture_output=True,
            text=True,
            env=_environment(),
            timeout=_PATIENCE_S,
        )
    except FileNotFoundError as error:
        raise EngineError(f"no {command[0]} on this host") from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{command[0]} did not answer within {_PATIENCE_S:.0f} s") from error
    if done.returncode:
        words = done.stderr.strip() or f"{command[0]} ended with {done.returncode}"
        raise EngineError(words)
    return done.stdout


def _environment() -> dict[str, str]:
    """Returns the environment without what would change the programs' meaning.

    A driver may itself run inside a job, and users keep formats and filters in SQUEUE_*.
    """
    foreign = ("SLURM_", "SQUEUE_", "SCANCEL_", "SRUN_", "SINFO_", "PMI")
    kept = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_TIME_FORMAT")
    return {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(foreign)
    }
