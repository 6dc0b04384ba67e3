"""A storm: signals at the processes of a running study, when and at whom by a seeded generator.

Of `python -m tests.sweeps.chaos.soak`. A storm sees what any bystander sees: leases name the
jobs, /proc the driver's children. What it draws is repeatable, what it hits is not: that depends
on time.
"""

import collections
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

from sweeps.records import layout, lease, status

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
    """Signals at a study in `study`, `kills` of them in all, until its drivers end.

    `start` starts a driver and returns its process; `at_once` drivers run side by side. hits counts
    signals by what they were.
    """

    def __init__(
        self,
        study: pathlib.Path,
        start: Callable[[], subprocess.Popen[bytes]],
        kills: int,
        trials: int,
        seed: int,
        at_once: int = 1,
    ) -> None:
        self._drivers: list[subprocess.Popen[bytes]] = []
        self._at_once, self._code = at_once, 0
        self.study, self._start, self._kills, self._trials = study, start, kills, trials
        self._random = random.Random(seed)
        self.hits: collections.Counter[str] = collections.Counter()
        self.drivers = 0
        self._done: set[pathlib.Path] = set()
        self._struck: set[tuple[int, str]] = set()
        self._seen: set[tuple[int, str]] = set()
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
        self._restart()
        try:
            while any(driver.poll() is None for driver in self._drivers):
                self._look()
                if self._is_due():
                    strike = self._random.choices([*self._strikes], [*self._strikes.values()])[0]
                    strike()
                    self._next = time.monotonic() + self._random.uniform(0, _JITTER_S)
                time.sleep(_TICK_S)
            self._wait_for_all()
            return max(self._code, *(abs(driver.returncode) for driver in self._drivers))
        finally:
            self._end()

    # Who is there.

    def _restart(self) -> None:
        """Starts drivers in the place of those that were killed."""
        while len(self._drivers) < self._at_once:
            self._drivers.append(self._start())
            self.drivers += 1

    def _look(self) -> None:
        """Notes the drivers' processes; wakes frozen jobs whose trial somebody else has."""
        for driver in self._drivers:
            for pid in _children(driver.pid):
                if (start := lease.process_start(pid)) is not None:
                    self._seen.add((pid, start))
        for victim in list(self._frozen):
            if lease.latest(victim.attempt.parents[1]) > int(victim.attempt.name):
                self._frozen.remove(victim)
                _send(victim.pid, victim.start, signal.SIGCONT)

    def _victims(self) -> list[Victim]:
        """Returns live jobs that have a trial and were not struck yet."""
        found = []
        for trial in sorted(self.study.glob("grid/*/*/trial_*")):
            number = lease.latest(trial)
            if trial in self._done or not number:
                continue
            attempt = trial / layout.ATTEMPTS / str(number)
            record = layout.read_json_if_there(attempt / lease.LEASE) or {}
            victim = Victim(record.get("pid", 0), record.get("pid_start", ""), attempt)
            alive = lease.process_start(victim.pid) == victim.start
            if alive and (victim.pid, victim.start) not in self._struck:
                found.append(victim)
        return found

    def _is_due(self) -> bool:
        """Strikes keep pace with the study, so that they are spread over all of its trials."""
        if sum(self.hits.values()) >= self._kills or time.monotonic() < self._next:
            return False
        return sum(self.hits.values()) <= 1 + self._kills * self._progress() / _SPREAD

    def _progress(self) -> float:
        """Returns which part of the study's updates is done."""
        done = 0.0
        for trial in self.study.glob("grid/*/*/trial_*"):
            if trial in self._done:
                done += 1
                continue
            found = status.recorded(trial)
            done += found["global_step"] / found.get("steps", 1)
            if found["state"] in layout.FINISHED:
                self._done.add(trial)
        return done / self._trials

    # What happens to them.

    def _hit(self, what: str, victim: Victim, number: signal.Signals) -> None:
        self._struck.add((victim.pid, victim.start))
        self._seen.add((victim.pid, victim.start))
        if _send(victim.pid, victim.start, number):
            self.hits[what] += 1

    def _kill_job(self) -> None:
        for victim in self._some_victim():
            self._hit("SIGKILL of a job", victim, signal.SIGKILL)

    def _some_victim(self) -> list[Victim]:
        """Returns one live job, or none."""
        victims = self._victims()
        return [self._random.choice(victims)] if victims else []

    def _kill_while_saving(self) -> None:
        """Kills a job that is writing a checkpoint: orbax's temporary directory is there."""
        deadline = time.monotonic() + _SAVING_S
        while time.monotonic() < deadline and any(d.poll() is None for d in self._drivers):
            for victim in self._victims():
                if is_saving(victim.attempt.parents[1]):
                    self._hit("SIGKILL of a job that saves", victim, signal.SIGKILL)
                    return
            self._look()

    def _preempt_job(self) -> None:
        for victim in self._some_victim():
            self._hit("SIGTERM to a job", victim, signal.SIGTERM)

    def _kill_driver(self) -> None:
        """Its jobs finish the trials at hand and end; meanwhile another driver starts."""
        driver = self._drivers.pop(self._random.randrange(len(self._drivers)))
        driver.kill()
        if self._end_of(driver) == -signal.SIGKILL:
            self.hits["SIGKILL of a driver"] += 1
        self._restart()

    def _end_of(self, driver: subprocess.Popen[bytes]) -> int:
        """Returns a driver's exit code, and keeps it if it had ended before it was killed."""
        code = driver.wait()
        if code != -signal.SIGKILL:
            self._code = max(self._code, abs(code))
        return code

    def _crash_host(self) -> None:
        self._look()
        for driver in self._drivers:
            driver.kill()
        for victim in self._victims():
            self._hit("SIGKILL of a job with its driver", victim, signal.SIGKILL)
        self._end_others()
        while len(self._drivers) > 1:
            self._end_of(self._drivers.pop())
        self._kill_driver()

    def _freeze_job(self) -> None:
        """Stops a job until its lease has passed and somebody else has its trial."""
        for victim in self._some_victim():
            if not self._frozen:  # somebody must be left to take over
                self._hit("SIGSTOP of a job until it is superseded", victim, signal.SIGSTOP)
                self._frozen.append(victim)
                self._crash_host()

    def _end_others(self) -> None:
        """Kills what a crash of the host takes along: processes without a trial."""
        frozen = {(victim.pid, victim.start) for victim in self._frozen}
        for pid, start in self._seen - frozen:
            _send(pid, start, signal.SIGKILL)

    # The end.

    def _wait_for_all(self) -> None:
        """Waits until no process is left that could still write."""
        deadline = time.monotonic() + _END_S
        while self._alive() and time.monotonic() < deadline:
            self._look()
            time.sleep(_TICK_S)

    def _alive(self) -> list[tuple[int, str]]:
        return [(pid, start) for pid, start in self._seen if lease.process_start(pid) == start]

    def _end(self) -> None:
        self._look()
        for driver in self._drivers:
            driver.kill()
            driver.wait()
        for pid, start in self._alive():
            _send(pid, start, signal.SIGKILL)


def is_saving(trial: pathlib.Path) -> bool:
    """Whether a checkpoint of a trial is being written, or was left half-written."""
    with contextlib.suppress(FileNotFoundError):
        names = os.listdir(trial / layout.CHECKPOINTS)
        return any("orbax-checkpoint-tmp" in name for name in names)
    return False


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _send(pid: int, start: str, number: signal.Signals) -> bool:
    """Sends a signal to a process; returns whether it was there."""
    if lease.process_start(pid) != start:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False
