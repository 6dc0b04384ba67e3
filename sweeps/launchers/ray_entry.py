"""Runs a Ray job's command on CPU cores of its own.

`python -m sweeps.launchers.ray_entry --cpus=2 -- COMMAND` takes that many cores of the node for as
long as COMMAND lives and becomes it. Ray counts CPUs but binds no process to any: without this, the
jobs of a node would all pin their workers to its first core, and a trial would see another number
of cores, and sum in another order, than it was given.
"""

import argparse
import contextlib
import fcntl
import os
import pathlib
import sys
import tempfile


def take(count: int, folder: pathlib.Path) -> list[int]:
    """Returns `count` of this process's cores, held by locks in `folder` until it ends.

    Where fewer are free, as on a node that was told to offer more CPUs than it has, some are
    shared. A process with fewer cores than `count` gets them all.
    """
    cores = sorted(os.sched_getaffinity(0))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "choosing").open("w") as door:
        fcntl.flock(door, fcntl.LOCK_EX)
        own: list[int] = []
        for core in cores:
            if len(own) < count and _hold(folder / f"core-{core}"):
                own.append(core)
    # Spread over all cores by process, so that not everyone shares the first.
    shared = [core for core in cores if core not in own]
    start = os.getpid() % max(1, len(shared))
    return sorted(own + (shared[start:] + shared[:start])[: count - len(own)])


def _hold(path: pathlib.Path) -> bool:
    """Locks a file for the life of this process, also across exec; whether it was free."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.set_inheritable(descriptor, True)
        return True
    os.close(descriptor)
    return False


def main() -> None:
    """Takes cores and becomes the command."""
    parser = argparse.ArgumentParser(prog="python -m sweeps.launchers.ray_entry")
    parser.add_argument("--cpus", type=int, required=True, help="cores to take")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.gettempdir()) / f"attnperf-{os.getuid()}" / "cores"
    os.sched_setaffinity(0, take(options.cpus, folder))
    sys.stdout.flush()
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main()
