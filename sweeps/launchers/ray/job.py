"""One Ray job: what it asks of a node, and the commands that it runs there, on cores of its own.

`python -m sweeps.launchers.ray.job --cpus=2 -- COMMAND` takes that many cores of the node for as
long as COMMAND lives and becomes it. Ray counts CPUs but binds no process to any: without this, the
jobs of a node would all pin their workers to its first core, and a trial would see another number
of cores, and sum in another order, than it was given.
"""

import argparse
import json
import os
import re
import shlex
import sys
import tempfile
import time
from typing import Any

from sweeps.launchers import local, remote
from sweeps.launchers.protocol import WRONG_NODE
from sweeps.records.submissions import Batch

# A job saves itself within 600 s (sweeps.launchers.local); Ray would kill it 3 s after
# the order to stop.
_STOP_WAIT_S = 660
# Hosts to avoid, in Ray's metadata of a job.
AVOID = "attnperf_avoid"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def accelerators(own: dict[str, Any]) -> str:
    """Returns 'gpu', 'tpu' or '': what a job asks for, for `own` = config.ray."""
    return "gpu" if own["gpus"] else "tpu" if own["tpus"] else ""


def request(own: dict[str, Any]) -> dict[str, float]:
    """Returns what one job asks of Ray: {"CPU": 2.0, "GPU": 1.0, "memory": bytes, ...}.

    Raises ValueError for a resource or an amount that is not understood.
    """
    asked = {"CPU": float(own["cpus"]), "GPU": float(own["gpus"]), "TPU": float(own["tpus"])}
    for part in filter(None, own["resources"].split(",")):
        name, separator, amount = part.rpartition("=")
        if not separator or not re.fullmatch(r"\d+(\.\d+)?", amount) or name in (*asked, "memory"):
            raise ValueError(
                f"ray.resources: {part!r} is not understood; give NAME=NUMBER,NAME=NUMBER. CPU, "
                "GPU, TPU and memory have keys of their own"
            )
        asked[name] = float(amount)
    found = re.fullmatch(r"(\d+)([KMGT]?)", own["memory"] or "0")
    if found is None:
        raise ValueError(f"ray.memory is {own['memory']!r}; give a number and K, M, G or T: 16G")
    asked["memory"] = float(found[1]) * _UNITS[found[2]]
    return {name: amount for name, amount in asked.items() if amount}


def holds(node: dict[str, float], asked: dict[str, float]) -> int:
    """Returns how many jobs that ask for `asked` a node with these resources holds."""
    return int(min(node.get(name, 0.0) // amount for name, amount in asked.items()))


def body(batch: Batch, index: int, own: dict[str, Any], selector: dict[str, str]) -> dict[str, Any]:
    """Returns the request that submits a job, but for its id; `selector`: labels of its node."""
    job = {
        "entrypoint": entrypoint(batch, index, own),
        "runtime_env": {"env_vars": environment(batch, own)},
        "metadata": {AVOID: json.dumps(batch.avoid)},
    }
    return {**job, **asked(own, selector)}


def asked(own: dict[str, Any], selector: dict[str, str]) -> dict[str, Any]:
    """Returns the part of a submission that says where the job may run; Ray does not tell it."""
    rest = request(own)
    found: dict[str, Any] = {
        "entrypoint_num_cpus": rest.pop("CPU", 0.0),
        "entrypoint_num_gpus": rest.pop("GPU", 0.0),
        "entrypoint_memory": int(rest.pop("memory", 0.0)),
        "entrypoint_resources": rest,
    }
    # Older Rays do not know this field: it is sent when it is needed.
    return {**found, "entrypoint_label_selector": selector} if selector else found


def environment(batch: Batch, own: dict[str, Any]) -> dict[str, str]:
    """Returns a job's variables: the batch's, then those of the config, then ours."""
    found = dict(batch.environment)
    if not accelerators(own):
        found["JAX_PLATFORMS"] = "cpu"  # Ray hides no TPU from a job that asked for none
    stop = {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_WAIT_S)}
    return {**found, **remote.variables(own["environment"]), **stop}


def entrypoint(batch: Batch, index: int, own: dict[str, Any]) -> str:
    """Returns the shell commands of a job; its output goes to the study's directory."""
    log, python = batch.log(index), own["python"] or sys.executable
    folder = shlex.quote(str(log.parent))
    command = batch.command(index, python)
    if not accelerators(own):
        cpus = f"--cpus={own['cpus']}"
        command = [python, "-m", "sweeps.launchers.ray.job", cpus, "--", *command]
    lines = [
        f"test -d {folder} || {{ echo this node does not see {folder}; exit {WRONG_NODE}; }}",
        f"exec >>{shlex.quote(str(log))} 2>&1",
        "set -e",
        "unset RAY_ADDRESS",  # of the cluster that this job is in
        # Ray fills in $NAME, which may be a part of a path.
        *(
            f"export {name}={shlex.quote(value)}"
            for name, value in batch.environment.items()
            if "$" in value
        ),
        own["setup"],
        # One process, which gets Ray's SIGTERM itself.
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(line for line in lines if line)


def take(count: int, among: str) -> list[int]:
    """Returns `count` of this process's cores, held until it ends; `among` names who shares them.

    Where fewer are free, as on a node that was told to offer more CPUs than it has, some are
    shared. A process with fewer cores than `count` gets them all.
    """
    cores = sorted(os.sched_getaffinity(0))
    while (choosing := local.hold_name(f"{among} choosing")) is None:
        time.sleep(0.01)
    with choosing:
        own: list[int] = []
        for core in cores:
            if len(own) < count and (held := local.hold_name(f"{among} {core}")) is not None:
                own.append(core)
                # For the life of this process, also across exec.
                held.set_inheritable(True)
                held.detach()
    # Spread over all cores by process, so that not everyone shares the first.
    shared = [core for core in cores if core not in own]
    start = os.getpid() % max(1, len(shared))
    return sorted(own + (shared[start:] + shared[:start])[: count - len(own)])


def main() -> None:
    """Takes cores and becomes the command."""
    parser = argparse.ArgumentParser(prog="python -m sweeps.launchers.ray.job")
    parser.add_argument("--cpus", type=int, required=True, help="cores to take")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    os.sched_setaffinity(0, take(options.cpus, f"cores of {tempfile.gettempdir()}"))
    sys.stdout.flush()
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main()
