"""A worker: one process that runs many trials, so that each pays no start-up and no compilation.

`python -m sweeps.worker` reads JSON lines from standard input: {"trial": directory, "data_dir":
directory, "loader_workers": n}. It writes JSON lines of events to standard output, "free" when it
is ready for the next order. What a trial prints goes to its attempt's log. SIGTERM saves the trial
at hand and ends the worker.

Where several processes train each trial (`sweeps.distributed.bootstrap`: the environment says which
one this is), `--primary` does so, and `--secondary` trains with it what it orders, and writes no
files; SIGTERM, SIGINT and SIGUSR1 (Slurm's warning before the time limit) to any of them have all
save and end.
"""

import argparse
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
from typing import Any

from attention import checkout
from sweeps.distributed import bootstrap, process_group
from sweeps.launchers.protocol import AGAIN, WRONG_NODE
from sweeps.records import provenance
from sweeps.worker.worker import Worker


def main() -> int:
    """Runs trials until the orders end or a signal comes.

    Returns 0; AGAIN where the processes of its group did not find each other or one was lost;
    WRONG_NODE where JAX does not find the platform; 2 where there is no primary process to follow.
    """
    checkout.start("sweeps.worker")
    options = _options()
    if options.cpus:
        os.sched_setaffinity(0, options.cpus)
    try:
        if options.look:
            return _look(options)
        return _secondary(options) if options.secondary else _primary(options)
    except bootstrap.StartError as error:
        print(error, file=sys.stderr)
        return AGAIN


def _primary(options: argparse.Namespace) -> int:
    # Events keep the original standard output; anything printed goes elsewhere from here on.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    processes = process_group.join() if options.primary else process_group.SingleProcess()
    worker = Worker(channel, processes)
    _stop_at(worker, signal.SIGTERM, signal.SIGUSR1)  # an engine may send either to a whole job
    # Ctrl-C reaches the whole process group; the driver passes it on as SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if options.no_jax:
        code = _set_up_others_jax(options.cache_dir, options.platform)
    else:
        code = _look(options)
    if code:
        return code
    worker.report("ready", pid=os.getpid())
    while not (worker.stopping or worker.broken) and (line := _read_line(worker)):
        order = json.loads(line)
        worker.run(pathlib.Path(order["trial"]), order["data_dir"], order.get("loader_workers", 0))
        if not (worker.stopping or worker.broken):  # or it would be given what it will not run
            worker.report("free")
    processes.end()
    return 0


def _look(options: argparse.Namespace) -> int:
    """Loads JAX; returns WRONG_NODE where it does not find the platform, else 0."""
    try:
        _set_up_jax(options.cache_dir)
    except ValueError as error:
        print(error, file=sys.stderr, flush=True)
        return WRONG_NODE
    return 0 if _computes_on(options.platform) else WRONG_NODE


def _secondary(options: argparse.Namespace) -> int:
    found = bootstrap.detect(os.environ)
    if found is None or found.is_primary:
        print(f"{found or 'this process is alone'}: there is no other to follow", file=sys.stderr)
        return 2
    worker = Worker(None)
    _stop_at(worker, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    worker.processes = processes = process_group.join()
    code = _look(options) or worker.follow()
    if processes.broken or code == WRONG_NODE:
        sys.stderr.flush()
        os._exit(code)  # at its regular end JAX would wait for the others
    return code


def _stop_at(worker: Worker, *signals: signal.Signals) -> None:
    def stop(signum: int, frame: Any) -> None:
        del signum, frame
        worker.stop()

    for number in signals:
        signal.signal(number, stop)


def _read_line(worker: Worker) -> str:
    """Returns the next order, '' at the end of input or when told to stop while waiting."""
    while not worker.stopping:
        ready, _, _ = select.select([sys.stdin], [], [], 0.5)
        if ready:
            return sys.stdin.readline()
    return ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sweeps.worker", description=__doc__)
    parser.add_argument("--cpus", type=_numbers, default=(), help="to stay on: 0,1,2")
    parser.add_argument("--cache_dir", default="", help="JAX's persistent compilation cache")
    parser.add_argument("--platform", default="", help="cpu, gpu or tpu: nothing else will do")
    parser.add_argument(
        "--no_jax", action="store_true", help="trials are trained by processes of another trainer"
    )
    parser.add_argument("--look", action="store_true", help="find the platform, and end")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--primary", action="store_true", help="first process of several")
    part.add_argument("--secondary", action="store_true", help="another process of several")
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def _set_up_jax(cache_dir: str) -> None:
    """Loads JAX with its persistent compilation cache on for every program, however small."""
    import jax

    from attention import devices

    if cache_dir:
        jax.config.update("jax_compilation_cache_dir", cache_dir)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    provenance.pin_options()
    devices.default_platform()


def _set_up_others_jax(cache_dir: str, platform: str) -> int:
    """Has the processes that this one starts use the cache, and leaves the devices to them.

    Returns what `_look` does of one such process: they would compute on a CPU without a word.
    """
    if cache_dir:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = cache_dir
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    for name in provenance.PINNED:
        os.environ.pop(name.upper(), None)
    if not platform:
        return 0
    command = [sys.executable, "-m", "sweeps.worker", "--look", f"--platform={platform}"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def _computes_on(platform: str) -> bool:
    """Whether JAX found what it should; says what it found otherwise, to the workers' log."""
    import jax

    if platform in ("", jax.default_backend()):
        return True
    found = ", ".join(map(str, jax.devices()))
    remedy = "JAX_PLATFORMS must name it, or be unset"
    if platform != "cpu":  # an extra of that name brings its driver
        remedy = (
            f"pip install '.[{platform}]' in {sys.prefix}, see that its driver works and "
            "that the job was given the device; or set JAX_PLATFORMS=cpu to insist on the CPU"
        )
    here = f"{socket.gethostname()}: a {platform} was expected here"
    print(f"{here}, but JAX {jax.__version__} finds {found}: {remedy}", file=sys.stderr)
    return False


if __name__ == "__main__":
    sys.exit(main())
