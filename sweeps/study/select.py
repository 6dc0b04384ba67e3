"""Selection by validation: the rule by which a stage chooses its successor's point.

A trial's value is its best validation metric over its evaluations (first best on ties). A seed
that is lost (it diverged, failed or was given up, or none of its evaluations is finite) counts as
the worst value there is: the survivors of an unstable point would flatter it. A point's value is
the median of its trials' values over all its seeds, between the two in the middle where they are
even; so a point that lost half of its seeds or more is never chosen. The best point wins, the lower
index on ties. `analysis.reading.selection` follows the same rule.
"""

import csv
import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence

from sweeps.records import layout, measurements, status


def best_step(
    rows: Iterable[Mapping[str, str]], metric: str, mode: str
) -> tuple[int, float] | None:
    """Returns (global_step, value) of the best evaluation, or None where none is finite.

    rows: evaluations by column name, as text; mode 'max' or 'min'.
    """
    best: tuple[int, float] | None = None
    for row in rows:
        value = float(row[metric] or "nan")
        if not math.isfinite(value):
            continue
        if best is None or (value > best[1] if mode == "max" else value < best[1]):
            best = int(float(row["global_step"])), value
    return best


def trial_value(directory: pathlib.Path, metric: str, mode: str) -> float | None:
    """Returns a trial's best validation metric, None where it is lost: see the module.

    Raises ValueError where it is done and its evaluations cannot be read.
    """
    found = status.read(directory)
    if found["state"] != "done":
        return None
    path = directory / layout.EVAL_MEASUREMENTS
    if problem := measurements.lacking(path, found.get("steps", 0)):
        raise ValueError(f"{path} of a trial that is done: {_unreadable(problem)}")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        best = best_step(rows, metric, mode)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} of a trial that is done: {_unreadable(error)}") from error
    return None if best is None else best[1]


def _unreadable(problem: object) -> str:
    if isinstance(problem, Exception):
        problem = f"{type(problem).__name__}: {problem}"
    return (
        f"{problem}. Nothing can be selected without it: bring the file back, or remove the "
        "trial's directory and resume, which trains it anew"
    )


def best_point(values: Mapping[int, Sequence[float | None]], mode: str) -> int:
    """Returns the point with the best median.

    values: of each point its trials' values, None for a lost seed. Raises ValueError where every
    point has lost half of its seeds or more.
    """
    sign = -1 if mode == "max" else 1
    losses = {
        point: statistics.median(math.inf if value is None else sign * value for value in found)
        for point, found in values.items()
        if found
    }
    if not any(map(math.isfinite, losses.values())):
        raise ValueError(
            "no point of the stage ended with a finite validation metric for more than half of its "
            "seeds, so nothing can be selected; see `python -m sweeps status` for how they ended"
        )
    return min(losses, key=lambda point: (losses[point], point))
