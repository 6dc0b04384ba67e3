"""A sweep on a simulated cluster that fails in every way known, by the real driver's code.

`python -m tests.sweeps.simulation.simulate --trials 1000 --workers 100 --seed 0` runs a whole study
(tune, select, compare) against an engine of simulated nodes with real files, and prints what it
did, what it cost and what was violated. Real are the driver, its scheduler, claims, leases, status,
measurements and the retry policy; simulated are time, hosts, the engine and the numbers that trials
measure. The file system is real, every operation counted and, for the driver, slow.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import sys
import tempfile
import time
import types
from collections.abc import Callable
from typing import Any

from attention.common import messages
from attention.common.arguments import positive, whole
from sweeps.monitoring import progress
from sweeps.records import layout
from sweeps.scheduling import driver
from sweeps.study import config, study, study_directory
from sweeps.study.trial import Trial
from tests.sweeps import defaults
from tests.sweeps.simulation.engine import Engine
from tests.sweeps.simulation.environment import simulated
from tests.sweeps.simulation.referee import Referee
from tests.sweeps.simulation.rules import Rules
from tests.sweeps.simulation.world import Actor, Host, Killed, TooLongError, World

_MODIFIERS = ("", "+temp", "+qk_norm", "+per_dim_temp")
_VARIANTS = 2 * len(_MODIFIERS)


class DriverProcess(Actor):
    """The driver: its file operations take time; it dies once enough trials are done."""

    def __init__(self, world: World, host: Host, rules: Rules, dies: Callable[[], bool]) -> None:
        super().__init__(world, host)
        self._rules, self._dies = rules, dies
        self._left = rules.rng.randrange(50)

    def before(self) -> None:
        """Takes the time that the operation takes."""
        super().before()
        self.world.advance(self._rules.latency())
        if self._dies():
            self._left -= 1
            if self._left < 0:
                self.world.faults["driver killed"] += 1
                self.dead = True
        super().before()


class Simulation:
    """A study of `trials` trials on `workers` nodes, in a directory of its own.

    crashes: how often the driver is killed and started anew. limit_h: simulated hours after which
    the study counts as one that never ends. `changes` are fields of Rules.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        trials: int,
        workers: int,
        seed: int = 0,
        crashes: int = 3,
        limit_h: float = math.inf,
        **changes: Any,
    ) -> None:
        self.study = _study(directory, trials)
        self.world = World(seed)
        self.world.limit_s = 3600 * limit_h
        self.rules = Rules(self.world.rng, **changes)
        self.referee = Referee(self.world, self.study.directory)
        self.trials = trials
        # Shares of the trials that are done when a driver dies.
        self._deaths = sorted(self.world.rng.random() for _ in range(crashes))
        self._drivers, self._cpu_s = 0, 0.0
        self.engine = Engine(self.world, self.rules, self.referee, workers)

    def run(self) -> types.SimpleNamespace:
        """Runs the study to its end, whoever dies; returns what happened."""
        self.study.directory.mkdir(parents=True)
        counts: dict[str, int] = {}
        with simulated(self.engine, self.study.directory):
            try:
                counts = self._drive()
                self.world.limit_s = math.inf
            except TooLongError:
                self.referee.violated("the study does not end")
            finally:
                self.world.close()
        if counts:
            self.referee.judge(self._planned(), self.rules.is_poison)
        return self._result(counts)

    def _drive(self) -> dict[str, int]:
        while True:
            self._drivers += 1
            host = self.world.host(f"login{self._drivers}")
            self.world.actor = DriverProcess(self.world, host, self.rules, self._is_driver_due)
            began = time.process_time() - self.world.events_cpu_s
            try:
                with (
                    open(os.devnull, "w") as nowhere,
                    contextlib.redirect_stdout(nowhere),
                    progress.Progress() as shown,
                ):
                    study_directory.prepare(self.study)
                    return driver.run(self.study, shown)
            except Killed:
                self._deaths[:1] = []
            except ValueError as error:
                if "have damaged records" in str(error):
                    self.referee.violated(str(error))
                    return {}
                if "does not take the jobs" not in str(error):
                    raise
                self.world.faults["engine away at first, tried again by a person"] += 1
            finally:
                self.world.actor = None
                self._cpu_s += time.process_time() - self.world.events_cpu_s - began
            self.world.advance(self.rules.duration(600.0))

    def _is_driver_due(self) -> bool:
        done = len(self.referee.completions)
        return bool(self._deaths) and done >= self._deaths[0] * self.trials

    def _planned(self) -> list[Trial]:
        """Returns every trial that the study consists of, by its plan."""
        selection = layout.read_json(self.study.directory / layout.SELECTION)
        return self.study.trials("tune") + self.study.trials("compare", selection)

    def _result(self, counts: dict[str, int]) -> types.SimpleNamespace:
        """Returns what the sweep did.

        hours: simulated. cpu_s: the drivers'. operations: the drivers' file operations, of which
        operations_per_trial; worker_operations: those of all others. most_jobs: at the engine at a
        time.
        """
        operations = self.world.operations
        return types.SimpleNamespace(
            trials=self.trials,
            workers=self.engine.workers,
            drivers=self._drivers,
            hours=self.world.now / 3600,
            cpu_s=self._cpu_s,
            operations=operations[DriverProcess],
            operations_per_trial=operations[DriverProcess] / self.trials,
            worker_operations=operations.total() - operations[DriverProcess],
            jobs=len(self.engine.jobs),
            most_jobs=self.engine.most_alive,
            attempts=self.referee.attempts,
            faults=dict(sorted(self.world.faults.items())),
            violations=self.world.violations,
            counts=counts,
        )


