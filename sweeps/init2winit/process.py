"""One attempt at a trial of init2winit's: its process, from its last checkpoint to its end.

Each attempt has a directory of init2winit's own, `attempts/<k>/init2winit`, into which the last
checkpoint of those before it is moved: a process that outlived its lease writes elsewhere. What it
measures becomes rows of ours as it comes.
"""

import contextlib
import csv
import math
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sweeps.launchers import remote
from sweeps.records import (
    attempts,
    init2winit_columns,
    layout,
    lease,
    measurements,
    provenance,
    status,
)
from sweeps.study.trial import Trial
from sweeps.training import loop
from workloads import catalog, init2winit_specs
from workloads.init2winit import installation, preflight

_FOLDER, _WORKER = "init2winit", "1"
# trainer_lib/base_trainer.py: CHECKPOINT_TTL; orbax calls a whole checkpoint by its step alone.
_CHECKPOINTS = "ttl=180d"
_POLL_S = 0.5
_STATUS_EVERY_S = 10.0
# `python -m workloads` ends so for input that is refused, with a message that begins so.
_REFUSED = 2
_MESSAGE = "python -m workloads: "
# Of its log, that are looked through for it.
_LINES = 40


class _Checkpoint(NamedTuple):
    """Where an attempt begins: after `step` updates, with what lies in `path`, None for nothing.

    unread: the rows up to that step that an earlier attempt's job did not live to read. note:
    where the evaluation of that step is lost: init2winit saves first, then it writes measurements.
    """

    step: int = 0
    path: pathlib.Path | None = None
    unread: Sequence[dict[str, Any]] = ()
    note: str | None = None


class Reader:
    """An attempt's measurements.csv, which init2winit writes anew with every row.

    before: the trial's last evaluation that counts, whose accumulated times go on; None at first.
    resumed: whether init2winit was restarted. Its `train_cost` is then, up to the next evaluation,
    a mean that includes costs from before its checkpoint. It is no loss, so it is left out.
    """

    def __init__(
        self,
        path: pathlib.Path,
        trial: Trial,
        before: Mapping[str, Any] | None = None,
        resumed: bool = False,
    ) -> None:
        self._path, self._read, self._carries = path, 0, resumed
        entry = catalog.get(trial.workload)
        self._per_second, self._units = f"{entry.unit}_per_second", trial.batch_size * entry.units
        self._times = {
            ours: (before or {}).get(ours, 0.0) for ours in init2winit_columns.TIMES.values()
        }

    def take(self) -> list[dict[str, Any]]:
        """Returns the rows that are new and whole: of training, and of evaluations after theirs."""
        try:
            text = self._path.read_text("utf-8")
        except FileNotFoundError:
            return []
        whole = list(csv.DictReader(text.splitlines())) if text.endswith("\n") else []
        # Shorter than before: it is being written.
        new, self._read = whole[self._read :], max(self._read, len(whole))
        return [row for cells in new for row in self._rows(cells)]

    def _rows(self, cells: Mapping[str, str]) -> list[dict[str, Any]]:
        values = {name: float(cell) for name, cell in cells.items() if cell}
        step = int(values["global_step"])
        rows: list[dict[str, Any]] = [{"kind": "train", "global_step": step - 1}]
        logged = {} if self._carries else init2winit_columns.LOGGED
        rows[0] |= {
            ours: values.get(theirs, math.nan)
            for theirs, ours in {**logged, "grad_norm": "grad_norm"}.items()
        }
        if rate := values.get("train_steps_per_sec"):
            rows[0] |= {"step_seconds": 1 / rate, self._per_second: rate * self._units}
        of_splits = {
            init2winit_columns.our_name(name): init2winit_columns.our_value(name, value)
            for name, value in values.items()
            if init2winit_columns.is_of_a_split(name)
        }
        if of_splits:
            self._carries = False
            for theirs, ours in init2winit_columns.TIMES.items():
                self._times[ours] += values.get(theirs, 0.0)
            trained = self._times["accumulated_submission_time"]
            rows.append({"kind": "eval", "global_step": step, **of_splits, "score": trained})
            rows[1] |= {**self._times, "accumulated_logging_time": 0.0}
        return rows


