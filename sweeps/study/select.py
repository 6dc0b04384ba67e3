"""Selection by validation: the rule by which a stage chooses its successor's point.

A trial's value is its best validation metric over its evaluations (first best on ties). A seed
that is lost (it diverged, failed or was given up, or none of its evaluations is finite) counts as
the worst value there is: the survivors of an unstable point would flatter it. A point's value is
the median of its trials' values over all its seeds, between the two in the middle where they are
even; so a point that lost half of its seeds or more is never chosen. The best point wins, the lower
index on ties. `analysis` chooses by the same functions, `best_index` and `best_of`.
"""

import csv
import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence

from sweeps.records import layout, measurements, status


def best_index(values: Sequence[float], mode: str) -> int | None:
    """Returns the index of the best of `values`, the first on ties, None where none is finite.

    mode: 'max' or 'min'.
    """
    finite = [index for index, value in enumerate(values) if math.isfinite(value)]
    best = max if mode == "max" else min
    return best(finite, key=values.__getitem__, default=None)


def best_step(
    rows: Iterable[Mapping[str, str]], metric: str, mode: str
) -> tuple[int, float] | None:
    """Returns (global_step, value) of the best evaluation, or None where none is finite.

    rows: evaluations by column name, as text; mode 'max' or 'min'.
    """
    every = list(rows)
    values = [float(row[metric] or "nan") for row in every]
    best = best_index(values, mode)
    return None if best is None else (int(float(every[best]["global_step"])), values[best])


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


def losses(values: Mapping[int, Sequence[float | None]], mode: str) -> dict[int, float]:
    """Returns the median of each point that has trials, turned so that less is better; inf for
    one that is never chosen. `values` as for `best_of`."""
    sign = -1 if mode == "max" else 1
    return {
        point: statistics.median(math.inf if value is None else sign * value for value in found)
        for point, found in values.items()
        if found
    }


def best_of(values: Mapping[int, Sequence[float | None]], mode: str) -> int | None:
    """Returns the point with the best median, None where every point has lost half of its seeds
    or more.

    values: of each point its trials' values, None for a lost seed.
    """
    finite = {point: loss for point, loss in losses(values, mode).items() if math.isfinite(loss)}
    return min(finite, key=lambda point: (finite[point], point), default=None)


def best_point(values: Mapping[int, Sequence[float | None]], mode: str) -> int:
    """Returns `best_of` for a stage that is over. Raises ValueError where there is none."""
    best = best_of(values, mode)
    if best is None:
        raise ValueError(
            "no point of the stage ended with a finite validation metric for more than half of its "
            "seeds, so nothing can be selected; see `python -m sweeps status` for how they ended"
        )
    return best
