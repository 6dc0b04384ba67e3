"""One Ray job: what it asks of a node, and the commands that it runs there, on cores of its own.

`python -m sweeps.launchers.ray.job --cpus=2 -- COMMAND` takes that many cores of the node for as
long as COMMAND lives and becomes it. Ray counts CPUs but binds no process to any: without this, the
jobs of a node would all pin their workers to its first core, and a trial would see another number
of cores, and sum in another order, than it was given.
"""

import argparse
import os
import re
import shlex
import sys
from typing import Any

from sweeps.launchers import device_locks, remote
from sweeps.launchers.protocol import WRONG_NODE
from sweeps.records.submissions import Batch

# A job saves itself within 600 s (sweeps.launchers.local); Ray would kill it 3 s after
# the order to stop.
_STOP_WAIT_S = 660
# Ray's names of what has a key.
_KINDS = {"cpus": "CPU", "gpus": "GPU", "tpus": "TPU"}
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def request(keys: dict[str, Any]) -> dict[str, float]:
    """Returns what one job asks of Ray: {"CPU": 2.0, "GPU": 1.0, "memory": bytes, ...}.

    keys: config.ray. Raises ValueError for a resource or an amount that is not understood.
    """
    amounts = {kind: float(keys[key]) for key, kind in _KINDS.items()}
    for part in filter(None, keys["resources"].split(",")):
        name, _, amount = part.rpartition("=")
        if not re.fullmatch(r"\d+(\.\d+)?", amount) or name in ("", "memory", *amounts):
            raise ValueError(
                f"ray.resources: {part!r} is not understood; give NAME=NUMBER,NAME=NUMBER. CPU, "
                "GPU, TPU and memory have keys of their own"
            )
        amounts[name] = float(amount)
    memory = re.fullmatch(r"(\d+)([KMGT]?)", keys["memory"] or "0")
    if memory is None:
        raise ValueError(f"ray.memory is {keys['memory']!r}; give a number and K, M, G or T: 16G")
    amounts["memory"] = float(memory[1]) * _UNITS[memory[2]]
    return {name: amount for name, amount in amounts.items() if amount}


def holds(node: dict[str, float], amounts: dict[str, float]) -> int:
    """Returns how many jobs that ask for `amounts` a node with these resources holds."""
    return int(min(node.get(name, 0.0) // amount for name, amount in amounts.items()))


def body(
    batch: Batch, index: int, keys: dict[str, Any], selector: dict[str, str]
) -> dict[str, Any]:
    """Returns the request that submits a job, but for its id; `selector`: labels of its node."""
    amounts = request(keys)
    # Ray hides no TPU from a job that asked for none.
    cpu = {} if keys["gpus"] or keys["tpus"] else {"JAX_PLATFORMS": "cpu"}
    stop = {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_WAIT_S)}
    variables = {**batch.environment, **cpu, **remote.variables(keys["environment"]), **stop}
    job = {
        "entrypoint": entrypoint(batch, index, keys),
        "runtime_env": {"env_vars": variables},
        "entrypoint_num_cpus": amounts.pop("CPU", 0.0),
        "entrypoint_num_gpus": amounts.pop("GPU", 0.0),
        "entrypoint_memory": int(amounts.pop("memory", 0.0)),
        "entrypoint_resources": amounts,
    }
    # Older Rays do not know this field: it is sent when it is needed.
    return {**job, "entrypoint_label_selector": selector} if selector else job


def entrypoint(batch: Batch, index: int, keys: dict[str, Any]) -> str:
    """Returns the shell commands of a job; its output goes to the study's directory."""
    log, python = batch.log(index), keys["python"] or sys.executable
    folder = shlex.quote(str(log.parent))
    command = batch.command(index, python)
    if not keys["gpus"] and not keys["tpus"]:
        cpus = f"--cpus={keys['cpus']}"
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
        keys["setup"],
        # One process, which gets Ray's SIGTERM itself.
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(line for line in lines if line)


def take(count: int) -> list[int]:
    """Returns `count` of this process's cores, held until it ends.

    Where fewer are free, as on a node that was told to offer more CPUs than it has, some are
    shared. A process with fewer cores than `count` gets them all.
    """
    cores = sorted(os.sched_getaffinity(0))
    locks = device_locks.hold_devices("core", map(str, cores), count)
    for lock in locks.values():
        # For the life of this process, also across exec.
        lock.set_inheritable(True)
        lock.detach()
    # Spread over all cores by process, so that not everyone shares the first.
    shared = [core for core in cores if str(core) not in locks]
    start = os.getpid() % max(1, len(shared))
    return sorted([*map(int, locks), *(shared[start:] + shared[:start])[: count - len(locks)]])


def main() -> None:
    """Takes cores and becomes the command."""
    parser = argparse.ArgumentParser(prog="python -m sweeps.launchers.ray.job")
    parser.add_argument("--cpus", type=int, required=True, help="cores to take")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    os.sched_setaffinity(0, take(options.cpus))
    sys.stdout.flush()
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main()
