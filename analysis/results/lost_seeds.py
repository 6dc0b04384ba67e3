"""Seeds without a number: which they are. What they do to verdicts is in `withheld.py`."""

import collections
from collections.abc import Iterable, Sequence, Set

from analysis.files.records import Run
from sweeps.records import layout

NON_FINITE = "non-finite"


def first_of_each(runs: Iterable[Run]) -> list[Run]:
    """Returns the first run of each seed; the reader names the others as duplicated."""
    first: dict[int, Run] = {}
    for run in runs:
        first.setdefault(run.seed, run)
    return list(first.values())


def is_finished(run: Run) -> bool:
    """Returns whether a run's numbers count: it is done, and its file goes on to the end."""
    return run.state == "done" and not run.ends_early


def counted(runs: Sequence[Run], usable: Set[Run], column: str) -> dict[str, int]:
    """Returns how many of `runs` are lost, by why: `diverged` and `failed` are what trials say;
    `non-finite` are those that are finished, not `usable`, and have the `column` that chooses."""
    reasons = [_reason(run, column) for run in runs if run not in usable]
    return dict(sorted(collections.Counter(filter(None, reasons)).items()))


def _reason(run: Run, column: str) -> str | None:
    if run.state in layout.LOST:
        return run.state
    return NON_FINITE if is_finished(run) and column in run.evals else None


def without_number(runs: Iterable[Run]) -> list[Run]:
    """Returns the runs that do not say that they are done: what there is to count of a variant
    without a chosen point."""
    return [run for run in runs if run.state != "done"]
