"""Live figures: a trial's losses and its speed, while it trains, without waiting for the devices.

The loss of every `log_every`-th update is copied to the host while later updates are under way, and
read once the next one has been dispatched: the devices have work all the time.

A row: {"kind": "train", "global_step", "loss", "grad_norm", "step_seconds", "<unit>_per_second",
"model_flop_utilisation"}. step_seconds: training time per update since the row before (or since the
attempt began), evaluations, checkpoints and diagnostics not in it. <unit>: tokens, images or
examples, of all devices. model_flop_utilisation: the model's FLOP (`WorkloadSpec.flops`) over those
that all devices could do in bfloat16, None where the device is not in `accelerators.KINDS` (no
CPU is) or the workload has no formula.
"""

from collections.abc import Callable
from typing import Any

import jax

from attention.common import accelerators
from sweeps.study.trial import Trial
from sweeps.training.train_step import StepMetrics
from workloads import catalog


class LoggedMetrics:
    """The figures of an attempt's logged updates, on their way from the devices to rows.

    When it is made `done` updates are done, in `seconds` of training. `nonfinite_at` is the first
    update whose loss was not finite, as far as rows were taken, or -1.
    """

    def __init__(self, trial: Trial, done: int, seconds: float) -> None:
        self._every = trial.log_every
        entry, devices = catalog.get(trial.workload), jax.devices()
        self._column = f"{entry.unit}_per_second"
        self._units = trial.batch_size * entry.units
        kind = accelerators.of_device(devices[0].device_kind)
        self._least = None  # seconds of an update at the devices' peak
        if kind is not None and entry.flops is not None:
            peak = accelerators.KINDS[kind].peak_tflops * 1e12
            self._least = trial.batch_size * entry.flops / (peak * len(devices))
        self._done, self._seconds = done, seconds
        self._coming: tuple[int, StepMetrics] | None = None
        self.nonfinite_at = -1

    def note(self, step: int, measured: StepMetrics) -> None:
        """Begins to copy an update's figures where it is one to be logged; returns at once."""
        if step % self._every == 0:
            for array in measured:
                array.copy_to_host_async()
            self._coming = step, measured

    def take(self, seconds: Callable[[], float]) -> list[dict[str, Any]]:
        """Returns the row that is on its way, once it is there; [] where none is.

        `seconds()`: of training until now.
        """
        if self._coming is None:
            return []
        (step, measured), self._coming = self._coming, None
        loss, grad_norm, nonfinite_at = jax.device_get(tuple(measured))
        self.nonfinite_at = int(nonfinite_at)
        now, done = seconds(), step + 1
        step_seconds = (now - self._seconds) / (done - self._done)
        self._seconds, self._done = now, done
        row = {"kind": "train", "global_step": step, "loss": float(loss)}
        return [row | {"grad_norm": float(grad_norm), **self.columns(step_seconds)}]

    def columns(self, seconds: float) -> dict[str, float | None]:
        """Returns the columns of a row whose updates took `seconds` each, above 0."""
        return {
            "step_seconds": seconds,
            self._column: self._units / seconds,
            "model_flop_utilisation": None if self._least is None else self._least / seconds,
        }