def _study(directory: pathlib.Path, trials: int) -> study.Study:
    """Returns a study of tune and compare with exactly so many trials.

    Raises ValueError for a number that cannot be had.
    """
    seeds = max(1, min(layout.SEEDS_PER_POINT, trials // 40))
    tuned = trials - _VARIANTS * seeds
    fits = [p for p in range(1, 101) if tuned > 0 and tuned % p == 0]
    if not fits or tuned // fits[-1] > layout.SEEDS_PER_POINT:
        raise ValueError(f"no study of {trials} trials: give a round number from 100 to 100000")
    names = [f"{mixer}{end}" for mixer in ("standard", "laser") for end in _MODIFIERS]
    changes = {
        **defaults.SMALL,
        "name": "simulated",
        "experiment_dir": directory,
        "variants": ",".join(names),
        "points": fits[-1],
        "tuning_seeds": tuned // fits[-1],
        "seeds": seeds,
        "steps": 30,
        "eval_every": 10,
    }
    overrides = [f"--config.{key}={value}" for key, value in changes.items()]
    resolved = study.resolve(config.parse("digits_vit_quick", overrides))
    launcher = {"launcher": Engine.NAME, Engine.NAME: defaults.of(Engine)}
    settings = {**resolved.settings, **launcher, "max_attempts": Rules.max_attempts}
    return study.Study(settings, resolved.points)


def simulate(trials: int, workers: int, seed: int = 0, **options: Any) -> types.SimpleNamespace:
    """Runs a simulation in a directory that is removed afterwards; see Simulation."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="attnperf-simulation-", dir=memory) as directory:
        return Simulation(pathlib.Path(directory), trials, workers, seed, **options).run()


def main(arguments: list[str] | None = None) -> int:
    """Runs simulations of growing size. Returns 1 where something was violated, 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sweeps.simulation.simulate", description=__doc__
    )
    parser.add_argument("--trials", type=whole(100, 100_000), nargs="+", default=[1000])
    parser.add_argument(
        "--workers", type=whole(1, 100_000), default=1000, help="at most a fifth of the trials"
    )
    parser.add_argument("--seed", type=whole(0), default=0)
    parser.add_argument(
        "--beat_s", type=positive(0.1, 3600.0), default=Rules.beat_s, help="between heartbeats"
    )
    parser.add_argument("--crashes", type=whole(0, 1000), default=3, help="of the driver")
    options = parser.parse_args(arguments)
    violated = 0
    for trials in options.trials:
        workers = min(options.workers, max(1, trials // 5))
        chosen = {"crashes": options.crashes, "beat_s": options.beat_s}
        try:
            result = simulate(trials, workers, options.seed, **chosen)
        except (ValueError, OSError) as error:
            parser.error(messages.message(error))
        print(json.dumps(vars(result), indent=1), flush=True)
        violated += len(result.violations)
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
