"""Columns of a trial's metric that were lost: other trials have them, or, in our studies, none."""

import collections
from collections.abc import Sequence
from dataclasses import replace

from analysis.files import evaluations
from analysis.files.records import Run
from sweeps.records import layout

Columns = dict[tuple[str, str], set[str]]


def named(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Returns the runs; one whose evaluations lack a column of its metric that other trials of its
    variant and workload have says so in its problems."""
    there = _there(runs)
    return tuple(_named(run, there[run.variant, run.workload]) for run in runs)


def nowhere(runs: Sequence[Run]) -> list[str]:
    """Returns a sentence for each split of which no trial that was evaluated has the metric."""
    measured = [run for run in runs if run.evals]
    there = {name for run in measured for name in run.evals}
    wanted = dict.fromkeys(f"{split}/{run.metric}" for split in layout.SPLITS for run in measured)
    absent = [name for name in wanted if name not in there]
    # Curves are read for those alone.
    return [
        f"missing: no trial has a column {name}"
        for name in absent
        if not any(_is_unmeasurable(run, name) for run in measured)
    ]


def _is_unmeasurable(run: Run, name: str) -> bool:
    """Whether a column is of a split without examples."""
    return name.partition("/")[0] in evaluations.splits_of_nothing(run.evals)


def _there(runs: Sequence[Run]) -> Columns:
    found: Columns = collections.defaultdict(set)
    for run in runs:
        found[run.variant, run.workload].update(run.evals)
    return found


def _named(run: Run, elsewhere: set[str]) -> Run:
    own = (f"{split}/{run.metric}" for split in layout.SPLITS)
    lost = [name for name in own if name in elsewhere and name not in run.evals]
    if not lost or not run.evals:
        return run
    # In the words of the table, which says it of the trials that it counts.
    said = tuple(f"missing: {run.name}: no column {name}" for name in lost)
    return replace(run, problems=(*run.problems, *said))
