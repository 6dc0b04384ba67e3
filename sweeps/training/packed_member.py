"""One trial of a pack: its own files, clock and end; only the step is computed with others."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from sweeps.records import layout, lease, measurements
from sweeps.study.trial import Trial
from sweeps.training import checkpoints, loop, train_step


class Member(loop.Training):
    """A trial whose train steps are computed by its pack.

    `outcome` is None while it trains, then 'done', 'diverged', or the exception that ended it.
    Whatever goes wrong in a method marked "alone" ends this member and no other. `sharers`: trials
    over which the pack's time is divided.
    """

    def __init__(
        self,
        trial: Trial,
        attempt: lease.Attempt,
        step_function: train_step.TrainStep,
        data_dir: str,
        report: Callable[..., None],
        stop_requested: Callable[[], bool],
    ) -> None:
        name = str(attempt.trial_directory)
        told = functools.partial(report, name)
        super().__init__(trial, attempt, step_function, data_dir, told, stop_requested)
        self.outcome: Any = None
        self.state: Any = None
        self.sharers = 1
        self._opened = contextlib.ExitStack()

    @property
    def active(self) -> bool:
        """Whether it still trains: a member that does not is carried along as ballast."""
        return self.outcome is None

    def begin(self) -> None:
        """Opens its files and sets `state`, the first or the last saved one. Alone."""
        with self._alone():
            folder = self.directory / layout.CHECKPOINTS
            self._store = checkpoints.Checkpoints(folder, self.trial)
            self._opened.callback(self._store.close)
            self._writer = measurements.Writer(self.attempt.directory)
            self._opened.callback(self._writer.close)
            self.state = self._first_or_restored(self._store)

    def run_alone(self) -> None:
        """Trains unpacked from `state` to its end. Alone."""
        with self._alone():
            self.outcome = self._train(self.state, self._store)

    def queue(self, start: int) -> Iterator[Any]:
        """Returns the seed's training batches from step `start` on."""
        return self._queue(start)

    def charge(self, seconds: float, measured: list[tuple[int, Any]]) -> None:
        """Takes its share of the pack's training time and its (step, Measured of floats)."""
        self.clock.accumulated_submission_time += seconds
        self._pending += measured

    def look_after(
        self, step: int, state: train_step.State, *, evaluates: bool, saves: bool, stops: bool
    ) -> None:
        """Does with its state after `step` updates what an unpacked trial does then. Alone.

        It ends here where an evaluated trial's loss was not finite, or where it stops.
        """
        with self._alone():
            if evaluates:
                self._evaluate(step, state, time.perf_counter())
                nonfinite_at = int(state.nonfinite_at)
                if nonfinite_at >= 0:
                    self.outcome = self._diverged(nonfinite_at)
                    return
            if saves or stops:
                self._save(step, state, self._store, time.perf_counter())
            if stops:
                self._stop(step)

    def preempt(self, step: int) -> None:
        """Ends as a trial that was told to stop before its first update. Alone."""
        with self._alone():
            self._stop(step)

    def _stop(self, step: int) -> None:
        self._store.wait()
        self._say("pending", step, f"preempted at step {step}")
        raise loop.Preempted

    def finish(self) -> None:
        """Waits for what was saved and ends as done. Alone."""
        with self._alone():
            self._store.wait()
            self._say("done", self.trial.steps)
            self.outcome = "done"

    def close(self) -> None:
        """Closes its files; a checkpoint that failed meanwhile is found here."""
        try:
            self._opened.close()
        except Exception as problem:
            if not isinstance(self.outcome, Exception):
                self.outcome = problem

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps an exception to this member."""
        try:
            yield
        except Exception as problem:  # a full disk, a lost lease: the others go on
            self.outcome = problem

    def _log(self, row: dict[str, Any]) -> None:
        super()._log({**row, "packed_with": self.sharers})
