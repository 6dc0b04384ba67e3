"""Jobs that learn nothing: for tests of what goes on around a trial, not in it.

Python runs this where it starts, in every process that has this folder on its path. There a job is
the real one, with real leases, heartbeats, statuses, outcomes, measurements and CSV files; JAX
is not loaded, and an update takes $STUB_UPDATE_S (5 ms; empty: jobs train for real) and counts.
A real job starts in 8 CPU-seconds, this one in half a second.
"""

import json
import os
import sys
import time
import types

UPDATE_S = os.environ.get("STUB_UPDATE_S", "0.005")
CHECKPOINT = "stub_checkpoint.json"


class Preempted(Exception):  # noqa: N818  (as in sweeps.training.loop)
    """The trial was told to stop and has saved itself."""


class Training:
    """What `sweeps.training.loop.Training` is to a job."""

    def __init__(self, trial, attempt, step_function, data_dir, stop_requested, processes):
        del step_function, data_dir
        assert processes.count == 1, "a group trains for real"
        self.trial, self.attempt = trial, attempt
        self.stop_requested = stop_requested

    def run(self):
        """Counts from the last checkpoint to the last step; returns 'done', raises Preempted."""
        directory, trial = self.attempt.trial_directory, self.trial
        saved = directory / CHECKPOINT
        start = json.loads(saved.read_text()) if saved.exists() else 0
        layout.write_json(self.attempt.directory / measurements.RESUMED, {"global_step": start})
        writer = measurements.Writer(self.attempt.directory)
        self._say("running", start)
        for step in range(start, trial.steps):
            time.sleep(float(UPDATE_S))
            self.attempt.check()
            writer.append(
                [{"kind": "train", "global_step": step, "loss": 1 / (1 + step), "grad_norm": 1.0}]
            )
            done, last = step + 1, step + 1 == trial.steps
            if last or done % trial.eval_every == 0:
                row = {"global_step": done, **METRICS}
                writer.append([{"kind": "eval", **row}])
                measurements.publish(directory)
                self._say("running", done)
            told = self.stop_requested() and not last
            if told or last or done % trial.checkpoint_every == 0:
                layout.write_atomically(saved, json.dumps(done))
            if told:
                self._say("pending", done, f"preempted at step {done}")
                raise Preempted
        self._say("done", trial.steps)
        return "done"

    def _say(self, state, step, reason=None):
        status.say(self.attempt, state, self.trial.id, step, self.trial.steps, reason)


METRICS = {f"{s}/{m}": 0.5 for s in ("train", "validation", "test") for m in ("accuracy", "loss")}
METRICS |= {"accumulated_submission_time": 1.0, "total_duration": 1.0, "score": 1.0}


if sys.orig_argv[1:4] == ["-m", "sweeps", "job"] and UPDATE_S:
    from sweeps.job import job, trainer
    from sweeps.records import layout, measurements, status

    training = types.ModuleType("sweeps.training.loop")
    training.Training, training.Preempted = Training, Preempted
    checkpoints = types.ModuleType("sweeps.training.checkpoints")
    checkpoints.keep_the_last = lambda trial, directory: None
    sys.modules |= {"sweeps.training.loop": training}
    sys.modules |= {"sweeps.training.checkpoints": checkpoints}
    job.set_up_jax = lambda platform: None
    trainer._note_provenance = lambda *arguments: None
    trainer.Trainer._program = lambda *arguments: None