class Attempt:
    """A trial's attempt whose training is another process's.

    `stop_requested()`: as of `sweeps.training.loop.Training`.
    """

    def __init__(
        self,
        trial: Trial,
        attempt: lease.Attempt,
        data_dir: str,
        stop_requested: Callable[[], bool],
    ) -> None:
        self.trial, self.attempt, self.data_dir = trial, attempt, data_dir
        self.stop_requested = stop_requested
        self._directory = attempt.trial_directory
        self._folder = attempt.directory / _FOLDER
        self._last_evaluation = 0
        self._said_at = time.monotonic()

    def run(self) -> str:
        """Trains and returns 'done' or 'diverged'.

        Raises loop.Preempted when told to stop, lease.LostError where another job has taken
        over, ValueError for what init2winit or its checks refuse, RuntimeError where its process
        ended in any other way.
        """
        checkpoint = self._last_checkpoint()
        start = self._last_evaluation = checkpoint.step
        layout.write_json(self.attempt.directory / measurements.RESUMED, {"global_step": start})
        self._note_provenance()
        self._say("running", start, note=checkpoint.note)
        with contextlib.closing(measurements.Writer(self.attempt.directory)) as self._writer:
            self._writer.append(list(checkpoint.unread))
            self._writer.sync()
            (self._folder / _WORKER).mkdir(parents=True)
            if checkpoint.path is not None:  # last: a job that is killed here leaves it to the next
                os.rename(checkpoint.path, self._folder / _WORKER / _CHECKPOINTS)
            self._reader = self._reads(self._folder, start)
            # A session of its own: Ctrl-C is for the driver, which has this attempt stopped.
            with subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, start_new_session=True
            ) as process:
                try:
                    while process.poll() is None and not self.stop_requested():
                        self.attempt.check()
                        self._put(self._reader.take())
                        time.sleep(_POLL_S)
                finally:
                    process.kill()  # it knows no signal: what it has saved is as of an evaluation
            self._put(self._reader.take())
            self._writer.sync()
        self.attempt.check()
        measurements.publish(self._directory)
        return self._ended(process.returncode)

    def _reads(self, folder: pathlib.Path, start: int) -> Reader:
        """Returns the reader of what init2winit measures in an attempt's folder, from `start`."""
        path = folder / _WORKER / init2winit_columns.FILE
        curve = measurements.curve(self._directory)
        before = [row for row in curve if row["kind"] == "eval" and row["global_step"] <= start]
        return Reader(path, self.trial, before[-1] if before else None, resumed=start > 0)

    def _last_checkpoint(self) -> "_Checkpoint":
        """Returns the newest checkpoint of the attempts before this one."""
        for number in range(self.attempt.number - 1, 0, -1):
            attempt = self._directory / layout.ATTEMPTS / str(number)
            folder = attempt / _FOLDER / _WORKER / _CHECKPOINTS
            step = max(layout.numbered(folder), default=None)
            if step is None:
                continue
            began = layout.read_record(attempt / measurements.RESUMED).get("global_step", 0)
            known = {_place(row) for row in measurements.curve(self._directory)}
            unread = [
                row
                for row in self._reads(attempt / _FOLDER, began).take()
                if row["global_step"] < step + (row["kind"] == "eval") and _place(row) not in known
            ]
            note = None
            if ("eval", step) not in {*known, *map(_place, unread)}:
                note = (
                    f"init2winit was stopped before it had recorded its evaluation at step {step}"
                )
                if step == self.trial.steps:  # it would train nothing, and evaluate nothing
                    return _Checkpoint(note=f"{note}, the last one: trained anew")
            return _Checkpoint(step, folder, unread, note)
        return _Checkpoint()

    def _command(self) -> list[str]:
        trial = self.trial
        options = [f"--attention={trial.variant}", f"--data_dir={self.data_dir}"]
        if "tau" in trial.variant_hyperparameters:
            options.append(f"--tau={trial.variant_hyperparameters['tau']}")
        if trial.init2winit_dir:
            options.append(f"--init2winit_dir={trial.init2winit_dir}")
        settings = main_arguments(trial, str(self._folder.absolute()))
        module = [sys.executable, "-m", "sweeps.init2winit", str(os.getpid())]
        return [*module, *options, "--", *settings]

    def _put(self, new: list[dict[str, Any]]) -> None:
        """Adds rows to the attempt's measurements, and at evaluations to the CSVs."""
        self._writer.append(new)
        if any(row["kind"] == "eval" for row in new):
            measurements.publish(self._directory)
        for row in new:
            if row["kind"] == "eval":
                self._last_evaluation = row["global_step"]
                fields = status.of_evaluation(row, self.trial.targets["metric"])
                self._say("running", row["global_step"], **fields)
            elif "step_seconds" in row and time.monotonic() - self._said_at >= _STATUS_EVERY_S:
                figures = {name: value for name, value in row.items() if name != "kind"}
                self._say("running", row["global_step"] + 1, figures=figures)

    def _say(self, state: str, step: int, reason: str | None = None, **fields: Any) -> None:
        self._said_at = time.monotonic()
        status.say(self.attempt, state, self.trial.id, step, self.trial.steps, reason, **fields)

    def _ended(self, code: int) -> str:
        """Returns what the trial came to, by how its process ended."""
        trial, meta = self.trial, self._folder / _WORKER / init2winit_columns.META
        recorded = layout.read_record(meta).get("status")
        if code == 0 and recorded == "done":
            if self._last_evaluation < trial.steps:
                raise RuntimeError(
                    f"init2winit ended; its last evaluation is after {self._last_evaluation} "
                    f"of {trial.steps} updates"
                )
            self._say("done", trial.steps)
            return "done"
        if recorded == "diverged":
            after = f"after the evaluation at step {self._last_evaluation}"
            self._say("diverged", self._last_evaluation, f"init2winit calls it diverged, {after}")
            return "diverged"
        if self.stop_requested() and code < 0:
            saved = max(layout.numbered(self._folder / _WORKER / _CHECKPOINTS), default=0)
            reason = f"preempted; init2winit's last checkpoint is of step {saved}"
            self._say("pending", saved, reason)
            raise loop.Preempted
        last = _last_words(self._directory)
        if code == _REFUSED:
            raise ValueError(last)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise RuntimeError(f"init2winit's process ended with {how}: {last}")

    def _note_provenance(self) -> None:
        checkout = installation.find(self.trial.init2winit_dir)
        ours = provenance.of_another_process(self.trial.seed, self.data_dir)
        meta = {**checkout.record(), **ours}
        name = f"meta_data_{self.attempt.number - 1}.json"
        layout.write_json(self._directory / name, meta)


