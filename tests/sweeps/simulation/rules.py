"""How often what goes wrong in a simulated cluster, and how long things take."""

import dataclasses
import random
import zlib

from sweeps.records import lease


@dataclasses.dataclass
class Rules:
    """Probabilities are per execution of a job unless said otherwise; times in seconds.

    Of a job: killed, told to stop, put to sleep between steps for longer than a lease, started
    twice, reported as gone while it runs. Of a step (there are about five in a trial): killed or
    put to sleep ahead of one of its file operations. Of a trial: poison.
    """

    rng: random.Random
    poison: float = 0.003
    max_attempts: int = 8
    eval_s: float = 150.0
    beat_s: float = lease.HEARTBEAT_EVERY_S
    queue_s: float = 60.0
    killed: float = 0.04
    preempted: float = 0.10
    requeued_by_engine: float = 0.5
    asleep: float = 0.02
    started_twice: float = 0.02
    forgotten: float = 0.01
    killed_in_step: float = 0.01
    stopped_in_step: float = 0.005
    # Of an hour: each node is lost, the engine does not answer for a while.
    node_lost_per_hour: float = 0.02
    engine_away_per_hour: float = 0.5
    # Of a submission: the driver dies, or is told of an error, after the engine took it.
    driver_dies_in_submit: float = 0.0
    answer_lost: float = 0.05
    # The driver's file operations: most take latency_s, one in fifty takes slow_s.
    latency_s: float = 0.005
    slow_s: float = 0.05

    def duration(self, mean_s: float) -> float:
        """Returns how long something takes this time: half to twice the mean."""
        return mean_s * self.rng.uniform(0.5, 1.5)

    def latency(self) -> float:
        """Returns how long a file operation of the driver takes."""
        return self.slow_s if self.rng.random() < 0.02 else self.latency_s

    def happens(self, probability: float) -> bool:
        """Draws."""
        return self.rng.random() < probability

    def nap(self) -> float:
        """Returns how long a process sleeps that shall lose its lease."""
        return lease.EXPIRES_AFTER_S + self.rng.uniform(10.0, 900.0)

    def is_poison(self, path: str) -> bool:
        """Returns whether the trial crashes every time."""
        return zlib.crc32(path.encode()) < self.poison * 2**32

    def fault_in_step(self) -> tuple[str, int, float] | None:
        """Returns (kill or stop, ahead of which file operation, seconds), mostly None."""
        draw = self.rng.random()
        if draw < self.killed_in_step:
            return "kill", self.rng.randrange(25), 0.0
        if draw < self.killed_in_step + self.stopped_in_step:
            return "stop", self.rng.randrange(25), self.nap()
        return None
