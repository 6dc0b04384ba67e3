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

import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence

from attention.common import files
from attention.table import unknown
from sweeps.records import layout, measurements, status

SELECTED = "selected:"


class NotYetError(ValueError):
    """Another study has not got so far yet, or a file is not there; a plan's costs do not depend on
    it."""


def best_index(values: Iterable[float], mode: str) -> int | None:
    """Returns the index of the best value ('max' or 'min'), the first on ties, None if none is
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
            for value in trials
        ]
        for point, trials in values.items()
    }
    return {point: statistics.median(trials) for point, trials in losses.items() if trials}


def best_point(values: Mapping[int, Sequence[float | None]], mode: str) -> int | None:
    """Returns the point with the best median, None if every point lost half of its seeds or
    more. Arguments as for `point_losses`."""
    losses = point_losses(values, mode)
    finite = [point for point, loss in losses.items() if math.isfinite(loss)]
    return min(finite, key=lambda point: (losses[point], point), default=None)


def _loss(value: float, mode: str) -> float:
    return -value if mode == "max" else value


def trial_value(directory: pathlib.Path, metric: str, mode: str) -> float | None:
    """Returns a trial's best validation metric, None if it is lost: see the module.

    metric: a column, 'validation/accuracy'. Raises ValueError if the trial is done and its
    attempts lack an evaluation that trial.json plans: another value might be the best then.
    """
    if status.read(directory)["state"] != "done":
        return None
    rows = measurements.evaluations(directory)
    budget = layout.record(directory / layout.TRIAL, steps=int, eval_every=int)
    planned = {*range(budget["eval_every"], budget["steps"], budget["eval_every"]), budget["steps"]}
    if lacking := sorted(planned - {row["global_step"] for row in rows}):
        raise ValueError(
            f"{directory} is done, but its attempts lack the evaluations after updates "
            f"{', '.join(map(str, lacking))}, so nothing can be selected. Bring its attempts back, "
            "or move it away and resume, which trains it anew"
        )
    values = [float(row[metric]) for row in rows]
    best = best_index(values, mode)
    return None if best is None else values[best]


def selected_point(space: str, experiment_dir: str, shipped: Sequence[str]) -> dict[str, float]:
    """Returns the point that the study of a space 'selected:<study>' selected for its tuning
    variant, which need not be among the variants that it compares.

    shipped: names of the studies that could be run. Raises NotYetError if the study has not
    got that far, ValueError if it never will: there is no such study, it selects nothing, or its
    files are damaged.
    """
    name = space.removeprefix(SELECTED)
    directory = pathlib.Path(experiment_dir) / name
    is_there = bool(name) and (directory / layout.STUDY).exists()
    if not is_there and name not in shipped:
        names = sorted(
            path.parent.name for path in pathlib.Path(experiment_dir).glob("*/study.json")
        )
        raise ValueError(f"space {space!r}: {unknown('study', name, [*names, *shipped])}")
    selected = layout.read_json_if_there(directory / layout.SELECTION)
    study = layout.study_record(directory) if is_there else None
    config = study["config"] if study else {}
    tuned, compared = config.get("tuning_variant"), config.get("variants", ())
    protocol = config.get("protocol")
    if protocol == "grid" or (protocol == "tune_each" and tuned not in compared):
        raise ValueError(
            f"space {space!r}: study {name} has protocol {protocol} and variants "
            f"{', '.join(compared)}, and selects no point for its tuning variant {tuned!r}; name a "
            "study that does, or give the point in a file: --config.space=FILE.json"
        )
    if study is None or selected is None:
        raise NotYetError(
            f"space {space!r}: study {directory} has selected no point yet. Run it first: "
            f"python -m sweeps run --config={files.quoted(name)} "
            f"--config.experiment_dir={files.quoted(experiment_dir)}; or give the point itself "
            "in a file: --config.space=FILE.json"
        )
    try:
        points, baseline = selected["points"], config.get("baseline")
        if protocol == "tune_each" and baseline in points and tuned not in points:
            raise ValueError(
                f"space {space!r}: every point of the tuning variant {tuned!r} lost half of its "
                f"seeds or more in study {name}, so the study selects none for it; name another "
                "study, or give the point in a file: --config.space=FILE.json"
            )
        # In tune_then_compare every variant has the point of the tuning variant.
        chosen = points[tuned] if tuned in compared else next(iter(points.values()))
        if chosen not in range(len(study["points"])):
            raise IndexError(f"point {chosen!r} of {len(study['points'])}")
        point: dict[str, float] = study["points"][chosen]
    except (KeyError, TypeError, IndexError, AttributeError, StopIteration) as error:
        raise ValueError(
            f"space {space!r}: {directory / layout.SELECTION} selects no point for the tuning "
            f"variant {tuned!r} ({type(error).__name__}: {error}); `python -m sweeps resume "
            f"{files.quoted(directory)}` writes it anew, or give the point in a file: "
            "--config.space=FILE.json"
        ) from error
    return point