def _place(row: dict[str, Any]) -> tuple[str, int]:
    """Returns what tells a row of a trial from its others."""
    return row["kind"], row["global_step"]


def _last_words(trial_directory: pathlib.Path) -> str:
    """Returns what the command said last, in the attempt's log: its own message, or a last line."""
    lines = attempts.log_tail(trial_directory, _LINES)
    starts = [number for number, line in enumerate(lines) if line.startswith(_MESSAGE)]
    if starts:
        return " ".join(lines[starts[-1] :]).removeprefix(_MESSAGE)
    return remote.last_line("\n".join(lines))


def hparam_overrides(trial: Trial) -> dict[str, Any]:
    """Returns the hyperparameters that a trial's own init2winit is given.

    NAdamW and AdamW by its `kitchen_sink`: the direction, then decay of all parameters, then the
    rate, which it puts behind (optimizer_lib/kitchen_sink); gradients are clipped by their norm
    before that. Warmup of int(warmup_factor · steps) updates, then a cosine to 0, as AlgoPerf's
    (`sweeps.training.optimizers.learning_rate`). Dropout by the model's names.
    """
    point = trial.hyperparameters
    model = init2winit_specs.MODELS[init2winit_specs.short_name(trial.workload)]
    direction = {
        "b1": 1.0 - point["one_minus_beta1"],
        "b2": point["beta2"],
        "eps": point["epsilon"],
    }
    decay = {"weight_decay": point["weight_decay"]}
    chain: dict[str, Any] = {
        "0": {"element": init2winit_specs.OPTIMIZERS[trial.optimizer], "hps": direction},
        "1": {"element": "add_decayed_weights", "hps": decay},
    }
    # Among elements by their numbers alone it takes them for a chain; beside the limit of the
    # gradients' norm it has to be told so.
    optimizer: dict[str, Any] = chain
    if "grad_clip" in point:
        optimizer = {"join": chain, "grad_clip": point["grad_clip"]}
    return {
        **init2winit_specs.read_config(trial.init2winit_config).get(init2winit_specs.OVERRIDES, {}),
        # A point that names no rate has 0 (`sweeps.study.hyperparameters.DEFAULTS`).
        **dict.fromkeys(model.dropout, point["dropout_rate"]),
        "batch_size": trial.batch_size,
        "rng_seed": trial.seed,
        "label_smoothing": point["label_smoothing"],
        "optimizer": "kitchen_sink",
        "opt_hparams": optimizer,
        "lr_hparams": {
            "schedule": "cosine_warmup",
            "base_lr": point["learning_rate"],
            "warmup_steps": int(point["warmup_factor"] * trial.steps),
        },
    }


def main_arguments(trial: Trial, experiment_dir: str) -> tuple[str, ...]:
    """Returns the arguments of init2winit's main.py that train a trial in `experiment_dir`."""
    fields = init2winit_specs.read_config(trial.init2winit_config)
    return preflight.arguments(
        fields | {init2winit_specs.OVERRIDES: hparam_overrides(trial)},
        experiment_dir,
        model=init2winit_specs.short_name(trial.workload),
        num_train_steps=trial.steps,
        eval_frequency=trial.eval_every,
        log_frequency=trial.log_every,
    )
