"""A simulated engine with faulty nodes, and its launcher's methods.

It does what real ones were seen to do: starts jobs late, twice, on nodes without the data; loses
nodes; requeues or does not; forgets jobs that run; takes a submission whose answer is lost; does
not answer at all for a while.
"""

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar

from sweeps.launchers.config_keys import Key
from sweeps.launchers.protocol import AGAIN, Devices, EngineError, State
from sweeps.records import submissions
from sweeps.records.submissions import Batch
from tests.sweeps.simulation.process import Process
from tests.sweeps.simulation.referee import Referee
from tests.sweeps.simulation.rules import Rules
from tests.sweeps.simulation.world import Host, Killed, World

_NODE_DOWN_S, _NOTICED_S, _AWAY_S, _GRACE_S = 600.0, 120.0, 900.0, 60.0


@dataclasses.dataclass
class Job:
    """One job; processes that run it, more than one where it was started twice."""

    handle: str
    batch: Batch
    index: int
    state: State = State.QUEUED
    processes: list[Process] = dataclasses.field(default_factory=list)


class Engine:
    """Nodes that run a job each, a queue, and a launcher's methods."""

    NAME = "simulated"
    KEYS: ClassVar = {"poll_seconds": Key(15, "seconds"), "trials_per_job": Key(1, "trials")}
    is_this_host = False

    def __init__(self, world: World, rules: Rules, referee: Referee, workers: int) -> None:
        self.world, self.rules, self.referee, self.workers = world, rules, referee, workers
        self.nodes = [world.host(f"node{number}") for number in range(workers)]
        for node in self.nodes[: workers // 200]:
            node.refuses = True
        self.idle = list(self.nodes)
        self.queue: collections.deque[Job] = collections.deque()
        self.jobs: dict[str, Job] = {}
        self.alive = self.most_alive = 0
        self.away_until = 0.0
        self.place: dict[str, str] = {}
        self._each_hour()

    # The launcher and, called, its class.

    def __call__(self, settings: dict[str, Any], study_directory: pathlib.Path) -> "Engine":
        """Returns the engine of the simulation under way."""
        return self

    def hardware(self, settings: dict[str, Any]) -> Devices:
        """Returns the devices that a job would have."""
        return Devices("cpu", 1)

    def capacity(self) -> int:
        """Returns as many jobs as there are nodes."""
        return self.workers

    def submit(self, batch: Batch) -> list[str]:
        """Takes a batch; its answer may be lost."""
        self._call()
        recorded = submissions.read(batch.file)
        for index in range(batch.size):
            job = Job(f"{batch.name}/{index}", recorded, index)
            if job.handle in self.jobs:
                self.referee.violated(f"{job.handle} was submitted twice")
            self.jobs[job.handle] = job
            self._enqueue(job)
        self.alive += batch.size
        self.most_alive = max(self.most_alive, self.alive)
        if self.alive > self.workers and self._unfinished() > self.workers:
            self.referee.violated(f"{self.alive} jobs at an engine that takes {self.workers}")
        if self.rules.happens(self.rules.driver_dies_in_submit):
            self.world.faults["driver dies between submission and record"] += 1
            assert self.world.actor is not None
            self.world.actor.dead = True
            raise Killed
        if self.rules.happens(self.rules.answer_lost):
            self.world.faults["submitted, but the answer was lost"] += 1
            raise EngineError("the engine took the batch and did not answer")
        return [f"{batch.name}/{index}" for index in range(batch.size)]

    def find(self, batch: Batch) -> list[str] | None:
        """Returns a batch's handles, None where it never arrived."""
        self._call()
        handles = [f"{batch.name}/{index}" for index in range(batch.size)]
        return handles if handles[0] in self.jobs else None

    def status(self, handles: Sequence[str]) -> dict[str, State]:
        """Returns the states; UNKNOWN while the engine is away, and for one job in a thousand."""
        self.world.advance(0.2)
        if self.world.now < self.away_until:
            return dict.fromkeys(handles, State.UNKNOWN)
        return {
            handle: State.UNKNOWN if self.rules.happens(0.001) else self.jobs[handle].state
            for handle in handles
        }

    def queued(self, handles: Sequence[str]) -> dict[str, str]:
        """Gives no reasons."""
        return {}

    def close(self) -> None:
        """Nothing to let go of."""

    def _call(self) -> None:
        self.world.advance(0.2)
        if self.world.now < self.away_until:
            raise EngineError("the engine is away")

    def _unfinished(self) -> int:
        """Returns how many jobs have trials to do: the driver cannot know of others for sure."""
        return sum(
            job.state is not State.GONE
            and any(not self.referee.is_complete(t) for t in job.batch.jobs[job.index])
            for job in self.jobs.values()
        )

    # Its nodes.

    def _enqueue(self, job: Job) -> None:
        job.state = State.QUEUED
        self.world.at(self.rules.duration(self.rules.queue_s), lambda: self._ready(job))

    def _ready(self, job: Job) -> None:
        self.queue.append(job)
        self._dispatch()

    def _dispatch(self) -> None:
        for _ in range(len(self.queue) if self.idle else 0):
            node = self._free_node(self.queue[0].batch.avoid)
            if node is None:
                self.queue.rotate(-1)
                continue
            job = self.queue.popleft()
            job.state = State.RUNNING
            self._start(job, node)
            if self.rules.happens(self.rules.started_twice):
                self.world.faults["started twice"] += 1
                self.world.at(self.rules.duration(100), functools.partial(self._start_again, job))

    def _free_node(self, avoid: tuple[str, ...]) -> Host | None:
        for _ in range(min(len(self.idle), len(avoid) + 4)):
            place = self.rules.rng.randrange(len(self.idle))
            self.idle[place], self.idle[-1] = self.idle[-1], self.idle[place]
            node = self.idle[-1]
            if node.up and node.name not in avoid:
                self.idle.pop()
                return node
        return None

    def _start_again(self, job: Job) -> None:
        node = self._free_node(job.batch.avoid)
        if node is not None:
            self._start(job, node)

    def _start(self, job: Job, node: Host) -> None:
        ended = functools.partial(self._ended, job)
        process = Process(self.world, node, self.rules, self.referee, job.batch, job.index, ended)
        job.processes.append(process)
        self._meet_fate(job, process)
        self.world.at(0.0, process.go_on)

    def _meet_fate(self, job: Job, process: Process) -> None:
        """Draws what will happen to it, and when."""
        rules, life_s = self.rules, 30.0 + 3 * self.rules.eval_s
        for probability, name, fault in (
            (rules.killed, "killed", process.kill),
            (rules.preempted, "preempted", lambda: self._preempt(process)),
            (rules.asleep, "asleep past its lease", lambda: process.sleep_for(rules.nap())),
            (rules.forgotten, "reported gone while it runs", lambda: self._gone(job)),
        ):
            if rules.happens(probability):
                when = rules.rng.uniform(0, life_s)
                self.world.at(when, functools.partial(self._strike, process, name, fault))

    def _strike(self, process: Process, name: str, fault: Any) -> None:
        if not process.over:
            self.world.faults[name] += 1
            fault()

    def _preempt(self, process: Process) -> None:
        process.told_to_stop = True
        self.world.at(5 * self.rules.eval_s + _GRACE_S, process.kill)

    def _ended(self, job: Job, process: Process, code: int | None) -> None:
        job.processes.remove(process)
        if process.host.up:
            self.idle.append(process.host)
            if self.queue:
                self.world.at(1.0, self._dispatch)
        if job.state is State.GONE or job.processes:
            return
        if code == AGAIN and self.rules.happens(self.rules.requeued_by_engine):
            self.world.faults["requeued by the engine"] += 1
            self._enqueue(job)
        elif process.host.up:
            self._gone(job)
        else:
            self.world.at(_NOTICED_S, functools.partial(self._notice, job))

    def _notice(self, job: Job) -> None:
        """A lost node's job is seen to be gone, or is run again elsewhere."""
        if job.state is not State.GONE and not job.processes:
            if self.rules.happens(self.rules.requeued_by_engine):
                self._enqueue(job)
            else:
                self._gone(job)

    def _gone(self, job: Job) -> None:
        if job.state is not State.GONE:
            job.state = State.GONE
            self.alive -= 1

    def _each_hour(self) -> None:
        hour_s = 3600.0
        for node in self.nodes:
            if self.rules.happens(self.rules.node_lost_per_hour):
                when = self.rules.rng.uniform(0, hour_s)
                self.world.at(when, functools.partial(self._lose, node))
        if self.rules.happens(self.rules.engine_away_per_hour):
            self.world.at(self.rules.rng.uniform(0, hour_s), self._go_away)
        self.world.at(hour_s, self._each_hour)

    def _lose(self, node: Host) -> None:
        if not node.up:
            return
        self.world.faults["node lost"] += 1
        node.up = False
        for process in [p for p in self.world.processes.values() if p.host is node]:
            process.kill()
        self.idle = [other for other in self.idle if other is not node]
        self.world.at(_NODE_DOWN_S, functools.partial(self._restore, node))

    def _restore(self, node: Host) -> None:
        node.up, node.boot = True, node.boot + 1
        self.idle.append(node)

    def _go_away(self) -> None:
        self.world.faults["engine away"] += 1
        self.away_until = self.world.now + self.rules.duration(_AWAY_S)
