"""Training a pack: several trials of one program whose steps are computed as one.

Each trial keeps everything of its own on disk, in the format of an unpacked one, so that either
goes on with what the other left. A pack's training time is divided evenly among the members that
still train: a member's clock counts the seconds of the device that it took, and the clocks of all
add up to the wall time. Evaluations and checkpoints are made one member after another, each on its
own clock. `packed_with` in an evaluation is the number that time was divided by.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from sweeps.records import lease
from sweeps.study.trial import Trial
from sweeps.training import packed_step, train_step
from sweeps.training.packed_member import Member


class PackedTraining:
    """One attempt at each trial of a pack, from their last checkpoints to the end.

    records: trials that `packs.group` would put together; attempts: a claimed one for each.
    `report(name, event, **fields)` names the trial by its directory; `stop_requested()` is asked
    after every update. Members that resume from different steps run as several packs, one after
    another, and one that stands alone at its step runs unpacked.
    """

    def __init__(
        self,
        records: list[Trial],
        attempts: list[lease.Attempt],
        step_function: train_step.TrainStep,
        data_dir: str,
        report: Callable[..., None],
        stop_requested: Callable[[], bool],
    ) -> None:
        self._step_function, self._stop_requested = step_function, stop_requested
        self._members = [
            Member(record, attempt, step_function, data_dir, report, stop_requested)
            for record, attempt in zip(records, attempts, strict=True)
        ]

    def run(self) -> list[str | Exception]:
        """Trains and returns how each trial ended, in order: 'done', 'diverged', or an exception.

        Exceptions are those that `training.Training.run` raises. One member's does not disturb
        the others; one of what they share (compilation, data) is every active member's.
        """
        try:
            for member in self._members:
                member.begin()
            for step, members in self._by_step():
                self._run_together(step, members)
        finally:
            for member in self._members:
                member.close()
        return [member.outcome for member in self._members]

    def _by_step(self) -> list[tuple[int, list[Member]]]:
        """Returns members by the step they stand at."""
        found: dict[int, list[Member]] = {}
        for member in self._members:
            if member.state is not None and member.active:
                found.setdefault(int(member.state.step), []).append(member)
        return sorted(found.items())

    def _run_together(self, start: int, members: list[Member]) -> None:
        if self._stop_requested():
            for member in members:
                member.preempt(start)
        elif len(members) == 1 or start == members[0].trial.steps:
            for member in members:
                member.run_alone()
        else:
            try:
                Pack(members, self._step_function, start, self._stop_requested).train()
            except Exception as problem:
                for member in members:
                    member.outcome = problem if member.active else member.outcome


class Pack:
    """Members that stand at the same step."""

    def __init__(
        self,
        members: list[Member],
        step_function: train_step.TrainStep,
        start: int,
        stop_requested: Callable[[], bool],
    ) -> None:
        self._members, self._start, self._stop_requested = members, start, stop_requested
        self._trial = members[0].trial
        self._step = packed_step.of(step_function)
        self._pending: list[tuple[int, train_step.Measured]] = []
        self._mark = 0.0

    @property
    def _active(self) -> list[tuple[int, Member]]:
        return [(index, member) for index, member in enumerate(self._members) if member.active]

    def train(self) -> None:
        """Trains until every member has ended."""
        trial, members = self._trial, self._members
        state = self._step.pack([member.state for member in members])
        for member in members:
            member.state = None  # the pack's copy is the one that moves on
        scalars = self._step.scalars([member.trial for member in members])
        key = self._step.keys([member.trial.seed for member in members])
        batches = self._batches()
        batch = next(batches)
        update = self._step.compile(state, batch, scalars, key)
        for member in members:
            member.report("compiled", step=self._start)
        self._mark = time.perf_counter()
        for step in range(self._start, trial.steps):
            state, measured = update(state, batch, scalars, key)
            if step % trial.log_every == 0:
                self._pending.append((step, measured))
            done = step + 1
            if done < trial.steps:
                batch = next(batches)
            self._look_after(done, state)
            if not self._active:
                return
        for _, member in self._active:
            member.finish()

    def _batches(self) -> Iterator[Any]:
        """Yields each step's batch: members of one seed share it; otherwise one for each member.

        Each distinct seed has one input queue.
        """
        seeds = [member.trial.seed for member in self._members]
        first = {member.trial.seed: member for member in reversed(self._members)}
        queues = {seed: member.queue(self._start) for seed, member in first.items()}
        while True:
            found = {seed: next(queue) for seed, queue in queues.items()}
            if len(found) == 1:
                yield found[seeds[0]]
            else:
                yield self._step.stack([found[seed] for seed in seeds])

    def _look_after(self, done: int, state: train_step.State) -> None:
        """Evaluates, saves and stops after `done` updates where the trials say so."""
        trial, last = self._trial, done == self._trial.steps
        evaluates = done % trial.eval_every == 0 or last
        saves = done % trial.checkpoint_every == 0 or last
        stops = not last and self._stop_requested()
        if not (evaluates or saves or stops):
            return
        self._charge(state)
        for index, member in self._active:
            one = self._step.member(state, index)
            member.look_after(done, one, evaluates=evaluates, saves=saves, stops=stops)
        self._mark = time.perf_counter()

    def _charge(self, state: train_step.State) -> None:
        """Divides the time since the last mark, devices synchronised, among active members."""
        jax.block_until_ready(state)
        active = self._active
        seconds = (time.perf_counter() - self._mark) / len(active)
        rows = [(step, jax.device_get(measured)) for step, measured in self._pending]
        self._pending.clear()
        for index, member in active:
            member.sharers = len(active)
            member.charge(seconds, [(step, _of(row, index)) for step, row in rows])


def _of(measured: train_step.Measured, index: int) -> train_step.Measured:
    return train_step.Measured(measured.loss[index], measured.grad_norm[index])
