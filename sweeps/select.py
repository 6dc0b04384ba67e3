"""Selection by validation: the rule by which a stage chooses its successor's point.

A trial's value is its best validation metric over its evaluations (first best on ties). A point's
value is the median of its trials' values over seeds; the best point wins, the lower index on ties.
Diverged trials and trials without a finite evaluation are never chosen.
"""

import csv
import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping

from sweeps import layout


def best_step(
    rows: Iterable[Mapping[str, str]], metric: str, mode: str
) -> tuple[int, float] | None:
    """Returns (global_step, value) of the best evaluation, or None where none is finite.

    rows: evaluations by column name, as text; mode 'max' or 'min'.
    """
    best: tuple[int, float] | None = None
    for row in rows:
        value = float(row.get(metric) or "nan")
        if not math.isfinite(value):
            continue
        if best is None or (value > best[1] if mode == "max" else value < best[1]):
            best = int(float(row["global_step"])), value
    return best


def trial_value(directory: pathlib.Path, metric: str, mode: str) -> float | None:
    """Returns a trial's best validation metric, or None where it is not done or not finite."""
    status = layout.read_json_if_there(directory / layout.STATUS) or {}
    if status.get("state") != "done":
        return None
    with (directory / layout.EVAL_MEASUREMENTS).open(newline="") as file:
        best = best_step(csv.DictReader(file), metric, mode)
    return None if best is None else best[1]


def best_point(values: Mapping[int, list[float]], mode: str) -> int:
    """Returns the point with the best median. Raises ValueError where no point has a value."""
    medians = {point: statistics.median(found) for point, found in values.items() if found}
    if not medians:
        raise ValueError(
            "no trial of the stage ended with a finite validation metric, so nothing can be "
            "selected; see `python -m sweeps status` for how they ended"
        )
    sign = -1 if mode == "max" else 1
    return min(medians, key=lambda point: (sign * medians[point], point))
