"""A follower: a process of a gang that trains what the leader orders, and writes no files.

`python -m sweeps.follower` takes its place from the environment (`sweeps.processes`). An order:
{"trial": directory, "attempt": number, "data_dir": directory, "loader_workers": n}. SIGTERM,
SIGINT and SIGUSR1 (Slurm's warning before the time limit) have the whole gang save and end.
"""

import argparse
import os
import pathlib
import signal
import sys
import traceback
from typing import Any

from sweeps import gang, lease, processes, worker
from sweeps.launchers.protocol import AGAIN, WRONG_NODE


class Follower:
    """Trains with the others; keeps compiled programs as a worker does."""

    def __init__(self) -> None:
        self._programs = worker.Worker(sys.stderr)
        self._stopping = False

    def stop(self, signum: int, frame: Any) -> None:
        """A signal's handler: the gang saves and ends."""
        del signum, frame
        self._stopping = True

    def follow(self, others: gang.Gang) -> int:
        """Trains until the last order. Returns the leader's exit code, AGAIN for a broken gang."""
        while (order := others.next_order(lambda: self._stopping))["kind"] != "end":
            self._train(order, others)
            if others.broken:
                return AGAIN
        others.leave()
        code: int = order["code"]
        return code

    def _train(self, order: dict[str, Any], others: gang.Gang) -> None:
        from sweeps import training

        try:
            self._training(order, others).run()
        except training.Preempted:
            print(f"{order['trial']}: saved", file=sys.stderr)
        except gang.LedError as error:
            print(f"{order['trial']}: the leader failed: {error}", file=sys.stderr)
        except Exception as problem:
            traceback.print_exception(problem)

    def _training(self, order: dict[str, Any], others: gang.Gang) -> Any:
        from sweeps import training, trial

        try:
            attempt = lease.Attempt(pathlib.Path(order["trial"]), order["attempt"])
            record = trial.read(attempt.trial_directory)
            program = self._programs._program(record)
            program.workload.loader_workers = order["loader_workers"]
        except Exception as problem:
            others.failed(problem)
            raise
        return training.Training(
            record,
            attempt,
            program,
            order["data_dir"],
            _say_nothing,
            lambda: self._stopping,
            others,
        )


def run(cache_dir: str, platform: str = "") -> int:
    """Follows the gang that the environment describes; returns the exit code.

    `cache_dir` is JAX's compilation cache; WRONG_NODE where JAX does not find `platform`. Raises
    ValueError where this process is no follower.
    """
    follower = Follower()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, follower.stop)
    found = processes.detect(os.environ)
    if found is None or found.is_leader:
        raise ValueError(f"{found or 'this process is alone'}: it has nobody to follow")
    try:
        others = gang.join()
    except processes.StartError as error:
        print(error, file=sys.stderr)
        return AGAIN
    assert others is not None
    worker._set_up_jax(cache_dir)
    if not worker.computes_on(platform):
        sys.stderr.flush()
        os._exit(WRONG_NODE)  # at its regular end JAX would wait for the others
    code = follower.follow(others)
    if others.broken:
        sys.stderr.flush()
        os._exit(code)  # at its regular end JAX would wait for the others
    return code


def _say_nothing(event: str, **fields: Any) -> None:
    del event, fields


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sweeps.follower", description=__doc__)
    parser.add_argument("--cache_dir", default="", help="JAX's persistent compilation cache")
    parser.add_argument("--platform", default="", help="cpu, gpu or tpu: nothing else will do")
    options = parser.parse_args()
    return run(options.cache_dir, options.platform)


if __name__ == "__main__":
    sys.exit(main())
