"""A follower: a process of a gang that trains what the leader orders, and writes no files.

`python -m sweeps.worker.secondary` takes its place from the environment
(`sweeps.distributed.bootstrap`). An order: {"trial": directory, "attempt": number, "data_dir":
directory, "loader_workers": n}. SIGTERM, SIGINT and SIGUSR1 (Slurm's warning before the time limit)
have the whole gang save and end.
"""

import argparse
import os
import pathlib
import signal
import sys
import traceback
from typing import Any

from sweeps.distributed import bootstrap, process_group
from sweeps.launchers.protocol import AGAIN, WRONG_NODE
from sweeps.records import lease
from sweeps.worker import worker


class Follower:
    """Trains with the others; keeps compiled programs as a worker does."""

    def __init__(self) -> None:
        self._programs = worker.Worker(sys.stderr)
        self._stopping = False

    def stop(self, signum: int, frame: Any) -> None:
        """A signal's handler: the gang saves and ends."""
        del signum, frame
        self._stopping = True

    def follow(self, others: process_group.Gang) -> int:
        """Trains until the last order. Returns the leader's exit code, AGAIN for a broken gang."""
        while (order := others.next_order(lambda: self._stopping))["kind"] != "end":
            self._train(order, others)
            if others.broken:
                return AGAIN
        others.leave()
        code: int = order["code"]
        return code

    def _train(self, order: dict[str, Any], others: process_group.Gang) -> None:
        from sweeps.training import loop

        try:
            self._training(order, others).run()
        except loop.Preempted:
            print(f"{order['trial']}: saved", file=sys.stderr)
        except process_group.LedError as error:
            print(f"{order['trial']}: the leader failed: {error}", file=sys.stderr)
        except Exception as problem:
            traceback.print_exception(problem)

    def _training(self, order: dict[str, Any], others: process_group.Gang) -> Any:
        from sweeps.study import trial
        from sweeps.training import loop

        try:
            attempt = lease.Attempt(pathlib.Path(order["trial"]), order["attempt"])
            record = trial.read(attempt.trial_directory)
            program = self._programs._program(record)
            program.workload.loader_workers = order["loader_workers"]
        except Exception as problem:
            others.failed(problem)
            raise
        return loop.Training(
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
    found = bootstrap.detect(os.environ)
    if found is None or found.is_leader:
        raise ValueError(f"{found or 'this process is alone'}: it has nobody to follow")
    try:
        others = process_group.join()
    except bootstrap.StartError as error:
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
    parser = argparse.ArgumentParser(prog="python -m sweeps.worker.secondary", description=__doc__)
    parser.add_argument("--cache_dir", default="", help="JAX's persistent compilation cache")
    parser.add_argument("--platform", default="", help="cpu, gpu or tpu: nothing else will do")
    options = parser.parse_args()
    return run(options.cache_dir, options.platform)


if __name__ == "__main__":
    sys.exit(main())
