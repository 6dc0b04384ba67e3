"""Slurm's keys of the config (`--config.slurm.<key>`), and what they may say."""

import re
import shlex
from typing import Any

from sweeps.launchers import config_keys, remote
from sweeps.launchers.config_keys import Key, Range, Text
from sweeps.launchers.protocol import Devices

_NAME = r"[\w.@+-]+"
# sbatch keeps the warning time in 16 bits.
KEYS = {
    "partition": Key(
        "",
        "empty, as any text: what the cluster gives unasked",
        Text("a partition's name, or several with commas", rf"{_NAME}(,{_NAME})*"),
    ),
    "account": Key("", "who pays", Text("an account's name", _NAME)),
    "qos": Key("", "quality of service", Text("the name of a quality of service", _NAME)),
    "time": Key(
        "",
        "limit of one job",
        Text(
            "D-HH:MM:SS or HH:MM:SS, such as 1-00:00:00",
            r"(\d+-)?\d{1,2}:[0-5]\d:[0-5]\d",
            20,
        ),
    ),
    "nodes": Key(1, "per trial; more than one trains by jax.distributed", Range(1, 100_000)),
    "gpus": Key(0, "per node; 0: the trials compute on CPUs", Range(0, 1024)),
    "gpu_type": Key("", "of them", Text("a type of the cluster's Gres, such as a100", _NAME)),
    "cpus": Key(0, "per node; 0: what the cluster gives unasked", Range(0, 65_536)),
    "memory": Key(
        "",
        "per node",
        Text("a whole number with K, M, G or T, such as 16G", r"[1-9]\d*[KMGT]?", 20),
    ),
    "at_once": Key(
        0, "jobs of one array that may run at a time (%K); 0: no limit", Range(0, 1_000_000)
    ),
    "max_jobs": Key(1000, "queued or running at a time", remote.COUNT),
    "trials_per_job": remote.TRIALS_PER_JOB,
    "workers": Key(0, "processes per job, each on its share of the GPUs; 0: one", Range(0, 1024)),
    "save_seconds": Key(
        120, "before the time limit, to save and be queued again", Range(10, 65_535)
    ),
    "setup": Key("", "shell lines before Python, such as 'module load cuda'", Text()),
    "python": Key(
        "", "empty: the driver's own", Text("the path of a Python without spaces", r"[^\s]+")
    ),
    "container": Key(
        "",
        "by pyxis' srun --container-image",
        Text("an image such as docker://ghcr.io#jax/jax or /images/jax.sqsh", r"[^\s]+"),
    ),
    "mounts": Key(
        "", "into the container", Text("SRC:DST[:FLAGS], several with commas", r"[^\s]+")
    ),
    "flags": Key("", "more options of sbatch, each '--name' or '--name=value'", Text()),
    "poll_seconds": Key(10, "between questions to Slurm", remote.SECONDS),
}
# A job that has no more than this between its start and the warning might never get on: Python,
# JAX and a first compilation take about a minute, and Slurm warns up to 30 s early.
_LEAST_WORK_S = 120

# Options that the launcher gives itself, and the key that changes them, where one does.
_RESERVED = {
    **{name: name for name in ("partition", "account", "qos", "time", "nodes")},
    "time-min": "time",
    **dict.fromkeys(("gres", "gpus", "gpus-per-node", "gpus-per-task"), "gpus and slurm.gpu_type"),
    "cpus-per-task": "cpus",
    "mem": "memory",
    "array": "at_once",
    "signal": "save_seconds",
    **dict.fromkeys(
        (
            *("ntasks", "ntasks-per-node", "job-name", "output", "error", "input", "open-mode"),
            *("parsable", "requeue", "no-requeue", "exclude", "wrap", "wait", "test-only", "quiet"),
            *("clusters", "cluster", "help", "usage", "version", "hold"),
        ),
        "",
    ),
}


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError for the first of `config.slurm` that could not run, saying what can."""
    slurm = settings["slurm"]
    config_keys.check(KEYS, slurm, "slurm.")
    warning = slurm["save_seconds"]
    if slurm["time"] and _seconds(slurm["time"]) < warning + _LEAST_WORK_S:
        raise ValueError(
            f"slurm.time={slurm['time']} leaves no time to train: jobs are told to save "
            f"slurm.save_seconds={warning} s before it; give at least {_LEAST_WORK_S} s more"
        )
    if slurm["gpu_type"] and not slurm["gpus"]:
        raise ValueError(f"slurm.gpu_type={slurm['gpu_type']!r} needs slurm.gpus of 1 or more")
    if slurm["mounts"] and not slurm["container"]:
        raise ValueError("slurm.mounts needs slurm.container")
    hardware(settings).check("slurm")
    flags(slurm["flags"])


def hardware(settings: dict[str, Any]) -> Devices:
    """Returns the devices of a job."""
    slurm = settings["slurm"]
    kind = "gpu" if slurm["gpus"] else "cpu"
    return Devices(kind, slurm["gpus"], slurm["nodes"], max(1, slurm["workers"]))


def _seconds(time: str) -> int:
    """Returns the seconds of D-HH:MM:SS."""
    days, _, clock = time.rpartition("-")
    hours, minutes, rest = (int(part) for part in clock.split(":"))
    return int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + rest


def flags(text: str) -> list[str]:
    """Returns the extra options of sbatch as a list.

    Raises ValueError for what is not of the form '--name' or '--name=value' and for options that
    the launcher sets itself, abbreviated or not.
    """
    try:
        options = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"slurm.flags={text!r}: {error}") from error
    for option in options:
        match = re.fullmatch(r"--([a-z][a-z0-9-]*)(=[^\n\0]*)?", option)
        if not match:
            raise ValueError(
                f"slurm.flags: {option!r} is not understood; write options as '--name' or "
                "'--name=value', with spaces between them"
            )
        reserved = next((name for name in _RESERVED if name.startswith(match[1])), None)
        if reserved is not None:
            key = _RESERVED[reserved]
            remedy = f"use slurm.{key}" if key else "it cannot be changed"
            raise ValueError(f"slurm.flags: --{reserved} is set by the launcher; {remedy}")
    return options
