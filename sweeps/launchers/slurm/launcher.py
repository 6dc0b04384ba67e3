"""Slurm: job arrays by `sbatch`, asked after by `squeue`; neither accounting nor a library needed.

Not through submitit: its jobs ignore SIGTERM, it takes pickled results for the truth (which may say
"error" of a job that succeeds when requeued), and without accounting it never learns that a job was
killed.
"""

import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sweeps.launchers import remote
from sweeps.launchers.protocol import EngineError, Launcher, State
from sweeps.launchers.slurm import keys
from sweeps.records.submissions import Batch

# Slurm's programs give up by themselves after 10 to 100 s (MessageTimeout).
_PATIENCE_S = 180.0
_ARGUMENTS = 500  # of one scancel
_WORDS = {
    State.QUEUED: "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD "
    "SPECIAL_EXIT",
    State.RUNNING: "RUNNING COMPLETING SUSPENDED STOPPED SIGNALING STAGE_OUT RESIZING",
    State.GONE: "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED "
    "TIMEOUT",
}
# What sbatch says of an array that it has submitted, with --parsable and, below a site's wrapper,
# without.
_SUBMITTED = re.compile(
    r"^\s*(?:Submitted batch job )?(\d+)(?:;\S+| on cluster \S+)?\s*$", re.MULTILINE
)
_FORMAT = "--format=%F|%K|%j|%T|%r"
_ROW = re.compile(r"(\d+)\|([^|]*)\|([^|]*)\|([^|]*)\|(.*)")
_STATES = {word: state for state, words in _WORDS.items() for word in words.split()}
# The reason of a job whose node's prolog failed: Slurm drains the node and holds the job until
# somebody releases it.
HELD = "launch failed requeued held"
# Slurm counts a restart up to seconds after it has told the job to stop; KillWait is 30 s.
_LOOKS = 5
# Variables that would change the programs' meaning: a driver may itself run inside a job, and users
# keep formats, filters and other clusters in them. What SBATCH_* says of accounts, partitions and
# the like is a person's default, and stays.
_FOREIGN = (
    *("SLURM_", "SQUEUE_", "SCANCEL_", "SCONTROL_", "SRUN_", "SINFO_", "PMI"),
    *("SBATCH_CLUSTERS", "SBATCH_WAIT", "SBATCH_GPU", "SBATCH_GRES", "SBATCH_ERROR"),
    "SBATCH_INPUT",
)
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
# In a command, where the script fills in the index of a job.
_INDEX = "__INDEX__"


class ArrayTask(NamedTuple):
    """A line of squeue."""

    array: str
    task: str
    name: str
    state: str
    reason: str

    @property
    def handle(self) -> str:
        """What Slurm calls it."""
        return f"{self.array}_{self.task}"


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


