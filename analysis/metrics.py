"""Metrics by name: which column holds one, whether lower is better, how a table shows it."""

from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from analysis.measurements import Columns
from sweeps import layout

# AlgoPerf's metrics of which more is better; of every other metric (wer, loss, ...) less is.
HIGHER_IS_BETTER = ("accuracy", "bleu", "mean_average_precision", "ssim")

Values = TypeVar("Values", float, np.ndarray)


class MissingMetricError(ValueError):
    """No evaluation has the metric's column; the message lists the columns there are."""


@dataclass(frozen=True)
class Metric:
    """A number that a table shows: column `<split>/<source>`, or 1 minus it for `error`."""

    name: str
    source: str

    @property
    def is_complement(self) -> bool:
        """Returns whether the number shown is 1 - column."""
        return self.name != self.source

    @property
    def lower_is_better(self) -> bool:
        """Returns which way is better for the number that is shown."""
        return self.name not in HIGHER_IS_BETTER

    @property
    def mode(self) -> Literal["min", "max"]:
        """Returns which way is better for the column: `sweeps` states it the same way."""
        return "max" if self.source in HIGHER_IS_BETTER else "min"

    @property
    def definition(self) -> str:
        """Returns what the number is, in words, for the foot of a table."""
        return "error = 1 - accuracy, as a fraction" if self.is_complement else self.name

    def column(self, split: str) -> str:
        """Returns the column's name, e.g. `validation/accuracy`. `split` is train, validation
        or test."""
        return f"{split}/{self.source}"

    def shown(self, values: Values) -> Values:
        """Returns the number to show for a column's value, or the array of them for an array."""
        return 1 - values if self.is_complement else values

    def read(self, columns: Columns, split: str, where: str) -> np.ndarray:
        """Returns the column itself, float64 [rows], of the file that `where` names.

        Raises MissingMetricError where the file has no such column.
        """
        if self.column(split) not in columns:
            raise MissingMetricError(self._missing(columns, split, where))
        return columns[self.column(split)]

    def _missing(self, columns: Columns, split: str, where: str) -> str:
        present = sorted(
            {name for name in columns if name.split("/")[0] in layout.SPLITS and "/" in name}
        )
        return f"{where}: no column {self.column(split)}; it has {', '.join(present) or 'none'}"


def get(name: str) -> Metric:
    """Returns the metric called `name`: `error` (1 - accuracy), or a column's name with or
    without its split (`validation/wer`, `wer`, `loss`, `accuracy`)."""
    source = name.rsplit("/", 1)[-1]
    return Metric("error", "accuracy") if source == "error" else Metric(source, source)


def shown_for(target: str) -> Metric:
    """Returns what a table shows where the workload's target is set in `target`: the paper's
    tables give errors, so accuracy is shown as error."""
    return get("error") if get(target).source == "accuracy" else get(target)
