"""A storm: signals at the processes of a running study, when and at whom by a seeded generator.

Of `python -m tests.sweeps.chaos.soak`. A storm sees what any bystander sees: leases name the jobs
that have a trial, /proc all of them. What it draws is repeatable, what it hits is not: that depends
on time.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sweeps.records import layout, lease, status
from tests.sweeps import conftest

_TICK_S = 0.02
# A strike comes up to so long after it is due: anywhere in a step, an evaluation, a checkpoint.
_JITTER_S = 0.8
_SAVING_S = 5.0
_END_S = 120.0
# Part of the study after which all strikes have come: the last trials must not end before.
_SPREAD = 0.85


class Victim(NamedTuple):
    """A live job: its process, told from later ones of that number, and its attempt."""

    pid: int
    start: str
    attempt: pathlib.Path


class Storm:
    """Signals at a study in `study`, `options.kills` of them in all, until its drivers end.

    `start` starts a driver and returns its process; `options.drivers` run side by side. hits counts
    signals by what they were, started the drivers.
    """

    def __init__(
        self,
        study: pathlib.Path,
        start: Callable[[], subprocess.Popen[str]],
        options: argparse.Namespace,
    ) -> None:
        self.study, self._start, self._options = study, start, options
        self._drivers: list[subprocess.Popen[str]] = []
        self._random = random.Random(options.seed)
        self.hits: collections.Counter[str] = collections.Counter()
        self.started, self._code = 0, 0
        self._done: set[pathlib.Path] = set()
        self._struck: set[Victim] = set()
        self._frozen: list[Victim] = []
        self._next = 0.0
        self._strikes = {
            self._kill_job: 40,
            self._kill_while_saving: 20,
            self._preempt_job: 20,
            self._kill_driver: 8,
            self._crash_host: 6,
            self._freeze_job: 6,
        }

    def run(self) -> int:
        """Returns the largest exit code of the drivers that ended by themselves."""
        self._start_drivers()
        while self._is_driven():
            self._wake()
            if self._is_due():
                strike = self._random.choices([*self._strikes], [*self._strikes.values()])[0]
                strike()
                self._next = time.monotonic() + self._random.uniform(0, _JITTER_S)
            time.sleep(_TICK_S)
        # Until no process is left that could still write.
        deadline = time.monotonic() + _END_S
        while conftest.job_processes(self.study) and time.monotonic() < deadline:
            self._wake()
            time.sleep(_TICK_S)
        return max(self._code, *(abs(driver.returncode) for driver in self._drivers))

    def _start_drivers(self) -> None:
        while len(self._drivers) < self._options.drivers:
            self._drivers.append(self._start())
            self.started += 1

    def _is_driven(self) -> bool:
        return any(driver.poll() is None for driver in self._drivers)

    def _wake(self) -> None:
        """Wakes frozen jobs whose trial somebody else has."""
        for victim in list(self._frozen):
            if lease.latest(victim.attempt.parents[1]) > int(victim.attempt.name):
                self._frozen.remove(victim)
                _send(victim, signal.SIGCONT)

    def _victims(self) -> list[Victim]:
        """Returns live jobs that have a trial and were not struck yet."""
        victims = []
        for trial in sorted(self.study.glob("grid/*/*/trial_*")):
            number = lease.latest(trial)
            if trial in self._done or not number:
                continue
            attempt = trial / layout.ATTEMPTS / str(number)
            record = layout.read_json_if_there(attempt / lease.LEASE) or {}
            victim = Victim(record.get("pid", 0), record.get("pid_start", ""), attempt)
            if lease.process_start(victim.pid) == victim.start and victim not in self._struck:
                victims.append(victim)
        return victims

    def _is_due(self) -> bool:
        """Strikes keep pace with the study, so that they are spread over all of its trials."""
        hits, kills = self.hits.total(), self._options.kills
        if hits >= kills or time.monotonic() < self._next:
            return False
        return hits <= 1 + kills * self._progress() / _SPREAD

    def _progress(self) -> float:
        """Returns which part of the study's updates is done."""
        done = 0.0
        for trial in self.study.glob("grid/*/*/trial_*"):
            record = status.recorded(trial)
            done += record["global_step"] / record.get("steps", 1)
            if record["state"] in layout.FINISHED:
                self._done.add(trial)
        return done / self._options.trials

    def _hit(self, what: str, victims: Sequence[Victim], number: signal.Signals) -> None:
        for victim in victims:
            self._struck.add(victim)
            self.hits[what] += _send(victim, number)

    def _some_victim(self) -> list[Victim]:
        """Returns one live job, or none."""
        victims = self._victims()
        return [self._random.choice(victims)] if victims else []

    def _kill_job(self) -> None:
        self._hit("SIGKILL of a job", self._some_victim(), signal.SIGKILL)

    def _kill_while_saving(self) -> None:
        """Kills a job that is writing a checkpoint: orbax's temporary directory is there."""
        deadline, saving = time.monotonic() + _SAVING_S, []
        while not saving and time.monotonic() < deadline and self._is_driven():
            self._wake()
            saving = [job for job in self._victims() if is_saving(job.attempt.parents[1])]
        self._hit("SIGKILL of a job that saves", saving[:1], signal.SIGKILL)

    def _preempt_job(self) -> None:
        self._hit("SIGTERM to a job", self._some_victim(), signal.SIGTERM)

    def _kill_driver(self) -> None:
        """Its jobs finish the trials at hand and end; meanwhile another driver starts."""
        self._end_drivers([self._random.choice(self._drivers)])

    def _end_drivers(self, drivers: Sequence[subprocess.Popen[str]]) -> None:
        """Kills drivers, at once one hit, and starts others; keeps codes of those over before."""
        for driver in drivers:
            driver.kill()
        codes = {driver.wait() for driver in drivers}
        self.hits["SIGKILL of a driver"] += -signal.SIGKILL in codes
        self._code = max([self._code, *(abs(code) for code in codes - {-signal.SIGKILL})])
        self._drivers = [driver for driver in self._drivers if driver not in drivers]
        self._start_drivers()

    def _crash_host(self) -> None:
        for driver in self._drivers:
            driver.kill()
        self._hit("SIGKILL of a job with its driver", self._victims(), signal.SIGKILL)
        # Processes without a trial, too.
        conftest.kill_jobs(self.study, but={victim.pid for victim in self._frozen})
        self._end_drivers(self._drivers)

    def _freeze_job(self) -> None:
        """Stops a job until its lease has passed and somebody else has its trial."""
        victims = self._some_victim()
        if victims and not self._frozen:  # somebody must be left to take over
            self._hit("SIGSTOP of a job until it is superseded", victims, signal.SIGSTOP)
            self._frozen = victims
            self._crash_host()


def is_saving(trial: pathlib.Path) -> bool:
    """Whether a checkpoint of a trial is being written, or was left half-written."""
    with contextlib.suppress(FileNotFoundError):
        names = os.listdir(trial / layout.CHECKPOINTS)
        return any("orbax-checkpoint-tmp" in name for name in names)
    return False


def _send(victim: Victim, number: signal.Signals) -> bool:
    """Sends a signal to a process; returns whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        if lease.process_start(victim.pid) == victim.start:
            os.kill(victim.pid, number)
            return True
    return False
