"""Training one trial: the loop, its evaluations and checkpoints, and how it is stopped."""

import contextlib
import dataclasses
import enum
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from sweeps.distributed import process_group
from sweeps.records import answers, event_files, layout, lease, measurements, status
from sweeps.study import selection
from sweeps.study.trial import Trial
from sweeps.training import checkpoints, live, train_step
from workloads import catalog

# A status is a file of its own, written anew: between evaluations no more often than this.
_STATUS_EVERY_S = 10.0
# Updates between two agreements of several processes. One takes 4 ms and waits for the updates in
# flight; a signal leaves two minutes to stop by default, which is 12 s for each of ten updates.
AGREE_EVERY = 10


class Order(enum.IntEnum):
    """What follows an update. Of several processes' orders the largest counts."""

    GO_ON = 0
    SAVE = 1  # the last checkpoint is `checkpoint_minutes` old
    STOP = 2  # a signal came, or the study is cancelled
    LEAVE = 3  # process 0 has lost the trial, or cannot write its files


class Preempted(Exception):  # noqa: N818  (an order to stop, not an error)
    """The trial was told to stop and has saved itself."""


# All processes have left the trial at the same place, and can train another one.
AGREED = (Preempted, lease.LostError, process_group.PrimaryError)


@dataclasses.dataclass
class TrainingTimes:
    """Accumulated seconds, as AlgoPerf's columns call them; they survive a preemption."""

    accumulated_submission_time: float = 0.0
    accumulated_eval_time: float = 0.0
    accumulated_logging_time: float = 0.0

    def columns(self) -> dict[str, float]:
        """Returns the time columns of an evaluation; `score` is the training time."""
        times = dataclasses.asdict(self)
        return {
            "score": self.accumulated_submission_time,
            "total_duration": sum(times.values()),
            **times,
        }


class Trace:
    """Traces updates `first` to `last` − 1 of an attempt: those between the devices' being idle.

    `config.profile=100:110`, by jax.profiler. In <trial>/profile/plugins/profile/<time> lie
    `perfetto_trace.json.gz`, which ui.perfetto.dev opens, and what TensorBoard's and XProf's
    profile views read. Of several processes the primary one's.
    """

    def __init__(self, profile: str, directory: pathlib.Path) -> None:
        """profile: '<first>:<last>', or '' for none."""
        first, _, last = (profile or "0:0").partition(":")
        self.updates, self._directory = range(int(first), int(last)), directory
        self._under_way = contextlib.ExitStack()

    def start(self) -> None:
        """Begins the trace."""
        self._under_way.enter_context(
            jax.profiler.trace(self._directory, create_perfetto_trace=True)
        )

    def close(self) -> None:
        """Ends a trace that is under way, and writes its files."""
        self._under_way.close()