def parts_of(size: int, largest: int) -> list[ArrayPart]:
    """Returns the parts of a batch of `size` jobs where an array holds at most `largest` tasks.

    Parts begin at multiples of a power of ten, so that sbatch's %a can name the logs by index.
    """
    digits = len(str(largest)) - 1
    whole = 10**digits
    return [
        ArrayPart(number, digits, min(whole, size - number * whole))
        for number in range(-(-size // whole))
    ]


def options_of(
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


def script_of(slurm: dict[str, Any], batch: Batch, part: ArrayPart) -> str:
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


class Slurm(Launcher):
    """A cluster, by its programs; a handle is <array>_<task>.

    That of a job which Slurm does not know is <job name>_<task>: it is GONE.
    """

    NAME = "slurm"
    KEYS = keys.KEYS
    check = staticmethod(keys.check)
    hardware = staticmethod(keys.hardware)

    def __init__(self, settings: dict[str, Any], study_directory: Path) -> None:
        super().__init__(settings, study_directory)
        missing = [name for name in ("sbatch", "squeue", "scancel") if not shutil.which(name)]
        if missing:
            raise ValueError(
                f"launcher slurm: no {missing[0]} on this host; run on a login node of the cluster"
            )
        if "\\" in str(study_directory.resolve()):
            raise ValueError(
                f"{study_directory}: Slurm writes no logs below a name with a backslash"
            )
        if self._keys["container"] and "--container-image" not in run(["srun", "--help"]):
            raise ValueError(
                "slurm.container needs pyxis (srun --container-image), which this cluster does not "
                "have; use slurm.setup and slurm.python instead, or ask its administrators"
            )

    @classmethod
    def preview(cls, settings: dict[str, Any], batch: Batch) -> str:
        """Returns sbatch's command and the script for a batch's first job."""
        slurm, part = settings["slurm"], parts_of(batch.size, 1001)[0]
        command = shlex.join(["sbatch", *options_of(slurm, batch, part)])
        return f"{command}\n{script_of(slurm, batch, part)}"

    @staticmethod
    def requeue() -> bool:
        """Has Slurm run this job again, unless it was cancelled; returns whether it will.

        False also where Slurm cannot be asked, and outside of an array, such as where a person runs
        the job by hand; the driver then submits what is left.
        """
        array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
        if array is None or task is None:
            return False
        if os.environ.get("SLURM_PROCID", "0") != "0":
            return True  # task 0 asks for all nodes
        job = f"{array}_{task}"
        for _ in range(_LOOKS):
            # Looked at again where the signal to the whole job ended scontrol, too, or where a
            # requeue is refused because Slurm has begun it since the job was shown.
            with contextlib.suppress(EngineError, KeyError, ValueError):
                shown = run(["scontrol", "show", "job", "--oneliner", job])
                job_record = dict(re.findall(r"(\w+)=(\S*)", shown))
                if int(job_record["Restarts"]) > int(os.environ.get("SLURM_RESTART_COUNT", "0")):
                    return True  # preempted without grace, or a node failed: done by Slurm already
                if job_record["JobState"] == "RUNNING":
                    run(["scontrol", "requeue", job])
                    return True
            # COMPLETING: Slurm is about to say that it requeues, or it was scancel, or the time
            # limit. A cancelled job would be requeued too, if asked for.
            time.sleep(1.0)
        return False

    def submit(self, batch: Batch) -> list[str]:
        """Submits a batch as one array, or several above the cluster's MaxArraySize.

        A batch that is there already is not submitted again. Raises EngineError if nothing was
        submitted, and where Slurm cannot be asked whether it was.
        """
        arrays = self._arrays(batch)
        exclude: list[str] = []
        if batch.avoid:  # by the cluster's names; a host that is no node of it needs no avoiding
            printed = run(["sinfo", "--noheader", "--Node", "--format=%N"])
            hosts = {name for host in batch.avoid for name in (host, host.split(".")[0])}
            exclude = sorted(hosts & set(map(str.strip, printed.splitlines())))
        for part in [part for part, array in arrays.items() if not array]:
            options = options_of(self._keys, batch, part, exclude)
            try:
                arrays[part] = _sbatch(options, script_of(self._keys, batch, part))
            except EngineError:
                # A controller that was too slow for sbatch has the job all the same.
                arrays = self._arrays(batch)
                if not any(arrays.values()):
                    raise
                if not arrays[part]:
                    break  # its jobs are GONE, to be submitted again
        return _handles(batch, arrays)

    def find(self, batch: Batch) -> list[str] | None:
        """Returns the handles of a batch by its name, None if Slurm does not know it.

        Raises EngineError if Slurm cannot be asked.
        """
        arrays = self._arrays(batch)
        return _handles(batch, arrays) if any(arrays.values()) else None

    def _arrays(self, batch: Batch) -> dict[ArrayPart, str]:
        """Returns the array's id of each part of a batch, '' where Slurm does not know it."""
        shown = run(["scontrol", "show", "config"])
        limit = re.search(r"^MaxArraySize\s*=\s*(\d+)", shown, re.MULTILINE)
        if limit is None or int(limit[1]) < 2:
            answer = limit[0] if limit else shown.strip()[-400:]
            raise EngineError(f"job arrays need Slurm's MaxArraySize of 2 or more, not {answer!r}")
        parts = parts_of(batch.size, int(limit[1]))
        names = ",".join(part.name(batch) for part in parts)
        ids = {job.name: job.array for job in squeue(f"--name={names}")}
        return {part: ids.get(part.name(batch), "") for part in parts}

    def status(self, handles: Sequence[str]) -> dict[str, State]:
        """Returns the state of every handle; releases jobs that Slurm holds because a node failed
        to launch them.

        Raises EngineError if squeue cannot reach the controller, or lists less than that has.
        """
        arrays, jobs = _tasks(handles)
        for array in arrays - {job.array for job in jobs}:  # some squeue tells of a minute ago
            shown = _about_jobs(["scontrol", "show", "job", "--oneliner", array])
            words = re.findall(r"\bJobState=(\w+)", shown)
            if any(_STATES.get(word) is not State.GONE for word in words):
                raise EngineError(f"squeue does not list job {array}, which is {words[0]}")
        for job in jobs:
            try:
                if job.reason == HELD:
                    run(["scontrol", "release", job.handle])
            except EngineError as error:
                print(f"{error}; job {job.handle} stays held", flush=True)
        # UNKNOWN: a state that is not in Slurm's manual.
        known = {job.handle: _STATES.get(job.state, State.UNKNOWN) for job in jobs}
        return {handle: known.get(handle, State.GONE) for handle in handles}

    def queued(self, handles: Sequence[str]) -> dict[str, str]:
        """Returns the Reason of every handle that is queued. Raises as `status`."""
        _, jobs = _tasks(handles)
        waiting = {job.handle: job.reason for job in jobs if _STATES.get(job.state) is State.QUEUED}
        return {handle: waiting[handle] for handle in handles if handle in waiting}

    def cancel(self, handles: Sequence[str]) -> None:
        """Takes queued jobs from the queue; has running ones save and end, however long it takes.

        Raises EngineError if Slurm cannot be reached.
        """
        states = self.status(handles)
        scancel([handle for handle in handles if states[handle] is State.QUEUED])
        # scancel alone would kill after KillWait, 30 s unless the cluster says otherwise.
        running = [handle for handle in handles if states[handle] is State.RUNNING]
        scancel(running, "--signal=TERM")


def _sbatch(options: list[str], text: str) -> str:
    """Returns the id of a submitted array. Raises EngineError if Slurm's answer has none."""
    printed = run(["sbatch", "--parsable", *options], text)
    ids = set(_SUBMITTED.findall(printed))
    if len(ids) != 1:
        raise EngineError(f"sbatch's answer has no job id, or several: {printed.strip()[-400:]!r}")
    return str(ids.pop())


def _tasks(handles: Sequence[str]) -> tuple[set[str], list[ArrayTask]]:
    """Returns the ids of the handles' arrays, and the tasks of these that squeue lists."""
    arrays = set(filter(str.isdigit, (handle.rpartition("_")[0] for handle in handles)))
    # A cluster of a hundred thousand jobs is not asked for all that it has. With an unknown id
    # among several, squeue lists the others.
    return arrays, squeue(f"--jobs={','.join(sorted(arrays))}") if arrays else []


def _handles(batch: Batch, arrays: dict[ArrayPart, str]) -> list[str]:
    return [
        f"{array or part.name(batch)}_{task}"
        for part, array in arrays.items()
        for task in range(part.size)
    ]


def squeue(*which: str) -> list[ArrayTask]:
    """Returns the tasks of arrays that squeue shows. Raises EngineError if it cannot."""
    # All: of hidden partitions, too.
    command = ["squeue", "--noheader", "--all", "--array", "--states=all", _FORMAT, *which]
    jobs = []
    for line in _about_jobs(command).splitlines():
        if re.match(r"\s*\d+\|", line):
            row = _ROW.fullmatch(line.strip())
            if row is None:
                raise EngineError(f"squeue's answer is cut short: {line!r}")
            jobs.append(ArrayTask(*row.groups()))
    return jobs


def _about_jobs(command: list[str]) -> str:
    """Returns what a program prints of jobs, '' where Slurm knows none of them. Raises as `run`."""
    try:
        return run(command)
    except EngineError as error:
        if "Invalid job id" in str(error):  # of the one array asked for, forgotten by now
            return ""
        raise


def scancel(jobs: list[str], *options: str) -> None:
    """Cancels or signals jobs; those that are over are passed over. Raises EngineError."""
    for start in range(0, len(jobs), _ARGUMENTS):
        try:
            run(["scancel", *options, *jobs[start : start + _ARGUMENTS]])
        except EngineError as error:
            over = ("Invalid job id", "already completing or completed")
            errors = [line for line in str(error).splitlines() if ": error: " in line]
            if not errors or not all(any(word in line for word in over) for line in errors):
                raise


def run(command: list[str], script: str = "") -> str:
    """Returns what a program of Slurm prints. Raises EngineError with its words where it fails."""
    absent = f"no {command[0]} on this host"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(_FOREIGN)
    }
    done = remote.run(command, absent, _PATIENCE_S, input=script, env=environment)
    # Some versions of squeue end with 0 after an error.
    if done.returncode or (not done.stdout.strip() and ": error: " in done.stderr):
        ended = f"{command[0]} ended with {done.returncode}: {remote.last_line(done.stdout)}"
        raise EngineError(done.stderr.strip() or ended)
    return done.stdout
