"""A simulated cluster's time: hosts with wrong clocks, processes that die or sleep, and one driver.

One runs at a time: the driver's real code runs, and whenever it sleeps or
waits for a file operation, the events that are due by then happen. A process that is stopped in
the middle of real code waits in a thread of its own until it wakes. No two ever run at once.
"""

import collections
import dataclasses
import heapq
import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from sweeps.records import lease


class Killed(BaseException):
    """SIGKILL: raised ahead of every file operation of a dead process, its clean-up included."""


class TooLongError(Exception):
    """The study does not end."""


@dataclasses.dataclass
class Host:
    """A machine. skew_s: how wrong its clock is. refuses: it lacks the data."""

    name: str
    skew_s: float
    refuses: bool = False
    up: bool = True
    boot: int = 0


class Actor:
    """A process of the simulation: the driver, or one that trains.

    Of one that trains: the attempt that it has, when it last renewed its lease, and whether it was
    stopped and woke again within its current step.
    """

    trains = False
    attempt: lease.Attempt | None = None
    beaten_at = 0.0
    woke_in_step = False

    def __init__(self, world: "World", host: Host) -> None:
        self.world, self.host = world, host
        self.pid = next(world.numbers)
        self.dead = False

    def before(self) -> None:
        """Called ahead of each of its file operations. Raises Killed once it is dead."""
        if self.dead:
            raise Killed


class World:
    """Simulated time, its events, and who acts at the moment.

    cache_s: a heartbeat looks up to so much older than it is (an NFS client's attribute cache).
    """

    cache_s = 60.0

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now, self.limit_s = 0.0, math.inf
        # The file server's clock is as wrong as any; 1.7e9 s is in 2023.
        self.server_offset_s = 1.7e9 + self.rng.uniform(-600, 600)
        self.actor: Actor | None = None
        self.processes: dict[int, Actor] = {}
        # File operations, by the class of who made them.
        self.operations: collections.Counter[type] = collections.Counter()
        self.faults: collections.Counter[str] = collections.Counter()
        self.violations: list[str] = []
        # Processor seconds that the events took, i.e. not the driver.
        self.events_cpu_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._within = False
        # Numbers of processes and, for those at the same time, of events.
        self.numbers = itertools.count(1)
        self.stopped: dict[Apart, None] = {}

    def host(self, name: str) -> Host:
        """Returns a host whose clock is off by up to ten minutes."""
        return Host(name, self.rng.uniform(-600, 600))

    def at(self, delay_s: float, event: Callable[[], None]) -> None:
        """Has something happen later."""
        heapq.heappush(self._events, (self.now + delay_s, next(self.numbers), event))

    def advance(self, seconds: float) -> None:
        """Lets time pass, and what is due by then happen, for the driver."""
        until = self.now + seconds
        if until > self.limit_s:
            raise TooLongError
        if self._within:
            raise RuntimeError("only the driver waits; a process yields")
        if self._events and self._events[0][0] <= until:
            self._within, driver, began = True, self.actor, time.process_time()
            try:
                while self._events and self._events[0][0] <= until:
                    self.now, _, event = heapq.heappop(self._events)
                    event()
            finally:
                self._within, self.actor = False, driver
                self.events_cpu_s += time.process_time() - began
        self.now = until

    def before(self) -> None:
        """Counts a file operation of whoever acts."""
        if self.actor is not None:
            self.operations[type(self.actor)] += 1
            self.actor.before()

    def identity(self) -> dict[str, Any]:
        """Stands in the place of `sweeps.records.lease.identity`."""
        actor = self.actor
        assert actor is not None
        return {
            "host": actor.host.name,
            "boot_id": f"{actor.host.name}-{actor.host.boot}",
            "pid_namespace": "simulated",
            "pid": actor.pid,
            "pid_start": str(actor.pid),
            "claimed_at": self.now + actor.host.skew_s,
        }

    def process_start(self, pid: int) -> str | None:
        """Stands in the place of `lease.process_start`: None for processes that are dead."""
        process = self.processes.get(pid)
        return None if process is None or process.dead else str(pid)

    # Turns of processes.

    def step(self, actor: Actor, steps: Iterator[float]) -> float | None:
        """Runs a process up to where it next waits; returns for how long, None at its end."""
        self.actor = actor
        try:
            return next(steps)
        except (StopIteration, Killed):
            return None

    def close(self) -> None:
        """Ends the threads of processes that still sleep."""
        for step in list(self.stopped):
            step.actor.dead = True
            step.wake()


class Apart:
    """A step in a thread of its own, so that it can be stopped in its middle, as by SIGSTOP."""

    def __init__(
        self, actor: Actor, steps: Iterator[float], then: Callable[[float | None], None]
    ) -> None:
        self.actor, self._world = actor, actor.world
        self._steps, self._then = steps, then
        self._results: list[float | BaseException | None] = []
        self._mine, self._worlds = threading.Semaphore(0), threading.Semaphore(0)

    def start(self) -> None:
        """Runs the step up to its end or its stop."""
        threading.Thread(target=self._run, daemon=True).start()
        self._settle()

    def _run(self) -> None:
        try:
            self._results.append(self._world.step(self.actor, self._steps))
        except BaseException as problem:  # belongs to the simulation's thread
            self._results.append(problem)
        self._worlds.release()

    def _settle(self) -> None:
        self._worlds.acquire()
        for result in self._results:
            if isinstance(result, BaseException):
                raise result
            self._then(result)

    def stop(self, seconds: float) -> None:
        """Called within the step: sleeps while the world goes on."""
        self._world.stopped[self] = None
        self._world.at(seconds, self.wake)
        self._worlds.release()
        self._mine.acquire()

    def wake(self) -> None:
        """Lets a stopped step go on, once."""
        if self in self._world.stopped:
            del self._world.stopped[self]
            self._world.actor = self.actor
            self._mine.release()
            self._settle()
