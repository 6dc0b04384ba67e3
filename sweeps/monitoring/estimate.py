"""How long a study will still take, from measured times per step."""

import statistics
from collections.abc import Sequence

from sweeps.records.study_reader import Row


def seconds_per_step(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the median of the measured times per step for every variant of `rows`.

    A variant that was not measured gets the median of all that were; {} where none was.
    """
    measured: dict[str, list[float]] = {}
    for row in rows:
        measured.setdefault(row.variant, []).extend(row.step_seconds)
    everything = [value for values in measured.values() for value in values]
    if not everything:
        return {}
    return {
        variant: statistics.median(values or everything) for variant, values in measured.items()
    }


def seconds_left(rows: Sequence[Row], rates: dict[str, float], at_once: int) -> float | None:
    """Returns how long a stage's `rows` still take with `at_once` trials at a time, seconds.

    The work left divided by the number of trials that share it, but no less than the trial that
    has most left needs. None where that is not known: no time measured, or nothing runs.
    """
    unfinished = sum(row.unfinished for row in rows)
    if not unfinished:
        return 0.0
    if not at_once or not rates:
        return None
    work = sum(row.steps_left * rates[row.variant] for row in rows)
    longest = max(row.longest * rates[row.variant] for row in rows)
    return max(work / min(at_once, unfinished), longest)