class Training:
    """One attempt at a trial, from its last checkpoint to the end of its budget.

    `stop_requested()` is asked after every update. Compilation is not in the training time: it is
    paid once for many trials. Where several processes train, `processes` is their group: all run
    this, and process 0 alone writes files.
    """

    def __init__(
        self,
        trial: Trial,
        attempt: lease.Attempt,
        step_function: train_step.TrainStep,
        data_dir: str,
        stop_requested: Callable[[], bool],
        processes: process_group.ProcessGroup = process_group.SINGLE,
    ) -> None:
        self.trial, self.attempt, self.data_dir = trial, attempt, data_dir
        self.step_function, self.workload = step_function, step_function.workload
        self.stop_requested = stop_requested
        self.processes = processes
        self.directory = attempt.trial_directory
        self.times = TrainingTimes()
        # Bytes of each attempt's measurements that the curve up to here consists of.
        self._measured: dict[str, int] = {}
        self._saved = -1
        self._status_at = self._saved_at = time.monotonic()
        self._problem: Exception | None = None
        self._opened = contextlib.ExitStack()
        self._recorder: Any = None
        self._events: event_files.EventFile | None = None

    def run(self) -> str:
        """Trains and returns 'done' or 'diverged'.

        Raises Preempted after saving when told to stop, lease.LostError where another worker has
        taken over, ValueError for a checkpoint of another model. Of several processes all raise
        Preempted; where process 0 raises the error of its own part, the others raise PrimaryError.
        """
        with self._opened as opened:
            # Evaluations and diagnostics are traced within it, too; other trials are not.
            opened.enter_context(train_step.precise(self.trial.matmul_precision))
            store = checkpoints.Checkpoints(self.directory / layout.CHECKPOINTS, self.trial)
            opened.callback(store.close)
            self._trace = Trace(self.trial.profile, self.directory / layout.PROFILE)
            opened.callback(self._trace.close)
            return self._train(self._first_or_restored(store), store)

    def _write(self, work: Callable[[], None]) -> None:
        """Has process 0 do what it alone does.

        What that raises is raised at the next agreement: the others come there, too.
        """
        if not self.processes.is_primary or self._problem is not None:
            return
        try:
            work()
        except Exception as problem:
            self._problem = problem

    def _agree(self, order: Order = Order.GO_ON) -> Order:
        """Returns the order that counts for all processes; raises where it is to leave."""
        order = Order(self.processes.agree(Order.LEAVE if self._problem else order))
        if order is Order.LEAVE:
            raise self._problem or process_group.PrimaryError("process 0 leaves the trial")
        return order

    def _first_or_restored(self, store: checkpoints.Checkpoints) -> train_step.TrainState:
        state = self.step_function.first_state(self.trial.seed)
        checkpoint, start = store.restore(state), 0
        if checkpoint is not None:
            start, state, record = checkpoint
            self.times = TrainingTimes(**record["clock"])
            self._measured = record["measurements"]
        elif self.trial.start:
            params, model_state = checkpoints.start(self.trial, state.params, state.model_state)
            state = state._replace(params=params, model_state=model_state)
        self._write(lambda: self._begin(start, store.damages))
        self._agree()
        return state

    def _begin(self, start: int, damages: list[str]) -> None:
        self._writer = measurements.Writer(self.attempt.directory)
        self._opened.callback(self._writer.close)
        layout.write_json(self.attempt.directory / measurements.RESUMED, {"global_step": start})
        if self.trial.tensorboard:
            self._events = event_files.EventFile(self.attempt, start)
            self._opened.callback(self._events.close)
        note = "; ".join([*damages, f"goes on from step {start}"]) if damages else None
        if note:
            print(note, flush=True)
        self._say("running", start, note=note)

    def _say(self, state: str, step: int, reason: str | None = None, **fields: Any) -> None:
        status.say(self.attempt, state, self.trial.id, step, self.trial.steps, reason, **fields)

    def _train(self, state: train_step.TrainState, store: checkpoints.Checkpoints) -> str:
        trial, start = self.trial, int(state.step)
        scalars = train_step.scalars_of(trial)
        key = train_step.seed_key(trial.seed, train_step.DROPOUT)
        if start < trial.steps:
            queue = self._queue(start)
            batch = next(queue)
            update = self.step_function.compile(state, batch, scalars, key)
            if trial.diagnostics:
                from sweeps.training import diagnostics

                self._recorder = diagnostics.Recorder(trial, self.step_function, state, self._queue)
        self._logged = live.LoggedMetrics(trial, start, self.times.accumulated_submission_time)
        self._evaluated = start >= trial.eval_every
        mark = time.perf_counter()
        if start == 0:
            mark = self._diagnose(0, state, mark)
        if start in self._trace.updates:  # an attempt that resumes amid them traces the rest
            mark = self._profile(self._trace.start, state, mark)
        for step in range(start, trial.steps):
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                state, measured = update(state, batch, scalars, key)
            done = step + 1
            if done < trial.steps:
                batch = next(queue)
            # Of an earlier update: the devices are at work on this one meanwhile.
            self._show(mark)
            self._logged.note(step, measured)
            if done == self._trace.updates.stop:
                mark = self._profile(self._trace.close, state, mark)
            mark = self._diagnose(done, state, mark)
            diverged = self._logged.nonfinite_at >= 0
            if diverged or trial.evaluates_at(done):
                mark = self._evaluate(done, state, mark)
                nonfinite_at = int(state.nonfinite_at)
                if nonfinite_at >= 0:
                    self._conclude(
                        "diverged",
                        nonfinite_at,
                        f"the loss of update {nonfinite_at} was not finite",
                    )
                    return "diverged"
            order = self._order()
            if self.processes.count > 1 and done % AGREE_EVERY:
                order = Order.GO_ON
            else:
                order = self._agree(order)
            is_last = done == trial.steps
            if order >= Order.SAVE or is_last or done % trial.checkpoint_every == 0:
                mark = self._save(done, state, store, mark)
            if order is Order.STOP and not is_last:
                store.wait()
                self._conclude("pending", done, f"preempted at step {done}")
                raise Preempted
            if done == self._trace.updates.start:
                mark = self._profile(self._trace.start, state, mark)
        store.wait()
        self._conclude("done", trial.steps)
        return "done"

    def _conclude(self, state: str, step: int, reason: str | None = None) -> None:
        """Writes the CSVs, and how the attempt ended."""

        def write() -> None:
            self.attempt.check()
            measurements.publish(self.directory)
            self._say(state, step, reason)

        self._write(write)
        self._agree()

    def _order(self) -> Order:
        if self.stop_requested():
            return Order.STOP
        minutes = self.trial.checkpoint_minutes
        is_old = minutes and time.monotonic() - self._saved_at >= 60 * minutes
        return Order.SAVE if is_old else Order.GO_ON

    def _queue(self, start: int) -> Iterator[Any]:
        return self.workload._build_input_queue(
            self.trial.seed,
            "train",
            self.data_dir,
            self.trial.batch_size,
            start_step=start,
        )

    def _diagnose(self, step: int, state: train_step.TrainState, mark: float) -> float:
        """Records diagnostics where they are due; their time is logging's. Returns now."""
        if self._recorder is None or not self._recorder.is_due(step):
            return mark
        started = self._train_time(state, mark)
        row = self._recorder.row(step, state)
        self._write(lambda: self._put_rows([row]))
        return self._log_time(started)

    def _profile(
        self, turn: Callable[[], None], state: train_step.TrainState, mark: float
    ) -> float:
        """Begins or ends the trace while the devices are idle; its time is logging's."""
        started = self._train_time(state, mark)
        self._write(turn)
        return self._log_time(started)

    def _train_time(self, state: Any, mark: float) -> float:
        """Adds the time since `mark` to the training time, devices synchronised; returns now."""
        jax.block_until_ready(state)
        now = time.perf_counter()
        self.times.accumulated_submission_time += now - mark
        return now

    def _log_time(self, since: float) -> float:
        """Adds the time since then to the logging time; returns now."""
        now = time.perf_counter()
        self.times.accumulated_logging_time += now - since
        return now

    def _show(self, mark: float) -> None:
        """Writes down the logged figures that are on their way; `mark` as for `_train_time`."""
        rows = self._take(mark)
        if rows:
            self._write(lambda: self._put_figures(rows))

    def _take(self, mark: float) -> list[dict[str, Any]]:
        so_far = self.times.accumulated_submission_time
        return self._logged.take(lambda: so_far + time.perf_counter() - mark)

    def _put_figures(self, rows: list[dict[str, Any]]) -> None:
        self._put_rows(rows)
        figures = {name: value for name, value in rows[-1].items() if name != "kind"}
        now = time.monotonic()
        if now - self._status_at >= _STATUS_EVERY_S:
            self._status_at = now
            done = figures.pop("global_step") + 1
            # Until an evaluation has been timed, too.
            known = {} if self._evaluated else {"step_seconds": figures["step_seconds"]}
            self._say("running", done, figures=figures, **known)

    def _put_rows(self, rows: list[dict[str, Any]]) -> None:
        """Adds rows to the attempt's files, unless another job has taken the trial over."""
        self.attempt.check()
        self._writer.append(rows)
        if self._events is not None:
            self._events.append(rows)

    def _evaluate(self, step: int, state: train_step.TrainState, mark: float) -> float:
        started = self._train_time(state, mark)
        rows = self._take(started)
        metrics = self.workload.eval_model(
            self.workload.eval_batch_size,
            state.params,
            state.model_state,
            train_step.seed_key(self.trial.seed, train_step.INIT),
            self.data_dir,
            None,
            step,
        )
        ended = time.perf_counter()
        self.times.accumulated_eval_time += ended - started
        rows += [{"kind": "eval", "global_step": step, **metrics, **self.times.columns()}]
        self._write(lambda: self._log(rows))
        return self._log_time(ended)

    def _log(self, rows: list[dict[str, Any]]) -> None:
        self._put_rows(rows)
        evaluations = measurements.publish(self.directory)
        self._evaluated, self._status_at = True, time.monotonic()
        row, column = rows[-1], f"validation/{self.trial.targets['metric']}"
        values = [float(evaluation[column]) for evaluation in evaluations]
        chosen = selection.best_index(values, catalog.get(self.trial.workload).mode)
        kept = self.workload.answers
        if kept is not None and chosen == len(values) - 1:
            record = answers.ItemRecord(row["global_step"], *kept)
            answers.write(self.directory, {(self.trial.variant, self.trial.seed): record})
        # Seconds a step with its share of evaluations: what `status` reckons with.
        step_seconds = row["total_duration"] / row["global_step"]
        evaluation = {column: row[column]}
        self._say("running", row["global_step"], step_seconds=step_seconds, evaluation=evaluation)

    def _save(
        self, step: int, state: train_step.TrainState, store: checkpoints.Checkpoints, mark: float
    ) -> float:
        if step == self._saved:
            return mark
        self._saved = step
        started = self._train_time(state, mark)
        # Rows first: a checkpoint promises that everything before it is on disk.
        rows = self._take(started)
        self._write(lambda: self._put_down(rows))
        self._agree()
        store.save(step, state, self._measured, dataclasses.asdict(self.times))
        self._saved_at = time.monotonic()
        return self._log_time(started)

    def _put_down(self, rows: list[dict[str, Any]]) -> None:
        """Brings the attempt's measurements to disk, and counts their bytes."""
        self._put_rows(rows)
        self._measured[str(self.attempt.number)] = self._writer.sync()
        self.attempt.check()  # again: a busy disk may take longer than a lease
