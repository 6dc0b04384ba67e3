"""Selection by validation: the one rule by which a point is chosen. Standard library only.

A trial's value is its best validation metric over its evaluations (first best on ties). A seed
that is lost (it diverged, failed or was given up, or none of its evaluations is finite) counts as
the worst value there is: the survivors of an unstable point would flatter it. A point's value is
the median of its trials' values over all its seeds, between the two in the middle where they are
even; so a point that lost half of its seeds or more is never chosen. The best point wins, the lower
index on ties.

The driver follows it between its stages, by `trial_value`; `analysis`, which knows more about
trials that have not finished, by `best_index`, `point_losses` and `best_point`. A space
'selected:<study>' is the point that another study chose so.
"""

import difflib
import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attention import files
from sweeps.records import layout, measurements, status

SELECTED = "selected:"


class NotSelectedError(ValueError):
    """The other study has not selected its point yet."""


def best_index(values: Iterable[float], mode: str) -> int | None:
    """Returns the index of the best value ('max' or 'min'), the first on ties, None where none is
    finite."""
    best, index = math.inf, None
    for place, value in enumerate(values):
        if math.isfinite(value) and (loss := _loss(value, mode)) < best:
            best, index = loss, place
    return index


def point_losses(values: Mapping[int, Sequence[float | None]], mode: str) -> dict[int, float]:
    """Returns each point's median, turned so that less is better; inf for one never chosen.

    values: of each point its trials' best validation metrics, None, or no finite number, for a lost
    seed. Points without any are left out.
    """
    losses = {
        point: [
            _loss(value, mode) if value is not None and math.isfinite(value) else math.inf
            for value in found
        ]
        for point, found in values.items()
    }
    return {point: statistics.median(found) for point, found in losses.items() if found}


def best_point(values: Mapping[int, Sequence[float | None]], mode: str) -> int | None:
    """Returns the point with the best median, None where every point lost half of its seeds or
    more. Arguments as for `point_losses`."""
    losses = point_losses(values, mode)
    finite = [point for point, loss in losses.items() if math.isfinite(loss)]
    return min(finite, key=lambda point: (losses[point], point), default=None)


def _loss(value: float, mode: str) -> float:
    return -value if mode == "max" else value


def trial_value(directory: pathlib.Path, metric: str, mode: str) -> float | None:
    """Returns a trial's best validation metric, None where it is lost: see the module.

    metric: a column, 'validation/accuracy'. Raises ValueError where the trial is done and its
    attempts lack its last evaluation.
    """
    record = status.read(directory)
    if record["state"] != "done":
        return None
    rows = measurements.evaluations(directory)
    if not rows or rows[-1]["global_step"] < record["global_step"]:
        raise ValueError(
            f"{directory} is done, but its attempts lack its last evaluation, so nothing can be "
            "selected. Bring its attempts back, or remove it and resume, which trains it anew"
        )
    values = [float(row[metric]) for row in rows]
    best = best_index(values, mode)
    return None if best is None else values[best]


def selected_point(space: str, experiment_dir: str, shipped: Sequence[str]) -> dict[str, float]:
    """Returns the point that the study of a space 'selected:<study>' selected for its tuning
    variant.

    shipped: names of the studies that could be run. Raises NotSelectedError where the study has not
    got that far, ValueError where it never will: there is no such study, it selects nothing, or its
    files are damaged.
    """
    name = space.removeprefix(SELECTED)
    directory = pathlib.Path(experiment_dir) / name
    study = layout.read_json_if_there(directory / layout.STUDY) if name else None
    if study is None and name not in shipped:
        folders = pathlib.Path(experiment_dir).glob("*/study.json")
        there = sorted(path.parent.name for path in folders)
        nearest = difflib.get_close_matches(name, [*there, *shipped], n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(
            f"space {space!r}: there is no study {name!r} in {experiment_dir} (it has "
            f"{', '.join(there) or 'none'}), and none of that name ships ({', '.join(shipped)})."
            f"{hint}"
        )
    chosen = layout.read_json_if_there(directory / layout.SELECTION)
    try:
        return _chosen(space, experiment_dir, study, chosen)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"space {space!r}: {layout.STUDY} or {layout.SELECTION} in {directory} is damaged "
            f"({type(error).__name__}: {error}); `python -m sweeps resume "
            f"{files.quoted(directory)}` writes "
            f"{layout.SELECTION} anew, or give the point in a file: --config.space=FILE.json"
        ) from error


def _chosen(space: str, experiment_dir: str, study: Any, selection: Any) -> dict[str, float]:
    name = space.removeprefix(SELECTED)
    directory = pathlib.Path(experiment_dir) / name
    if study is not None and study["config"]["protocol"] == "grid":
        raise ValueError(
            f"space {space!r}: study {name} is a grid and selects nothing; name a study with "
            "another protocol, or give the point in a file: --config.space=FILE.json"
        )
    if study is None or selection is None:
        have = "has selected no point yet" if study is not None else "is not there"
        raise NotSelectedError(
            f"space {space!r}: study {directory} {have}. Run it first: python -m sweeps run "
            f"--config={files.quoted(name)} "
            f"--config.experiment_dir={files.quoted(experiment_dir)}; or give the point itself "
            "in a file: --config.space=FILE.json"
        )
    tuned = study["config"]["tuning_variant"]
    if tuned not in selection["points"]:
        known = ", ".join(selection["points"])
        raise ValueError(
            f"space {space!r}: {directory} selected for {known}, not for its tuning variant "
            f"{tuned!r}; give the point in a file: --config.space=FILE.json"
        )
    chosen = selection["points"][tuned]
    if not 0 <= chosen < len(study["points"]):
        raise IndexError(f"point {chosen} of {len(study['points'])}")
    point: dict[str, float] = study["points"][chosen]
    return point


def keeps_paper_table(space: str, experiment_dir: str) -> bool:
    """Returns whether the study of 'selected:<study>' still is the paper's: False where changed."""
    directory = pathlib.Path(experiment_dir) / space.removeprefix(SELECTED)
    study = layout.read_json_if_there(directory / layout.STUDY)
    return not isinstance(study, dict) or bool(study.get("paper_table"))
