"""Runs a Ray job's command on CPU cores of its own.

`python -m sweeps.launchers.ray.entry --cpus=2 -- COMMAND` takes that many cores of the node for as
long as COMMAND lives and becomes it. Ray counts CPUs but binds no process to any: without this, the
jobs of a node would all pin their workers to its first core, and a trial would see another number
of cores, and sum in another order, than it was given.
"""

import argparse
import os
import sys
import tempfile
import time

from sweeps.launchers import slots


def take(count: int, among: str) -> list[int]:
    """Returns `count` of this process's cores, held until it ends; `among` names who shares them.

    Where fewer are free, as on a node that was told to offer more CPUs than it has, some are
    shared. A process with fewer cores than `count` gets them all.
    """
    cores = sorted(os.sched_getaffinity(0))
    while (door := slots.claim(f"{among} choosing")) is None:
        time.sleep(0.01)
    with door:
        own: list[int] = []
        for core in cores:
            if len(own) < count and _hold(f"{among} {core}"):
                own.append(core)
    # Spread over all cores by process, so that not everyone shares the first.
    shared = [core for core in cores if core not in own]
    start = os.getpid() % max(1, len(shared))
    return sorted(own + (shared[start:] + shared[:start])[: count - len(own)])


def _hold(name: str) -> bool:
    """Takes a name for the life of this process, also across exec; whether it was free."""
    held = slots.claim(name)
    if held is not None:
        held.set_inheritable(True)
        held.detach()
    return held is not None


def main() -> None:
    """Takes cores and becomes the command."""
    parser = argparse.ArgumentParser(prog="python -m sweeps.launchers.ray.entry")
    parser.add_argument("--cpus", type=int, required=True, help="cores to take")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    os.sched_setaffinity(0, take(options.cpus, f"cores of {tempfile.gettempdir()}"))
    sys.stdout.flush()
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main()
