"""A worker: one process that runs many trials, so that each pays no start-up and no compilation.

`python -m sweeps.worker.worker` reads JSON lines from standard input: {"trials": [directory ...],
"data_dir": directory, "loader_workers": n}; several trials are run as one pack. It writes JSON
lines of events to standard output, "free" when it is ready for the next order. What a trial prints
goes to its attempt's log. SIGTERM saves the trials at hand and ends the worker.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import socket
import sys
from typing import Any

from sweeps.distributed import bootstrap, process_group
from sweeps.launchers.protocol import AGAIN, WRONG_NODE
from sweeps.worker.runner import Worker


@dataclasses.dataclass(frozen=True)
class Options:
    """Command-line options of the worker."""

    cpus: tuple[int, ...]
    cache_dir: str
    gang: bool
    platform: str


def main() -> int:
    """Runs trials from standard input until it ends or SIGTERM comes.

    Returns 0; AGAIN where the processes of its gang did not find each other.
    """
    options = _options()
    if options.cpus:
        os.sched_setaffinity(0, options.cpus)
    # Events keep the original standard output; anything printed goes elsewhere from here on.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        together = process_group.join() if options.gang else None
    except bootstrap.StartError as error:
        print(error, file=sys.stderr)
        return AGAIN
    worker = Worker(channel, together)

    def stop(signum: int, frame: Any) -> None:
        del signum, frame
        worker.stop()

    for number in (signal.SIGTERM, signal.SIGUSR1):  # an engine may send either to a whole job
        signal.signal(number, stop)
    # Ctrl-C reaches the whole process group; the driver passes it on as SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _set_up_jax(options.cache_dir)
    if not computes_on(options.platform):
        return WRONG_NODE
    worker.report("ready", pid=os.getpid())
    while not (worker.stopping or worker.broken) and (line := _read_line(worker)):
        order = json.loads(line)
        worker.loader_workers = order.get("loader_workers", 0)
        worker.run([pathlib.Path(trial) for trial in order["trials"]], order["data_dir"])
        if not (worker.stopping or worker.broken):  # or it would be given what it will not run
            worker.report("free")
    if together is not None:
        together.end()
    return 0


def _read_line(worker: Worker) -> str:
    """Returns the next order, '' at the end of input or when told to stop while waiting."""
    import select

    while not worker.stopping:
        ready, _, _ = select.select([sys.stdin], [], [], 0.5)
        if ready:
            return sys.stdin.readline()
    return ""


def _options() -> Options:
    parser = argparse.ArgumentParser(prog="python -m sweeps.worker.worker", description=__doc__)
    parser.add_argument("--cpus", default="", help="comma-separated CPU numbers to stay on")
    parser.add_argument("--cache_dir", default="", help="JAX's persistent compilation cache")
    parser.add_argument("--gang", action="store_true", help="lead the processes of a job's nodes")
    parser.add_argument("--platform", default="", help="cpu, gpu or tpu: nothing else will do")
    given = parser.parse_args()
    cpus = tuple(int(part) for part in given.cpus.split(",") if part)
    return Options(cpus, given.cache_dir, given.gang, given.platform)


def _set_up_jax(cache_dir: str) -> None:
    """Loads JAX with its persistent compilation cache on for every program, however small."""
    import jax

    if cache_dir:
        jax.config.update("jax_compilation_cache_dir", cache_dir)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.devices()


# What brings JAX the driver of a platform.
_EXTRAS = {"gpu": "gpu", "tpu": "tpu"}


def computes_on(platform: str) -> bool:
    """Whether JAX found what it should; says what it found otherwise, to the workers' log."""
    import jax

    if platform in ("", jax.default_backend()):
        return True
    found = ", ".join(map(str, jax.devices()))
    remedy = "JAX_PLATFORMS must name it, or be unset"
    if platform in _EXTRAS:
        remedy = (
            f"pip install '.[{_EXTRAS[platform]}]' in {sys.prefix}, see that its driver works and "
            "that the job was given the device; or set JAX_PLATFORMS=cpu to insist on the CPU"
        )
    print(
        f"{socket.gethostname()}: a {platform} was expected here, but JAX {jax.__version__} finds "
        f"{found}: {remedy}",
        file=sys.stderr,
    )
    return False


if __name__ == "__main__":
    sys.exit(main())
