"""What sbatch is given: its options, and the script that every task of an array runs."""

import dataclasses
import shlex
from collections.abc import Sequence
from typing import Any

from sweeps.launchers.slurm import keys
from sweeps.records.submissions import Batch

_INDEX = "__INDEX__"


@dataclasses.dataclass(frozen=True)
class ArrayPart:
    """A part of a batch that fits one array: `size` jobs from number · 10^digits on."""

    number: int
    digits: int
    size: int

    @property
    def offset(self) -> int:
        """The batch's index of the array's task 0."""
        return self.number * 10**self.digits

    def name(self, batch: Batch) -> str:
        """Returns the array's job name."""
        return f"{batch.name}.{self.number}" if self.number else batch.name


def parts(size: int, largest: int) -> list[ArrayPart]:
    """Returns the parts of a batch of `size` jobs where an array holds at most `largest` tasks.

    Parts begin at multiples of a power of ten, so that sbatch's %a can name the logs by index.
    """
    digits = len(str(largest)) - 1
    whole = 10**digits
    return [
        ArrayPart(number, digits, min(whole, size - number * whole))
        for number in range(-(-size // whole))
    ]


def options(
    slurm: dict[str, Any], batch: Batch, part: ArrayPart, exclude: Sequence[str] = ()
) -> list[str]:
    """Returns sbatch's options for a part of a batch, for `slurm` = config.slurm.

    They belong on the command line: a user's SBATCH_* variables win over lines of the script.
    """
    throttle = f"%{slurm['at_once']}" if slurm["at_once"] else ""
    gpus = ":".join(filter(None, ("gpu", slurm["gpu_type"], str(slurm["gpus"]))))
    # Every job writes to `Batch.log` of its index. '%' begins a pattern; %3a is the number of the
    # task in three digits.
    log = str(dataclasses.replace(batch, file=batch.file.resolve()).log("\0")).replace("%", "%%")
    task = f"{part.number}%{part.digits}a" if part.number else "%a"
    values = {
        **{key: slurm[key] for key in ("partition", "account", "qos", "time")},
        "nodes": str(slurm["nodes"]),
        "ntasks-per-node": "1",
        "gres": gpus if slurm["gpus"] else "",
        "cpus-per-task": str(slurm["cpus"] or ""),
        "mem": slurm["memory"],
        "exclude": ",".join(exclude),
        "array": f"0-{part.size - 1}{throttle}",
        "job-name": part.name(batch),
        "output": log.replace("\0", task),
        "open-mode": "append",
        # To the steps (no 'B:'): it reaches every process of the job, of which each understands
        # SIGTERM; SIGUSR1 would kill those that do not expect it before they have saved.
        "signal": f"TERM@{slurm['save_seconds']}",
    }
    return [*_written(values), "--requeue", *keys.flags(slurm["flags"])]


def _written(options: dict[str, str]) -> list[str]:
    return [f"--{key}={value}" for key, value in options.items() if value]


def script(slurm: dict[str, Any], batch: Batch, part: ArrayPart) -> str:
    """Returns the script of a part's tasks.

    Python runs in a step (srun), not in the script itself: when a job is preempted with a grace
    time, Slurm tells its steps at once, and the script only when the grace is over.
    """
    step = {
        "export": "ALL",
        "nodes": str(slurm["nodes"]),
        "ntasks-per-node": "1",
        # Since 22.05 srun does not take it over from sbatch.
        "cpus-per-task": str(slurm["cpus"] or ""),
        # A node that ended alone would leave the others waiting for it.
        "wait": str(slurm["save_seconds"]) if slurm["nodes"] > 1 else "",
        "container-image": slurm["container"],
        "container-mounts": slurm["mounts"],
    }
    command = batch.command(_INDEX, slurm["python"])
    lines = [
        "#!/bin/bash",
        "set -e",
        *([slurm["setup"]] if slurm["setup"] else []),
        *(_export(name, value) for name, value in batch.environment.items()),
        f"INDEX=$(({part.offset} + SLURM_ARRAY_TASK_ID))",
        f"exec {shlex.join(['srun', *_written(step)])} \\",
        "    " + shlex.join(command).replace(_INDEX, '"$INDEX"'),
    ]
    return "\n".join(lines) + "\n"


def _export(name: str, value: str) -> str:
    # What the setup's modules put on the path stays there, behind the snapshot.
    behind = "${PYTHONPATH:+:$PYTHONPATH}" if name == "PYTHONPATH" else ""
    return f"export {name}={shlex.quote(value)}{behind}"
