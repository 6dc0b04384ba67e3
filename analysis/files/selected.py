"""Reads selection.json: the point that validation chose for each variant."""

import pathlib
from collections.abc import Sequence
from typing import Any

from analysis.files import checked
from analysis.files.records import Run
from sweeps.records import layout


def read(root: pathlib.Path, runs: Sequence[Run], problems: list[str]) -> dict[str, Any] | None:
    """Returns the selection of the study in `root`, None where nothing was chosen yet or the file
    cannot be used. `problems` gains what is damaged, and each point that has no trial."""
    record = checked.read(root / layout.SELECTION, layout.SELECTION, problems)
    if record is None:
        return None
    points = record.get("points")
    if points is None:
        problems.append(
            f"unreadable: {layout.SELECTION}: it has no usable 'points'; each variant is "
            "represented by the best point of its stage's own trials instead"
        )
        return None
    for variant, point in points.items():
        problems += _without_trials(variant, point, runs)
    return record


def _without_trials(variant: str, point: int, runs: Sequence[Run]) -> list[str]:
    """A stage that was planned for a variant must have the point that was chosen for it."""
    own = [run for run in runs if run.variant == variant]
    return [
        f"missing: {layout.SELECTION}: it chose point {point} for {variant}, of which {stage} has "
        f"no trial; it has points {_listed(points)}"
        for stage, points in _points_by_stage(own).items()
        if point not in points
    ]


def _points_by_stage(runs: Sequence[Run]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for run in runs:
        found.setdefault(run.stage, set()).add(run.point)
    return found


def _listed(points: set[int]) -> str:
    first = sorted(points)[:10]
    more = f" and {len(points) - 10} more" if len(points) > 10 else ""
    return ", ".join(map(str, first)) + more
