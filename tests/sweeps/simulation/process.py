"""A simulated process that runs trials: the real claim, status and measurements.

The order of its file operations is that of `sweeps.job` and `sweeps.training.loop`; the
numbers that it writes are made up, and its checkpoints are entries of a dictionary.
"""

from collections.abc import Callable, Generator, Iterator

from sweeps.launchers.protocol import AGAIN, FINISHED, WRONG_NODE
from sweeps.records import layout, lease, measurements, status, submissions
from sweeps.study import trial
from tests.sweeps.simulation.referee import Referee
from tests.sweeps.simulation.rules import Rules
from tests.sweeps.simulation.world import Actor, Apart, Host, Killed, World


class Process(Actor):
    """One execution of a job on a node. `ended(process, code)`: None for one that was killed."""

    trains = True

    def __init__(
        self,
        world: World,
        host: Host,
        rules: Rules,
        referee: Referee,
        batch: submissions.Batch,
        index: int,
        ended: Callable[["Process", int | None], None],
    ) -> None:
        super().__init__(world, host)
        self.rules, self.referee, self._ended = rules, referee, ended
        self.batch, self.index = batch, index
        self.root = batch.file.parents[1]
        self.told_to_stop = self.over = False
        self.asleep_until = 0.0
        self.code: int | None = None
        self._fault: tuple[str, int, float] | None = None
        self._apart: Apart | None = None
        self._steps = self._run()
        world.processes[self.pid] = self

    # As the world sees it.

    def go_on(self) -> None:
        """Takes the next step, which may be its last."""
        if self.dead:
            return
        if self.world.now < self.asleep_until:
            self.world.at(self.asleep_until - self.world.now, self.go_on)
            return
        self._fault, self.woke_in_step = self.rules.fault_in_step(), False
        if self._fault and self._fault[0] == "stop":
            self._apart = Apart(self, self._steps, self._stepped)
            self._apart.start()
        else:
            self._stepped(self.world.step(self, self._steps))

    def _stepped(self, wait_s: float | None) -> None:
        self._fault = None
        if self.dead or wait_s is None:
            self._leave(None if self.dead else self.code)
        else:
            self.world.at(wait_s, self.go_on)

    def kill(self) -> None:
        """SIGKILL, or its node is gone."""
        self._leave(None)

    def _leave(self, code: int | None) -> None:
        if not self.over:
            self.over, self.dead = True, True
            self.world.processes.pop(self.pid, None)
            self._ended(self, code)

    def sleep_for(self, seconds: float) -> None:
        """SIGSTOP between two of its steps, and SIGCONT later."""
        self.asleep_until = max(self.asleep_until, self.world.now + seconds)

    def before(self) -> None:
        """Dies or stops where it is meant to."""
        super().before()
        if self._fault is None:
            return
        fault, left, seconds = self._fault
        if left:
            self._fault = fault, left - 1, seconds
            return
        self._fault = None
        self.world.faults[f"{fault} within a step"] += 1
        if fault == "kill":
            self.dead = True
        else:
            assert self._apart is not None
            self.sleep_for(seconds)
            self._apart.stop(seconds)
            self.woke_in_step = True
        super().before()

    def beat(self) -> None:
        """The heartbeat's thread: renews the lease, again and again."""
        if self.over:
            return
        if self.world.now >= self.asleep_until and self.attempt is not None:
            self.world.actor = self
            try:
                self.attempt.beat()
                self.beaten_at = self.world.now
            except (lease.LostError, Killed):
                pass
        self.world.at(self.rules.beat_s * self.world.rng.uniform(0.8, 1.2), self.beat)

    # What it does: seconds that pass are yielded.

    def _run(self) -> Iterator[float]:
        """The job: `python -m sweeps job`."""
        yield self.rules.duration(5)
        if self.host.refuses:
            self.batch.refuse(self.index, "no data here")
            self.code = WRONG_NODE
            return
        self.beat()
        for path in self.batch.jobs[self.index]:
            outcome = yield from self._attempt(trial.read(self.root / path))
            if self.told_to_stop:
                self.code = AGAIN
                return
            if outcome == "failed":
                self.code = 1
                return
        self.batch.note_claim(self.index, submissions.CLAIMS_END)
        self.code = FINISHED

    def _attempt(self, task: trial.Trial) -> Generator[float, None, str]:
        """Claims and trains a trial; returns the outcome."""
        directory = self.root / task.path
        if status.read(directory)["state"] in ("done", "diverged"):
            return "already finished"
        began = self.world.now
        attempt = lease.claim(directory)
        if attempt is None:
            return "claimed elsewhere"
        if status.read(directory)["state"] in ("done", "diverged"):  # while it was stopped
            attempt.end("lost")
            return "already finished"
        self.attempt, self.beaten_at = attempt, began  # it may have been stopped in between
        try:
            self.batch.note_claim(self.index, task.path)
            return (yield from self._train(task, attempt))
        except lease.LostError:
            self.world.faults["fenced"] += 1
            self.attempt = None  # what it publishes is put together from all attempts
            measurements.publish(directory)
            attempt.end("lost")
            return "lost"
        finally:
            self.attempt = None

    def _train(self, task: trial.Trial, attempt: lease.Attempt) -> Generator[float, None, str]:
        yield self.rules.duration(20)
        start = self.referee.checkpoints.get(task.path, 0)
        layout.write_json(attempt.directory / measurements.RESUMED, {"global_step": start})
        status.say(attempt, "running", task.id, start, task.steps)
        for step in range(start + task.eval_every, task.steps + 1, task.eval_every):
            yield self.rules.duration(self.rules.eval_s)
            if self.rules.is_poison(task.path):
                return self._crash(task, attempt)
            if self.told_to_stop:
                return self._preempted(task, attempt, step - task.eval_every)
            self._evaluate(task, attempt, step)
        status.say(attempt, "done", task.id, task.steps, task.steps)
        self.referee.completed(attempt, self)
        attempt.end("done")
        return "done"

    def _evaluate(self, task: trial.Trial, attempt: lease.Attempt, step: int) -> None:
        attempt.check()
        writer = measurements.Writer(attempt.directory)
        try:
            metric = {"validation/accuracy": (task.point * 37 % 101) / 101}
            writer.append([{"kind": "eval", "global_step": step, **metric}])
            writer.sync()
        finally:
            writer.close()
        measurements.publish(attempt.trial_directory)
        step_s = self.rules.eval_s / task.eval_every
        status.say(attempt, "running", task.id, step, task.steps, step_seconds=step_s)
        attempt.check()
        self.referee.checkpoints[task.path] = step

    def _preempted(self, task: trial.Trial, attempt: lease.Attempt, step: int) -> str:
        status.say(attempt, "pending", task.id, step, task.steps, f"preempted at step {step}")
        attempt.end("preempted")
        return "preempted"

    def _crash(self, task: trial.Trial, attempt: lease.Attempt) -> str:
        if self.world.rng.random() < 0.5:
            self.dead = True  # the whole process: no outcome
            raise Killed
        status.say(attempt, "failed", task.id, 0, task.steps, "RuntimeError: poison")
        attempt.end("failed", error="RuntimeError: poison", retry=True)
        return "failed"
