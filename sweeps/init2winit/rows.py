"""init2winit's measurements.csv as rows of ours, as they come (`sweeps.records.measurements`)."""

import csv
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from sweeps.records import init2winit_columns as columns
from sweeps.study.trial import Trial
from workloads import catalog


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
        self._times = {ours: (before or {}).get(ours, 0.0) for ours in columns.TIMES.values()}

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
        logged = {} if self._carries else columns.LOGGED
        rows[0] |= {
            ours: values.get(theirs, math.nan)
            for theirs, ours in {**logged, "grad_norm": "grad_norm"}.items()
        }
        if rate := values.get("train_steps_per_sec"):
            rows[0] |= {"step_seconds": 1 / rate, self._per_second: rate * self._units}
        of_splits = {
            columns.our_name(name): columns.our_value(name, value)
            for name, value in values.items()
            if columns.is_of_a_split(name)
        }
        if of_splits:
            self._carries = False
            for theirs, ours in columns.TIMES.items():
                self._times[ours] += values.get(theirs, 0.0)
            trained = self._times["accumulated_submission_time"]
            rows.append({"kind": "eval", "global_step": step, **of_splits, "score": trained})
            rows[1] |= {**self._times, "accumulated_logging_time": 0.0}
        return rows
